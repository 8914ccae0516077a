"""Attention of packed rows, windows and chunks: as by the library's mask of all tokens by all tokens, without it."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

import real_runs
from hf_models import batch, random_ids, tiny_config
from small_configs import small_config
from spillway.model.batches.microbatch import arrange
from spillway.model.layers.row_attention import (
    NAME,
    DenseMasks,
    RowMask,
    attend_by_row,
    code_asks,
    grows_linearly,
    row_attention,
)
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.stream import Stream
from spillway.model.verify.equivalence import verify_equivalence

HEADS, KEY_HEADS, CHANNELS = 4, 2, 16


class Attention(torch.nn.Module):
    """What the library's function asks of the module that calls it."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def states(mask: RowMask, key_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """As a model's projections leave them: heads of a token lie together."""
    generator = torch.Generator().manual_seed(3)
    sequences, _, tokens, _ = mask.shape
    shapes = [(sequences, tokens, heads, CHANNELS) for heads in (HEADS, key_heads, key_heads)]
    return [torch.randn(*shape, generator=generator).to(dtype).transpose(1, 2) for shape in shapes]


def results(mask: Any, given: list[torch.Tensor], attention: Any, key_heads: int) -> list[torch.Tensor]:
    """What comes out, and the gradients of query, key and value."""
    leaves = [state.clone().requires_grad_() for state in given]
    output, _ = attention(Attention(HEADS // key_heads), *leaves, mask, dropout=0.0, scaling=0.3, sliding_window=7)
    assert output.is_contiguous()
    output.backward(torch.linspace(-1, 1, output.numel()).sin().view(output.shape).to(output))
    return [output.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]


ROWS = {
    "one": [[40]],
    "several": [[7, 1, 12, 1, 1, 18]],
    "of one token": [[1] * 9],
    "alike": [[5, 15, 3]] * 2,
    "unlike": [[11, 1, 28], [40], [20, 20]],
    "long": [[700, 3, 650]],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS])
@pytest.mark.parametrize("window", [None, 1, 4, 19, 130])
@pytest.mark.parametrize("rows", ROWS)
def test_rows_and_windows_are_as_by_the_mask(rows: str, window: int | None, key_heads: int, dtype: torch.dtype) -> None:
    mask = RowMask.build(ROWS[rows], window)
    given, dense = states(mask, key_heads, dtype), mask.dense()
    made = DenseMasks.made
    found = results(mask, given, row_attention, key_heads)
    assert DenseMasks.made == made
    expected = results(dense, given, sdpa_attention_forward, key_heads)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.03}
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, **near)


def test_a_row_alone_is_bit_identical_to_the_same_row_packed() -> None:
    mask = RowMask.build([[9, 30, 1]], None)
    given = states(mask, KEY_HEADS, torch.float32)
    packed = results(mask, given, row_attention, KEY_HEADS)[0]
    alone = results(None, [state[:, :, 9:39] for state in given], sdpa_attention_forward, KEY_HEADS)[0]
    assert torch.equal(packed[:, 9:39], alone)


def test_what_row_by_row_cannot_do_is_done_by_the_mask() -> None:
    """Dropout over blocks that run again; keys that are not those of the tokens."""
    mask = RowMask.build([[40]], 8)
    given = states(mask, HEADS, torch.float32)
    made = DenseMasks.made
    row_attention(Attention(1), *given, mask, dropout=0.5, scaling=1.0)
    assert DenseMasks.made == made + 1
    row_attention(Attention(1), *given, RowMask.build([[10, 30]], None), dropout=0.5, scaling=1.0)
    assert DenseMasks.made == made + 1
    bias = torch.linspace(-1, 1, 1600).view(1, 1, 40, 40)
    expected, _ = sdpa_attention_forward(Attention(1), *given, mask.dense(), scaling=1.0, position_bias=bias)
    found, _ = row_attention(Attention(1), *given, mask, scaling=1.0, position_bias=bias)
    assert torch.equal(found, expected)


PACKED = torch.cat([torch.arange(length) for length in (9, 1, 14, 6)])[None]
MASKS: dict[str, Any] = {
    "full": (create_causal_mask, {}),
    "window": (create_sliding_window_causal_mask, {"sliding_window": 5}),
    "chunks": (create_chunked_causal_mask, {"attention_chunk_size": 4}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_the_mask_is_the_librarys(kind: str, packed: bool) -> None:
    make, keys = MASKS[kind]
    config = tiny_config("mistral", **keys)

    def made(name: str, rows: int = 2, **more: Any) -> Any:
        config._attn_implementation = name
        positions = PACKED.expand(rows, -1) if packed else None
        return make(config, torch.zeros(rows, 30, 8), None, None, position_ids=positions, **more)

    before = DenseMasks.made
    ours, theirs = made(NAME), made("sdpa")
    assert DenseMasks.made == before
    if theirs is None:
        assert ours is None and kind == "full" and not packed
    else:
        assert isinstance(ours, RowMask) and ours.shape == theirs.shape and torch.equal(ours.dense(), theirs)
    more = {"or_mask_function": lambda batch, head, query, key: key == 3}
    ours, theirs = made(NAME, **more), made("sdpa", **more)
    assert not isinstance(ours, RowMask) and torch.equal(ours, theirs)


def test_a_mask_with_padding_is_the_librarys() -> None:
    config = tiny_config("mistral", sliding_window=5)
    config._attn_implementation = NAME
    padding = torch.ones(1, 30, dtype=torch.int64)
    padding[0, 20:] = 0
    assert not isinstance(create_sliding_window_causal_mask(config, torch.zeros(1, 30, 8), padding, None), RowMask)


def test_model_code_that_looks_into_a_mask_finds_it() -> None:
    mask = RowMask.build([[3, 5], [8]], 4)
    made = DenseMasks.made
    assert mask[:, :, :, :8] is mask and mask[:, :, 0:] is mask
    assert mask.shape == (2, 1, 8, 8) and mask.dtype == torch.bool and mask.dim() == 4 and not mask.requires_grad
    assert mask.untyped_storage().nbytes() == 1
    assert DenseMasks.made == made
    dense = mask.dense()
    looks = [lambda m: m[:, 0], lambda m: m[..., :4], lambda m: ~m, lambda m: m & m, lambda m: m.to(torch.float32),
             lambda m: torch.cat([m, m], dim=-1), lambda m: torch.where(m, 0.0, -1.0), lambda m: m.sum()]  # fmt: skip
    for look in looks:
        found = look(mask)
        assert type(found) is torch.Tensor and torch.equal(found, look(dense))
    query = torch.randn(2, 2, 8, 4)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert torch.equal(attend(query, query, query, attn_mask=mask), attend(query, query, query, attn_mask=dense))


# ---- models


WINDOWED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("mistral", {"sliding_window": 3}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 2,
               "layer_types": ["full_attention", "sliding_attention"]}),
    ("gemma3_text", {"sliding_window": 4}),
]  # fmt: skip


@pytest.fixture
def made_in_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Dense masks of each step of a stream; the plain model beside it has its own."""
    found: list[int] = []
    step = Stream.step

    def counted(*given: Any) -> Any:
        before = DenseMasks.made
        outcome = step(*given)
        found.append(DenseMasks.made - before)
        return outcome

    monkeypatch.setattr(Stream, "step", counted)
    return found


