"""Products with experts in pieces that have adapters: x (W + s L R) as x W + s (x L) R, for the experts of the rows.

PEFT adds the adapters to the weights of all experts, and autograd makes the gradient of that sum. Both are as large as
the layer. Here neither is made. In exact arithmetic products and gradients are PEFT's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from spillway.model.layers.few_rows import list_groups, multiply, multiply_and_add
from spillway.model.layers.pieces import Experts, Part, multiply_runs


def add_factors(experts: Experts, left: torch.Tensor, right: torch.Tensor, scaling: float) -> Experts:
    """The experts with these adapters: left [experts, rows, r], right [experts, r, columns]."""
    return Experts(replace(experts.part, product=Factors(left, right, scaling)))


@dataclass(frozen=True)
class Factors:
    """The adapters of all experts."""

    left: torch.Tensor
    right: torch.Tensor
    scaling: float

    def multiply(self, func: Any, x: torch.Tensor, part: Part, offs: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = AdaptedGroups.apply(x, self.left, self.right, part, self.scaling, offs, func)
        return product


class AdaptedGroups(torch.autograd.Function):
    """x [rows, in], whose rows are sorted by expert, to [rows, out]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        part: Part,
        scaling: float,
        offs: torch.Tensor,
        func: Callable[..., torch.Tensor],
    ) -> torch.Tensor:
        ends = offs.tolist()
        ctx.save_for_backward(x, left, right)
        ctx.part, ctx.scaling, ctx.offs, ctx.ends, ctx.func = part, scaling, offs, ends, func
        product = multiply_runs(func, x, part, offs, [0, *ends])
        for number, rows in list_groups(ends):
            to_narrow, to_wide = take_factors(part, left, right, number)
            narrow = multiply(x[rows], to_narrow).mul_(scaling)
            multiply_and_add(product[rows], narrow, to_wide, out=product[rows])
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, left, right = (saved.detach() for saved in ctx.saved_tensors)
        part, scaling, ends = ctx.part, ctx.scaling, ctx.ends
        of_x = multiply_runs(ctx.func, gradient, part.turn(), ctx.offs, [0, *ends]) if ctx.needs_input_grad[0] else None
        of_left, of_right = torch.zeros_like(left), torch.zeros_like(right)
        for number, rows in list_groups(ends):
            to_narrow, to_wide = take_factors(part, left, right, number)
            of_to_narrow, of_to_wide = take_factors(part, of_left, of_right, number)
            narrow = multiply(x[rows], to_narrow).mul_(scaling)
            of_narrow = multiply(gradient[rows], to_wide.t()).mul_(scaling)
            if of_x is not None:
                multiply_and_add(of_x[rows], of_narrow, to_narrow.t(), out=of_x[rows])
            of_to_narrow.copy_(multiply(x[rows].t(), of_narrow))
            of_to_wide.copy_(multiply(narrow.t(), gradient[rows]))
        return of_x, of_left, of_right, None, None, None, None


def take_factors(part: Part, left: torch.Tensor, right: torch.Tensor, expert: int) -> Sequence[torch.Tensor]:
    """The factors [in, r] and [r, out] of one expert as rows multiply by it."""
    first, second = left[expert], right[expert]
    return (second.t(), first.t()) if part.turned else (first, second)
