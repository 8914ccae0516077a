"""Model types that differ in kind, through the engine and in plain PyTorch; for all see scripts/sweep_models.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import native
from both_ways import SHAPE, compare, save
from breadth import some
from small_configs import small_config
from spillway._engine import Form

KINDS = {
    "gpt2": "positions outside the layers, dropout, tied head",
    "opt": "another path to the layers, positions with an offset",
    "bloom": "a norm after the embedding, alibi",
    "phi": "a head with a bias",
    "gemma2": "scaled embedding, capped logits",
    "mixtral": "experts, apart in files",
    "mamba": "state space",
    "zamba2": "a block that layers share, the embedding given to layers",
    "gemma3n_text": "inputs for each layer, shared keys and values, a wider stream",
    "zaya": "a state handed from layer to layer",
    "deepseek_v3": "latent attention, buffers in checkpoints",
    "olmo": "a last norm without parameters",
    "gpt_neox": "other names in files",
}
REPRESENTATIVES = ("gpt2", "mamba", "zaya")


# what draws random numbers while it trains
DRAWING = {
    "gpt2": {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
    "bloom": {"hidden_dropout": 0.2, "attention_dropout": 0.1},
    "opt": {"dropout": 0.1, "attention_dropout": 0.1},
    "phimoe": {"router_jitter_noise": 0.01},
}


@pytest.mark.parametrize("kind", some(DRAWING, ("gpt2",)))
def test_dropout_is_drawn_alike_when_a_layer_runs_again(kind: str, tmp_path: Path) -> None:
    compare(small_config(kind, **DRAWING[kind]), tmp_path, random=True)


@pytest.mark.parametrize("kind", some(KINDS, REPRESENTATIVES))
def test_equals_a_plain_loop_and_the_librarys_files(kind: str, tmp_path: Path) -> None:
    compare(small_config(kind), tmp_path)


def test_what_the_library_keeps_in_fp32_is_kept_so_beside_bf16(tmp_path: Path) -> None:
    save(small_config("flint"), tmp_path / "model", 7)
    for dtype in ("bf16", "fp32"):
        session = native.opened(tmp_path / "model", SHAPE, compute_dtype=dtype)
        tensors = [tensor for block in session.description.blocks for tensor in block.tensors]
        session.close()
        wide = {tensor.name for tensor in tensors if tensor.form is Form.fp32}
        assert ("model.layers.0.self_attn.sinks" in wide) == (dtype == "bf16")
        assert len(wide) < len(tensors)