@pytest.mark.parametrize(("kind", "keys"), WINDOWED, ids=[kind for kind, _ in WINDOWED])
def test_models_are_proven_without_a_dense_mask(kind: str, keys: dict[str, Any], made_in_steps: list[int]) -> None:
    verify_equivalence(tiny_config(kind, **keys), packing=True)
    assert made_in_steps and not any(made_in_steps)


def test_chunks_are_proven_without_a_dense_mask(made_in_steps: list[int]) -> None:
    verify_equivalence(small_config("llama4_text", attention_chunk_size=4), packing=True)
    assert made_in_steps and not any(made_in_steps)


def test_models_that_go_by_the_name_of_their_attention_keep_it() -> None:
    names = {}
    for kind in ("llama", "deepseek_v32", "falcon"):
        names[kind] = build(small_config(kind), torch.float32).model.config._attn_implementation
    assert names == {"llama": NAME, "deepseek_v32": "sdpa", "falcon": "sdpa"}
    importlib.import_module(gemma := "transformers.models.gemma4.modeling_gemma4")
    assert not code_asks(gemma)


def test_a_plan_knows_where_memory_grows_by_the_square() -> None:
    """By the kernels' name: eager attention keeps scores, and types that keep the name make masks when packed."""
    kinds = ("llama", "falcon", "gpt_oss")
    models = {kind: build(small_config(kind), torch.float32).model for kind in kinds}
    assert [grows_linearly(models[kind], packing=True) for kind in kinds] == [True, False, False]
    assert [grows_linearly(models[kind], packing=False) for kind in kinds] == [True, True, False]


