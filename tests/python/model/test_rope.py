"""Rotary positions of all scaled kinds of transformers: tiny copies, and runs on both sides of the original length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import real_runs
import tiny
from both_ways import save
from breadth import some
from hf_models import tiny_config
from spillway.model.source.tiny_copy import LENGTH, ORIGINAL_LENGTH, tiny_copy
from spillway.model.verify.equivalence import verify_equivalence

HEAD = 64  # channels
ORIGINAL = 24  # tokens
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL,
                 "short_factor": [1 + 0.02 * place for place in range(HEAD // 2)],
                 "long_factor": [1 + 0.5 * place for place in range(HEAD // 2)]},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": ORIGINAL},
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip


def make_rope(kind: str) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **SCALED[kind]}


def test_kinds_are_all_scaled_kinds_of_transformers() -> None:
    assert SCALED.keys() >= ROPE_INIT_FUNCTIONS.keys()


@pytest.mark.parametrize("kind", SCALED)
def test_tiny_copy_streams_exactly_on_both_sides_of_the_original_length(kind: str) -> None:
    config = tiny_config(
        "llama", head_dim=HEAD, num_hidden_layers=2, max_position_embeddings=96, rope_parameters=make_rope(kind)
    )
    small = tiny_copy(config)
    settings = small.rope_parameters
    assert settings["rope_type"] == kind
    if "original_max_position_embeddings" in SCALED[kind]:
        assert LENGTH - 3 < settings["original_max_position_embeddings"] == ORIGINAL_LENGTH < LENGTH
    for name in ("short_factor", "long_factor"):
        if name in SCALED[kind]:
            assert len(settings[name]) == small.head_dim // 2 and set(settings[name]) <= set(SCALED[kind][name])
    verify_equivalence(config, packing=True)


@pytest.mark.parametrize("kind", some(SCALED, ("longrope", "yarn")))
def test_settings_of_each_type_of_layer_are_cut(kind: str) -> None:
    """Gemma 3's sliding layers keep their own frequencies."""
    config = tiny_config(
        "gemma3_text", head_dim=HEAD, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": make_rope(kind), "sliding_attention": {"rope_type": "default"}},
    )  # fmt: skip
    if "original_max_position_embeddings" in SCALED[kind]:
        settings = tiny_copy(config).rope_parameters["full_attention"]
        assert settings["original_max_position_embeddings"] == ORIGINAL_LENGTH
    verify_equivalence(config)


def test_published_shape_of_phi_streams() -> None:
    """Phi's configuration has lists for heads of 96 channels, under their older names."""
    factors = [1 + 0.02 * place for place in range(48)]
    config = AutoConfig.for_model(
        "phi3", hidden_size=3072, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
        max_position_embeddings=131072, original_max_position_embeddings=4096, vocab_size=32064, pad_token_id=0,
        rope_scaling={"type": "longrope", "short_factor": factors, "long_factor": factors[::-1]},
    )  # fmt: skip
    verify_equivalence(config)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and rows of 9 to 60 tokens, short and long rows in each step."""
    place = real_runs.inputs(tmp_path_factory.mktemp("rope"))
    longer, shorter = " ".join(tiny.SENTENCES[:4]), tiny.SENTENCES[0][:24]
    tiny.jsonl(place / "train.jsonl", [{"text": f"{row}: {longer if row % 2 else shorter}"} for row in range(12)])
    return place


@pytest.mark.parametrize("kind", some(SCALED, ("longrope", "dynamic")))
def test_run_equals_plain_pytorch_on_both_sides_of_the_original_length(inputs: Path, tmp_path: Path, kind: str) -> None:
    for name in ("config.json", "model.safetensors"):
        (inputs / "model" / name).unlink()
    most = ORIGINAL if kind == "dynamic" else 96
    config = AutoConfig.for_model(
        "phi3" if kind == "longrope" else "llama", vocab_size=len(tiny.tokenizer()), hidden_size=2 * HEAD,
        intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, pad_token_id=0,
        max_position_embeddings=most, original_max_position_embeddings=ORIGINAL, rope_parameters=make_rope(kind),
    )  # fmt: skip
    save(config, inputs / "model", 7)
    saved = json.loads((inputs / "model" / "config.json").read_text())["rope_parameters"]
    assert saved["rope_type"] == kind
    words = ("--compute_dtype", "fp32", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4")
    assert real_runs.here(inputs, tmp_path / "out", *words, "--max_steps", "3", verb="check") == 0
    assert real_runs.here(inputs, tmp_path / "out", *words, "--max_steps", "2") == 0
