"""Meta model, probe and description: what is taken, what is refused by name, and what the engine is told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from transformers import AutoConfig

from folders import REPOSITORY
from hf_models import tiny_config, tiny_model
from needs import package
from small_configs import small_config
from spillway._engine import Description
from spillway.errors import InputError
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, decay_names, describe, slice_rows, stored_names
from spillway.model.meta.layer_arguments import LayerArguments
from spillway.model.source import hub, library
from spillway.model.source.source import load_config
from spillway.model.source.tiny_copy import tiny_copy
from spillway.model.verify.equivalence import verify_equivalence


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "qwen3"])
def test_families_are_taken_and_proven(kind: str) -> None:
    config = tiny_config(kind)
    meta_model = build(config, torch.bfloat16)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in meta_model.model.parameters())
    assert meta_model.tied and len(meta_model.stack) == 4
    verify_equivalence(config, packing=True)


def test_proof_keeps_long_context_flags() -> None:
    """Rotary scaling and sliding windows survive the shrinking."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32, "rope_theta": 500000.0}  # fmt: skip
    verify_equivalence(tiny_config("llama", rope_parameters=rope), packing=True)
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    verify_equivalence(tiny_config("qwen2", use_sliding_window=True, sliding_window=8, layer_types=kinds))


@pytest.mark.parametrize(("query", "key"), [(1, 1), (3, 1), (3, 3), (6, 3), (9, 3), (14, 2), (15, 5)])
def test_any_number_of_heads_is_proven(query: int, key: int) -> None:
    """The small copy's heads divide its width, and share keys as the model's do."""
    config = tiny_config(
        "llama", hidden_size=16 * query, num_attention_heads=query, num_key_value_heads=key, head_dim=16
    )
    small = tiny_copy(config)
    assert (small.num_attention_heads == small.num_key_value_heads) == (query == key)
    verify_equivalence(config)


@pytest.mark.parametrize(("kind", "more"), [("gemma4_text", {"num_kv_shared_layers": 10}), ("dots3_note_text", {})])
def test_small_copies_keep_what_a_type_demands_of_its_layers(kind: str, more: dict[str, Any]) -> None:
    """The last one attends to all tokens; heads of some are as wide as their parts."""
    verify_equivalence(AutoConfig.for_model(kind, **more))


PYPROJECT = REPOSITORY / "pyproject.toml"
REFUSED = {"hrm_text": "called more than once", "cpmant": "asked for other tokens", "xlm": "between its layers"}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_streamed_is_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match=f"model type '{kind}' cannot be streamed.*{REFUSED[kind]}"):
        build(small_config(kind), torch.bfloat16)


def test_a_model_that_differs_only_in_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification computes: a stream that rounds the layers' output otherwise is caught."""
    from spillway.model.stream.layer import Stage

    config = tiny_config("llama")
    verify_equivalence(config)
    plain = Stage.forward
    monkeypatch.setattr(Stage, "forward", lambda *arguments: plain(*arguments) * 1.01)
    with pytest.raises(InputError, match="llama.* the loss of a small copy"):
        verify_equivalence(config)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(InputError, match="bert.* see later ones"):
        verify_equivalence(small_config("bert", is_decoder=False))


def test_a_model_that_works_between_its_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaModel

    plain = LlamaModel.__init__

    def between(self: Any, config: Any) -> None:
        plain(self, config)
        for layer in self.layers[1:]:
            layer.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]))

    build(tiny_config("llama"), torch.float32)
    monkeypatch.setattr(LlamaModel, "__init__", between)
    with pytest.raises(InputError, match="llama.* changes the hidden state between its layers"):
        build(tiny_config("llama"), torch.float32)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_buffers_are_those_of_a_real_model(kind: str) -> None:
    config = tiny_config(kind)
    for dtype in (torch.bfloat16, torch.float32):
        real = dict(tiny_model(copy.deepcopy(config), dtype).named_buffers())
        ours = dict(build(copy.deepcopy(config), dtype).model.named_buffers())
        assert real.keys() == ours.keys() and real
        for name, buffer in real.items():
            assert buffer.dtype == ours[name].dtype and torch.equal(buffer, ours[name]), name


def test_what_each_layer_is_given_is_the_models_own() -> None:
    from spillway.model.batches.microbatch import MicroBatch

    none = torch.empty(0, dtype=torch.int64)
    meta_model = build(tiny_config("mistral", sliding_window=4), torch.float32)
    (recording,) = LayerArguments(meta_model).record([MicroBatch(0, 0, 2, 12, None, none, none)])
    assert len(recording.calls) == 3 and meta_model.simple_entry and meta_model.norm is not None
    first = recording.calls[0]
    cosine, sine = first.keywords["position_embeddings"]
    assert cosine.shape == sine.shape == (1, 12, 8)
    assert first.keywords["attention_mask"].shape[-2:] == (12, 12) and not first.keywords["attention_mask"][0, 0, 11, 0]
    assert "forward" not in vars(meta_model.layers[0])


