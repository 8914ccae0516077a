"""Attention of a micro-batch's packed rows in one call of PyTorch's flash attention (`torch.nn.attention.varlen`).

The kernel takes the rows of all sequences one after the other, and where each row ends. PyTorch's own kernel adds in
one order if PyTorch refuses operations without one, and in any order if PyTorch only warns of them
(`_flash_attention_backward` in its attention_backward.cu). `attend_in_one_order` makes it refuse around the kernel.

The backward pass pads its fp32 accumulators by 128 tokens a row. A call therefore has at most one row for 128 tokens of
the micro-batch, or 64 rows if that is more: one call, unless rows are very short.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spillway.machine.one_order import attend_in_one_order

DTYPES = (torch.bfloat16, torch.float16)
OLDEST, NEWEST = (8, 0), (12, 1)  # compute capabilities of PyTorch's flash attention (sdp_utils.cpp)
NO_WIDE_HEADS = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))  # these have no backward pass for heads of 193 to 224
MOST_CHANNELS = 256  # of a head
ALIGNMENT = 8  # channels
PADDING = 128  # tokens of a row that the backward pass pads its accumulators by
LEAST_ROWS = 64  # that a call may have, however few its tokens are

States = Sequence[torch.Tensor]  # query, key, value: [sequences, heads, tokens, channels of a head]


class PackedRows:
    """How a GPU ran packed rows last, which a run says at its start."""

    refusal: str | None = None  # why not in one call; "": in one call; None: no packed row ran on a GPU


@dataclass(frozen=True)
class RowCall:
    """Consecutive rows of one call of the kernel."""

    tokens: int
    longest: int  # tokens
    ends: torch.Tensor  # int32 [rows + 1]: 0 and where each row ends, in memory of the states' device


def plan_calls(lengths: Sequence[int], device: torch.device) -> list[RowCall]:
    """The calls for rows of these lengths, which lie one after the other."""
    most = count_most_rows(sum(lengths))
    return [make_call(lengths[first : first + most], device) for first in range(0, len(lengths), most)]


def count_most_rows(tokens: int) -> int:
    """The most rows of one call in a micro-batch of so many tokens."""
    return max(LEAST_ROWS, tokens // PADDING)


def make_call(lengths: Sequence[int], device: torch.device) -> RowCall:
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return RowCall(sum(lengths), max(lengths), ends.to(device))


def can_attend(states: States, options: dict[str, Any]) -> bool:
    """True if the kernel takes these states. `options`: what the model's code asks of attention."""
    capability = read_capability(states[0].device)
    if capability is None:
        return False
    query, key, value = states
    heads = query.shape[1], key.shape[1], value.shape[1]
    sizes = query.shape[3], key.shape[3], value.shape[3]
    dtypes = query.dtype, key.dtype, value.dtype
    PackedRows.refusal = refuse_call(options) or refuse_states(dtypes, heads, sizes, capability)
    return not PackedRows.refusal


def read_capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a GPU. None: the device is none."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def refuse_call(options: dict[str, Any]) -> str:
    """Why the kernel cannot do what is asked; empty if it can."""
    if options.get("dropout", 0.0) > 0:
        return "the model drops attention"
    if options.get("softcap") is not None:
        return "the model caps attention's scores"
    return "" if torch.backends.cuda.flash_sdp_enabled() else "this process switched flash attention off"


@functools.lru_cache(maxsize=64)
def refuse_states(
    dtypes: tuple[torch.dtype, ...],
    heads: tuple[int, int, int],
    sizes: tuple[int, int, int],
    capability: tuple[int, int],
) -> str:
    """Why the kernel does not take such states; empty if it does. `heads`: of queries, keys and values; `sizes`: their
    channels."""
    if find_varlen() is None:
        return f"PyTorch {torch.__version__} has no varlen_attn with windows and grouped heads"
    if not OLDEST <= capability <= NEWEST:
        return "flash attention needs compute capability 8.0 to 12.1"
    if len(set(dtypes)) > 1 or dtypes[0] not in DTYPES:
        return "flash attention computes in bf16 and fp16"
    queries, keys, values = heads
    if keys != values or queries % keys:
        return f"flash attention has no {queries} heads of queries over {keys} of keys"
    size = sizes[0]
    if len(set(sizes)) > 1 or size % ALIGNMENT or size > MOST_CHANNELS:
        return f"flash attention has no heads of {' and '.join(str(each) for each in sorted(set(sizes)))} channels"
    if 192 < size <= 224 and capability in NO_WIDE_HEADS:
        return f"flash attention has no heads of {size} channels on this GPU"
    return ""


@functools.cache
def find_varlen() -> Callable[..., torch.Tensor] | None:
    """PyTorch's function. None: this PyTorch has none, or one without windows, a scale or grouped heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"scale", "window_size", "enable_gqa"} <= has.keys() else None


def attend(states: States, calls: Sequence[RowCall], window: int | None, scale: float | None) -> torch.Tensor:
    """[sequences, tokens, heads, channels]: every token sees those of its own row up to itself, the last `window` of
    them."""
    sequences, _, tokens, _ = states[0].shape
    rows = [join_sequences(state) for state in states]
    if len(calls) == 1:
        output = call_kernel(rows, calls[0], window, scale)
    else:
        parts = zip(*(state.split([call.tokens for call in calls]) for state in rows), strict=True)
        output = torch.cat([call_kernel(part, call, window, scale) for part, call in zip(parts, calls, strict=True)])
    return output.unflatten(0, (sequences, tokens)).contiguous()


def join_sequences(state: torch.Tensor) -> torch.Tensor:
    """[sequences * tokens, heads, channels]; a view where tokens lie one after the other."""
    joined = state.transpose(1, 2).flatten(0, 1)
    return joined if joined.stride(-1) == 1 else joined.contiguous()


def call_kernel(rows: States, call: RowCall, window: int | None, scale: float | None) -> torch.Tensor:
    kernel = find_varlen()
    assert kernel is not None
    if torch.is_deterministic_algorithms_warn_only_enabled():
        kernel = functools.partial(attend_in_one_order, kernel)
    query, key, value = rows
    return kernel(
        query,
        key,
        value,
        call.ends,
        call.ends,
        call.longest,
        call.longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
