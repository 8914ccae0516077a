"""Packed rows in one call of flash attention, by a stand-in for its kernel (`flash_kernel`). The kernel itself is in
test_gpu.py."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flash_kernel import FlashKernel, flash_kernel
from hf_models import batch, random_ids, tiny_config
from spillway.machine.place import HOST, Place
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import arrange
from spillway.model.layers import packed_attention
from spillway.model.layers.packed_attention import (
    LEAST_ROWS,
    PADDING,
    PackedRows,
    count_most_rows,
    find_varlen,
    plan_calls,
)
from spillway.model.layers.row_attention import DenseMasks, RowMask, row_attention
from spillway.model.measure import gpu_room
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.stream import Stream
from spillway.model.verify.equivalence import verify_equivalence
from test_row_attention import HEADS, KEY_HEADS, ROWS, Attention, results, states

STRICT, LENIENT = (True, False), (True, True)
PACKED = {name: rows for name, rows in ROWS.items() if name != "one"}  # one row needs no joining
NEAR = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 0.05, "atol": 0.03}}


@pytest.fixture
def kernel() -> Iterator[FlashKernel]:
    with flash_kernel() as kernel:
        yield kernel


@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("rows", PACKED)
def test_packed_rows_make_one_call(rows: str, window: int | None, key_heads: int, kernel: FlashKernel) -> None:
    mask = RowMask.build(PACKED[rows], window)
    results(mask, states(mask, key_heads, torch.bfloat16), row_attention, key_heads)
    assert kernel.forward == [[length for row in PACKED[rows] for length in row]] and kernel.backward == 1
    shorter = mask.window is not None
    assert kernel.windows == [(3 if shorter else -1, 0)] and PackedRows.refusal == ""


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS])
@pytest.mark.parametrize("window", [None, 1, 4, 19, 130])
@pytest.mark.parametrize("rows", ROWS)
def test_one_call_agrees_with_rows_by_themselves(
    rows: str, window: int | None, key_heads: int, dtype: torch.dtype
) -> None:
    mask = RowMask.build(ROWS[rows], window)
    given = states(mask, key_heads, dtype)
    expected = results(mask, given, row_attention, key_heads)
    with flash_kernel() as kernel:
        packed = results(mask, given, row_attention, key_heads)
    assert kernel.backward == (0 if mask.is_causal else 1)
    for one, other in zip(packed, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, **NEAR[dtype])


def test_the_default_scale_is_the_librarys() -> None:
    mask = RowMask.build([[7, 12]], None)
    given = states(mask, HEADS, torch.float32)
    expected, _ = row_attention(Attention(1), *given, mask)
    with flash_kernel() as kernel:
        packed, _ = row_attention(Attention(1), *given, mask)
    assert kernel.forward == [[7, 12]]
    torch.testing.assert_close(packed, expected)


def test_very_short_rows_share_few_calls() -> None:
    mask = RowMask.build([[1] * 150 + [3] * 10], 2)
    given = states(mask, KEY_HEADS, torch.float32)
    expected = results(mask, given, row_attention, KEY_HEADS)
    with flash_kernel() as kernel:
        packed = results(mask, given, row_attention, KEY_HEADS)
    assert [len(rows) for rows in kernel.forward] == [LEAST_ROWS, LEAST_ROWS, 32] and kernel.backward == 3
    for one, other in zip(packed, expected, strict=True):
        torch.testing.assert_close(one, other, **NEAR[torch.float32])


@pytest.mark.parametrize("lengths", [[5] * 999, [1] * 40, [3000, 1, 1], [128] * 300, [90] * 300])
def test_padded_accumulators_stay_within_twice_the_tokens(lengths: list[int]) -> None:
    """Of each call, beside what the fewest rows take."""
    calls = plan_calls(lengths, torch.device("cpu"))
    assert sum(call.tokens for call in calls) == sum(lengths)
    for call in calls:
        rows = call.ends.numel() - 1
        assert call.ends[-1] == call.tokens and rows * PADDING <= max(sum(lengths), LEAST_ROWS * PADDING)
    assert len(calls) == 1 or len(lengths) > count_most_rows(sum(lengths))


def test_a_mask_of_one_causal_row_leaves_the_choice_to_pytorch(kernel: FlashKernel) -> None:
    mask = RowMask.build([[40], [40]], 40)
    results(mask, states(mask, HEADS, torch.float32), row_attention, HEADS)
    assert not kernel.forward and PackedRows.refusal is None


@pytest.mark.parametrize(
    ("options", "dense"), [({"dropout": 0.5}, 0), ({"position_bias": torch.zeros(1, 1, 19, 19)}, 1)]
)
def test_what_the_kernel_cannot_do_runs_otherwise(options: dict[str, Any], dense: int, kernel: FlashKernel) -> None:
    mask = RowMask.build([[7, 12]], None)
    before = DenseMasks.made
    row_attention(Attention(1), *states(mask, HEADS, torch.float32), mask, **options)
    assert not kernel.forward and DenseMasks.made == before + dense
    with pytest.raises(ValueError, match="softcap"):
        row_attention(Attention(1), *states(mask, HEADS, torch.float32), mask, softcap=30.0)


HALF = (torch.bfloat16,) * 3


@pytest.mark.parametrize(
    ("dtypes", "heads", "sizes", "capability", "words"),
    [
        (HALF, (32, 8, 8), (128, 128, 128), (9, 0), ""),
        (HALF, (32, 32, 32), (224, 224, 224), (9, 0), ""),
        ((torch.float16,) * 3, (1, 1, 1), (8, 8, 8), (8, 0), ""),
        (HALF, (32, 8, 8), (256, 256, 256), (8, 9), ""),
        (HALF, (32, 8, 8), (224, 224, 224), (8, 9), "224 channels on this GPU"),
        (HALF, (32, 8, 8), (128, 128, 128), (7, 5), "compute capability"),
        (HALF, (32, 8, 8), (128, 128, 128), (13, 0), "compute capability"),
        ((torch.float32,) * 3, (32, 8, 8), (128, 128, 128), (9, 0), "bf16 and fp16"),
        ((*HALF[:2], torch.float16), (32, 8, 8), (128, 128, 128), (9, 0), "bf16 and fp16"),
        (HALF, (32, 8, 8), (100, 100, 100), (9, 0), "100 channels"),
        (HALF, (32, 8, 8), (264, 264, 264), (9, 0), "264 channels"),
        (HALF, (16, 16, 16), (192, 192, 128), (9, 0), "128 and 192 channels"),
        (HALF, (32, 6, 6), (128, 128, 128), (9, 0), "32 heads of queries over 6"),
    ],
)
def test_shapes_that_the_kernel_takes(
    dtypes: Any, heads: Any, sizes: Any, capability: tuple[int, int], words: str
) -> None:
    refusal = packed_attention.refuse_states(dtypes, heads, sizes, capability)
    assert words in refusal and bool(words) == bool(refusal)


def test_host_memory_and_an_old_pytorch_run_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = RowMask.build([[7, 12]], None)
    given = states(mask, HEADS, torch.float32)
    assert not packed_attention.can_attend(given, {})
    monkeypatch.setattr(packed_attention, "find_varlen", lambda: None)
    with flash_kernel() as kernel:
        row_attention(Attention(1), *given, mask)
        assert not kernel.forward and PackedRows.refusal is not None and "varlen_attn" in PackedRows.refusal


def test_flash_attention_that_the_process_switched_off_stays_off(kernel: FlashKernel) -> None:
    mask = RowMask.build([[7, 12]], None)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        row_attention(Attention(1), *states(mask, HEADS, torch.float32), mask)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert not kernel.forward and PackedRows.refusal == "this process switched flash attention off"


def test_pytorchs_operator_has_the_arguments_of_the_call() -> None:
    varlen = find_varlen()
    if varlen is None:
        pytest.skip(f"PyTorch {torch.__version__} has no varlen_attn with windows")
    arguments = [argument.name for argument in torch.ops.torch_attn._varlen_attn.default._schema.arguments]
    first = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert arguments[:7] == first and {"is_causal", "scale", "window_size", "enable_gqa"} <= {*arguments[7:]}
    inspect.signature(varlen).bind(*first, scale=None, window_size=(-1, 0), enable_gqa=True)


@pytest.mark.parametrize("mode", [STRICT, LENIENT])
def test_the_kernel_is_asked_for_one_order(mode: tuple[bool, bool], kernel: FlashKernel) -> None:
    """Forward and backward, and where PyTorch only warns of products in any order."""
    mask = RowMask.build([[7, 12]], None)
    given = states(mask, KEY_HEADS, torch.bfloat16)
    torch.use_deterministic_algorithms(True, warn_only=mode[1])
    try:
        results(mask, given, row_attention, KEY_HEADS)
        assert torch.is_deterministic_algorithms_warn_only_enabled() == mode[1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert kernel.modes == [STRICT, STRICT]


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


def test_packed_rows_of_shapes_alone_make_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own rule of shapes, in the sizes of a real model."""
    monkeypatch.setattr(packed_attention, "read_capability", lambda device: (9, 0))
    mask = RowMask.build([[1000, 3000, 96], [4096]], None, "meta")
    query, key = ((torch.empty(2, 4096, heads, 128, dtype=torch.bfloat16, device="meta")) for heads in (32, 8))
    leaves = [each.transpose(1, 2).requires_grad_() for each in (query, key, key.clone())]
    with Calls() as calls:
        output, _ = row_attention(Attention(4), *leaves, mask, scaling=0.1)
        output.backward(torch.empty_like(output))
    attention = {name: count for name, count in calls.names.items() if "atten" in name or "attn" in name}
    assert attention == {"torch_attn::_varlen_attn": 1, "torch_attn::_varlen_attn_backward": 1}
    assert output.shape == (2, 4096, 32, 128) and output.is_contiguous()
    assert [leaf.grad.shape for leaf in leaves if leaf.grad is not None] == [leaf.shape for leaf in leaves]


