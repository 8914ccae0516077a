"""A stand-in for PyTorch's flash attention in host memory, written to be read: row by row and in fp32. It replaces what
`torch.nn.attention.varlen` calls; the operator itself and its autograd are PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch

from spillway.model.layers import packed_attention

Mode = tuple[bool, bool]  # deterministic algorithms; only warnings of others


@dataclass
class FlashKernel:
    """Counts its calls."""

    forward: list[list[int]] = field(default_factory=list)  # by call, the lengths of its rows
    windows: list[tuple[int, int]] = field(default_factory=list)
    backward: int = 0
    modes: list[Mode] = field(default_factory=list)  # of each call, forward or backward

    def run(
        self, query: Any, key: Any, value: Any, ends: Any, _: Any, longest: int, __: int, dropout: float, causal: bool,
        return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
        window_size_right: int | None = None, **more: Any,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        assert dropout == 0.0 and not return_debug_mask and not any(more.values())
        assert ends.dtype == torch.int32 and ends.is_contiguous() and query.stride(-1) == key.stride(-1) == 1
        rows = [after - before for before, after in pairwise(ends.tolist())]
        assert longest == max(rows) and sum(rows) == query.shape[0]
        self.forward.append(rows)
        self.windows.append((window_size_left or 0, window_size_right or 0))
        self.modes.append(mode())
        output, sums = attend(query, key, value, ends, causal, scale, (window_size_left, window_size_right))
        return output.to(query.dtype), sums, torch.zeros(2, dtype=torch.uint64), torch.empty(0), torch.empty(0)

    def run_backward(
        self, gradient: Any, query: Any, key: Any, value: Any, output: Any, sums: Any, ends: Any, _: Any, longest: int,
        __: int, dropout: float, causal: bool, state: Any, unused: Any, *, scale: float | None = None,
        window_size_left: int | None = None, window_size_right: int | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        self.backward += 1
        self.modes.append(mode())
        window = window_size_left, window_size_right
        groups = query.shape[1] // key.shape[1]
        gradients = [torch.zeros(each.shape) for each in (query, key, value)]
        for row in slices(ends):
            of_output, one, other, values = (heads_first(each[row]) for each in (gradient, query, key, value))
            other, values = (each.repeat_interleave(groups, 0) for each in (other, values))
            weights = weigh(one, other, causal, scale, window).softmax(-1)
            of_weights = of_output @ values.transpose(1, 2)
            of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
            of_scores = of_scores * (query.shape[-1] ** -0.5 if scale is None else scale)
            of_keys, of_values = of_scores.transpose(1, 2) @ one, weights.transpose(1, 2) @ of_output
            gradients[0][row] = (of_scores @ other).transpose(0, 1)
            gradients[1][row], gradients[2][row] = (
                each.unflatten(0, (-1, groups)).sum(1).transpose(0, 1) for each in (of_keys, of_values)
            )
        return tuple(each.to(query.dtype) for each in gradients)


def mode() -> Mode:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def attend(
    query: Any, key: Any, value: Any, ends: Any, causal: bool, scale: float | None, window: tuple[Any, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, heads, channels], and [heads, tokens] of the scores' log-sum-exp."""
    groups = query.shape[1] // key.shape[1]
    outputs, sums = [], []
    for row in slices(ends):
        one, other, values = (heads_first(each[row]) for each in (query, key, value))
        scores = weigh(one, other.repeat_interleave(groups, 0), causal, scale, window)
        outputs.append((scores.softmax(-1) @ values.repeat_interleave(groups, 0)).transpose(0, 1))
        sums.append(scores.logsumexp(-1))
    return torch.cat(outputs), torch.cat(sums, 1)


def slices(ends: Any) -> list[slice]:
    return [slice(first, last) for first, last in pairwise(ends.tolist())]


def heads_first(row: Any) -> Any:
    return row.float().transpose(0, 1)


def weigh(query: Any, key: Any, causal: bool, scale: float | None, window: tuple[Any, Any]) -> Any:
    """Scores [heads, queries, keys] of one row."""
    scores = query @ key.transpose(1, 2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    tokens, (left, right) = torch.arange(query.shape[1]), window
    distance = tokens[:, None] - tokens[None]
    hidden = (distance < 0) & causal
    hidden |= (distance > left) & (left >= 0)
    hidden |= (-distance > right) & (right >= 0)
    return scores.masked_fill(hidden, float("-inf"))


@contextmanager
def flash_kernel() -> Iterator[FlashKernel]:
    """Inside, tensors in host memory count as a GPU's, and the kernel takes fp32, too."""
    kernel = FlashKernel()
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", kernel.run)
    library.impl("_flash_attention_backward", kernel.run_backward)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_attention, "read_capability", lambda device: (9, 0))
        patch.setattr(packed_attention, "DTYPES", (*packed_attention.DTYPES, torch.float32))
        patch.setattr(packed_attention.PackedRows, "refusal", None)
        packed_attention.refuse_states.cache_clear()
        try:
            yield kernel
        finally:
            library._destroy()
            packed_attention.refuse_states.cache_clear()
