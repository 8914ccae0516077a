"""A linear layer's pass with history, in place of its own forward.

It may leave out the product, where backward does not need the output (`unneeded`), and its backward pass may add the
weight's gradient to the engine's sum (`weight_sums`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spillway.model.layers.weight_sums import StageSums, WeightSum, weight_gradient


class LinearPass(torch.autograd.Function):
    """A linear layer. Forward gives `filler` everywhere, and takes no memory for it; its product where that is None.
    `sum`: takes the weight's gradient; None: autograd does."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        filler: float | None,
        sum: WeightSum | None,
    ) -> Any:
        ctx.save_for_backward(hidden, weight)
        ctx.biased, ctx.sum = bias is not None, sum
        if filler is None:
            return nn.functional.linear(hidden, weight, bias)
        return hidden.new_full((), filler).expand(*hidden.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        wanted = ctx.needs_input_grad
        to_hidden = gradient.mm(weight).view(hidden.shape) if wanted[0] else None
        to_weight = weight_gradient(gradient, hidden.flatten(0, -2), ctx.sum) if wanted[1] else None
        return to_hidden, to_weight, gradient.sum(0) if ctx.biased and wanted[2] else None, None, None


@dataclass(frozen=True)
class LinearForward:
    """Stands for the forward of an nn.Linear."""

    linear: Any
    filler: float | None = None  # in place of the product; None: it is made
    sum: WeightSum | None = None  # takes the weight's gradient

    def __call__(self, hidden: torch.Tensor) -> Any:
        if self.sum is not None:
            self.sum.note_use()
        weight, bias = self.linear.weight, self.linear.bias
        if self.filler is None and (hidden.dim() < 2 or hidden.dtype != weight.dtype):
            return nn.functional.linear(hidden, weight, bias)
        return LinearPass.apply(hidden, weight, bias, self.filler, self.sum)


def forward_of(linear: nn.Module) -> LinearForward | None:
    """The replacement of the layer's forward; None: it has none of this kind."""
    replacement = vars(linear).get("forward")
    return replacement if isinstance(replacement, LinearForward) else None


def is_plain(linear: Any, may_be_left_out: bool = False) -> bool:
    is_foreign = "forward" in vars(linear) and forward_of(linear) is None
    is_left_out = filler_of(linear) is not None
    hooks = linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks or linear._backward_pre_hooks
    is_bare = type(linear) is nn.Linear and linear.bias is None and not hooks
    return is_bare and not is_foreign and (may_be_left_out or not is_left_out)


def filler_of(linear: Any) -> float | None:
    """The number in place of the layer's product; None: the product is made."""
    replacement = forward_of(linear)
    return None if replacement is None else replacement.filler


def open_sum(linear: Any) -> WeightSum | None:
    """The sum of the layer's weight gradient, of which a use is noted; None: autograd has the gradient."""
    replacement = forward_of(linear)
    if replacement is None or replacement.sum is None:
        return None
    replacement.sum.note_use()
    return replacement.sum


@contextmanager
def replace_linears(
    left_out: Sequence[nn.Module], filler: float | None = 0.0, sums: StageSums | None = None
) -> Iterator[None]:
    """Inside, the nn.Linear `left_out` leave out their product; with None they make it, and their backward pass is the
    same. Products add weight gradients to `sums`."""
    open_sums = {} if sums is None else sums.open_pass()
    fillers = dict[Any, float | None].fromkeys(open_sums) | dict.fromkeys(left_out, filler)
    for linear, its_filler in fillers.items():
        linear.forward = LinearForward(linear, its_filler, open_sums.get(linear))
    try:
        yield
    finally:
        for linear in fillers:
            del linear.forward