# ---- models


LAYERS, TOKENS = 3, 64
POSITIONS = torch.cat([torch.arange(length) for length in (20, 1, 30, 13)])[None]


def run_step(kind: str, **keys: Any) -> tuple[float, list[torch.Tensor]]:
    """The loss and the gradients of a step of two packed micro-batches."""
    meta_model = build(tiny_config(kind, num_hidden_layers=LAYERS, head_dim=8, **keys), torch.float32)
    engine = PlainEngine(describe(meta_model, WorkSize(2, 2 * TOKENS), "fp32"))
    generator = torch.Generator().manual_seed(5)
    for number in range(len(engine.tensors)):
        engine.weight(number).normal_(0, 0.1, generator=generator)
    stream = Stream(meta_model, engine, 0)
    packed = stream.step(arrange([batch(random_ids(1, TOKENS, seed), positions=POSITIONS) for seed in (1, 2)]))
    gradients = [engine.gradients[number].clone() for number in sorted(engine.gradients)]
    stream.close()
    return packed.loss_sum, gradients


@pytest.mark.parametrize(("kind", "keys"), [("llama", {}), ("mistral", {"sliding_window": 4})])
def test_a_step_has_one_call_a_layer_and_plans_it_once_a_micro_batch(
    kind: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[int] = []
    plan = packed_attention.plan_calls
    loss, gradients = run_step(kind, **keys)
    monkeypatch.setattr(packed_attention, "plan_calls", lambda *given: plans.append(1) or plan(*given))
    with flash_kernel() as kernel:
        packed_loss, packed_gradients = run_step(kind, **keys)
    assert len(plans) == 2 and kernel.forward == [[20, 1, 30, 13]] * (2 * 2 * LAYERS)  # forward, and recomputed
    assert kernel.backward == 2 * LAYERS
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    for one, other in zip(packed_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


PROVEN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("mistral", {"sliding_window": 3}),
    ("gemma3_text", {"sliding_window": 4}),
]


@pytest.mark.parametrize(("kind", "keys"), PROVEN, ids=[kind for kind, _ in PROVEN])
def test_models_are_proven_in_one_call(kind: str, keys: dict[str, Any], kernel: FlashKernel) -> None:
    """Against plain PyTorch by the mask, and with what autograd saves recomputed, kept and spilled."""
    config = tiny_config(kind, **keys)
    config.head_dim = 16
    verify_equivalence(config, packing=True)
    assert kernel.backward


@pytest.mark.parametrize(("place", "packing", "rows"), [
    (Place(torch.device("cuda", 0)), True, [1, 32]),
    (Place(torch.device("cuda", 0)), False, []),
    (HOST, True, []),
])  # fmt: skip
def test_a_dry_run_on_a_gpu_measures_the_fewest_and_the_most_rows(
    place: Place, packing: bool, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_room, "sample", lambda model, batch, length, rows: rows)
    meta_model: Any = None
    assert gpu_room.sample_extremes(place, packing, meta_model, WorkShape(1, 2, 2048, 0, 0)) == rows