def test_description_names_every_tensor_once_in_order() -> None:
    for tied in (True, False):
        meta_model = build(tiny_config("qwen2", tied), torch.bfloat16)
        found = describe(meta_model, WorkSize(2, 48), "bf16")
        names = [tensor.name for block in found.blocks for tensor in block.tensors]
        assert names == [name for name, _ in meta_model.model.named_parameters()]
        roles = [block.role.name for block in found.blocks]
        assert roles == ["embedding"] + ["layer"] * 4 + ([] if tied else ["head"])
        assert found.tied_head is tied and found.hidden_size == 32
        assert found.blocks[4].name == "model.norm"
        assert Description.parse(found.to_json()) == found


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_decay_is_transformers_own_rule(kind: str) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from transformers import trainer

    model = tiny_model(tiny_config(kind))
    assert decay_names(model) == trainer.Trainer.get_decay_parameter_names(None, model)
    decaying = set(decay_names(model))
    assert "model.embed_tokens.weight" in decaying and "model.norm.weight" not in decaying
    assert not any("bias" in name for name in decaying)


@pytest.mark.parametrize(
    ("rows", "columns", "chunk", "height"),
    [(151936, 896, 4 << 20, 4605), (4096, 320, 4 << 20, 4096), (97, 32, 2048, 49), (10, 4096, 2048, 1)],
)
def test_slices_are_of_equal_height(rows: int, columns: int, chunk: int, height: int) -> None:
    assert slice_rows(rows, columns, chunk) == height
    assert height * columns <= max(chunk, columns)


def test_names_with_and_without_the_prefix(tmp_path: Path) -> None:
    meta_model = build(tiny_config("llama"), torch.bfloat16)
    description = describe(meta_model, WorkSize(1, 12), "bf16")
    weights = {name: torch.zeros(1) for name, _ in meta_model.model.named_parameters()}
    save_file(weights, tmp_path / "model.safetensors")
    assert all(ours == stored for ours, stored in stored_names(description, tmp_path, "model").items())
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    save_file(bare, tmp_path / "model.safetensors")
    names = stored_names(description, tmp_path, "model")
    assert names["model.norm.weight"] == "norm.weight" and set(names.values()) == set(bare)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, "a")}))
    assert stored_names(description, tmp_path, "model")["model.norm.weight"] == "model.norm.weight"


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x08" + b"\0" * 7 + b"{"])
def test_a_damaged_header_is_left_to_the_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    meta_model = build(tiny_config("llama"), torch.bfloat16)
    names = stored_names(describe(meta_model, WorkSize(1, 12), "bf16"), tmp_path, "model")
    assert names["model.norm.weight"] == "model.norm.weight"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        ("{", "not readable as JSON"),
        ("[]", '"model_type" is missing'),
        ('{"model_type": "no-such-model"}', "cannot read this configuration"),
        ('{"model_type": "vit"}', "'vit' is neither a causal language model"),
        ('{"model_type": "llama", "hidden_size": "many"}', "cannot read this configuration"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}', "quantised"),
    ],
)
def test_bad_configurations_end_in_one_sentence(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        build(load_config(tmp_path), torch.bfloat16)
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value) or "model type" in str(caught.value)


def test_a_model_that_is_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="is no directory and is not in the cache.*HF_HUB_OFFLINE is set"):
        hub.directory("model", "nobody/such-a-model-is-not-here")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        hub.directory("model", str(tmp_path / "file"))
    assert hub.directory("model", str(tmp_path)) == tmp_path


@pytest.mark.parametrize("version", ["4.57.1", "5.5.4", "6.0.0", "6.1.0.dev0"])
def test_another_release_of_transformers_is_refused_by_name(version: str) -> None:
    with pytest.raises(InputError, match=f"transformers: release {version} is installed.*5.6.*6.0.*pip install"):
        library.check_version(version)


def test_releases_that_are_taken() -> None:
    for version in ("5.6.0", "5.23.0", "5.24.0.dev0"):
        library.check_version(version)
    asked = next(line for line in PYPROJECT.read_text().splitlines() if "transformers>=" in line)
    assert f'"transformers>={library.version_text(library.OLDEST)},<{library.BELOW[0]}"' in asked