def test_a_callers_configuration_stays_as_it_is() -> None:
    config = tiny_config("llama")
    model = build(config, torch.float32).model
    assert model.config._attn_implementation == NAME != config._attn_implementation
    attend_by_row(model)
    assert model.config._attn_implementation == NAME


class Largest(TorchDispatchMode):
    """The most bytes that one tensor had which an operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, list | tuple) else [found]:
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return found


TOKENS = 4096
LONG = [*WINDOWED[:2], ("gemma3_text", {"sliding_window": 200})]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("kind", "keys"), LONG, ids=[kind for kind, _ in LONG])
def test_a_step_makes_nothing_of_all_tokens_by_all_tokens(kind: str, keys: dict[str, Any], packed: bool) -> None:
    """Forward and backward, the loss included."""
    config = tiny_config(kind, num_hidden_layers=2, max_position_embeddings=TOKENS, **keys)
    meta_model = build(copy.deepcopy(config), torch.float32)
    description = describe(meta_model, WorkSize(1, TOKENS), "fp32")
    engine = PlainEngine(description, chunk_elements=1 << 20)
    for number in range(len(engine.tensors)):
        engine.weight(number).fill_(0.01)
    ids = random_ids(1, TOKENS, 5)
    lengths = [1000, 1, 96, 2000, 999] if packed else [TOKENS]
    positions = torch.cat([torch.arange(length) for length in lengths])[None] if packed else None
    stream = Stream(meta_model, engine, 0)
    with Largest() as largest:
        stream.step(arrange([batch(ids, positions=positions)]))
    stream.close()
    assert 0 < largest.bytes < TOKENS * TOKENS


# ---- runs


def test_packed_rows_give_the_loss_and_gradient_of_rows_by_themselves(tmp_path: Path) -> None:
    """Through the command line: all rows in one packed sequence, and each in a row of its own."""
    given = real_runs.inputs(tmp_path)
    configuration = json.loads((given / "model" / "config.json").read_text())
    configuration["max_position_embeddings"] = TOKENS
    (given / "model" / "config.json").write_text(json.dumps(configuration))
    common = ["--max_steps", "1", "--compute_dtype", "fp32", "--gradient_accumulation_steps", "1", "--max_length"]
    found = []
    for name, keys in [
        ("packed", [str(TOKENS // 2), "--packing", "--per_device_train_batch_size", "1"]),
        ("apart", [str(TOKENS // 2), "--per_device_train_batch_size", "23"]),
    ]:
        assert real_runs.here(given, tmp_path / name, *common, *keys) == 0
        found.append(real_runs.metrics(tmp_path / name)[0])
    packed, apart = found
    assert packed["tokens"] == apart["tokens"] > 200
    assert packed["loss"] == pytest.approx(apart["loss"], rel=1e-5)
    assert packed["grad_norm"] == pytest.approx(apart["grad_norm"], rel=1e-4)
