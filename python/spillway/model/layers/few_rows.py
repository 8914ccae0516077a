"""Matrix products of few rows, whose bits do not depend on the number of threads.

MKL gives each thread blocks of whole rows. It adds up the rows that fill no block in another order, and their number
depends on the threads. With 5 to 11 rows one and two threads differ in the last bit, which is enough to send a token
to another expert. Experts multiply as many rows as tokens are routed to them, the head as many as there are labels. A
multiple of MULTIPLE rows leaves no incomplete block, so fewer rows than ENOUGH get rows of zeros beside them. Autograd
saves what it saves of the plain product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MULTIPLE = 16  # rows in a block of every kernel that was tried
ENOUGH = 128  # rows from which on no number of threads up to 64 changed a bit
MATMUL = (torch.mm, torch.matmul, torch.Tensor.mm, torch.Tensor.matmul, torch.Tensor.__matmul__)
GROUPED = ("grouped_mm", "_grouped_mm", "grouped_mm_fallback")  # names in PyTorch's releases, and in transformers


def count_missing_rows(rows: int) -> int:
    """The number of rows of zeros that a product of `rows` rows gets."""
    return -rows % MULTIPLE if 0 < rows < ENOUGH else 0


def add_zero_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with rows of zeros, if it has too few rows and lies on a CPU."""
    more = count_missing_rows(matrix.shape[0]) if matrix.is_cpu else 0
    return functional.pad(matrix, (0, 0, 0, more)) if more else matrix


def multiply(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product as `torch.mm` gives it, with the same bits for any number of threads."""
    padded = add_zero_rows(first)
    if padded is first:
        return torch.mm(first, second) if out is None else torch.mm(first, second, out=out)
    product = torch.mm(padded, second)[: first.shape[0]]
    return product if out is None else out.copy_(product)


def multiply_and_add(
    summand: torch.Tensor, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, beta: float = 1
) -> torch.Tensor:
    """The sum and product as `torch.addmm` gives it, with the same bits for any number of threads."""
    padded = add_zero_rows(first)
    if padded is first:
        return torch.addmm(summand, first, second, beta=beta, out=out)
    product = torch.mm(padded, second)[: first.shape[0]]
    return torch.add(product, summand, out=out) if beta else out.copy_(product)


class Product(torch.autograd.Function):
    """x [rows, in] times a weight, [in, out] or, `transposed`, [out, in]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        to_x, to_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if to_weight else None, weight if to_x else None)
        ctx.transposed = transposed
        factor = weight.t() if transposed else weight
        padded = add_zero_rows(x)
        product = torch.mm(padded, factor) if bias is None else torch.addmm(bias, padded, factor)
        return product[: x.shape[0]].clone() if padded is not x else product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        of_x = multiply(gradient, weight if ctx.transposed else weight.t()) if to_x else None
        pair = (gradient.t(), x) if ctx.transposed else (x.t(), gradient) if to_weight else None
        of_weight = torch.mm(*pair) if to_weight and pair is not None else None
        return of_x, of_weight, gradient.sum(0) if to_bias else None, None


class Groups(torch.autograd.Function):
    """x [rows, in], whose rows are sorted by group, times the weight [groups, in, out] of each; `ends`: of groups."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
        to_x, to_weights = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if to_weights else None, weights if to_x or to_weights else None)
        ctx.ends = ends
        announce(weights, ends)
        product = x.new_empty(x.shape[0], weights.shape[2])
        for number, rows in list_groups(ends):
            multiply(x[rows], weights[number], out=product[rows])
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        to_x, to_weights = ctx.needs_input_grad[:2]
        of_x = gradient.new_empty(gradient.shape[0], weights.shape[1]) if to_x else None
        of_weights = torch.zeros_like(weights) if to_weights else None
        if to_x:
            announce(weights, ctx.ends)
        for number, rows in list_groups(ctx.ends):
            if of_x is not None:
                multiply(gradient[rows], weights[number].t(), out=of_x[rows])
            if of_weights is not None:
                torch.mm(x[rows].t(), gradient[rows], out=of_weights[number])
        return of_x, of_weights, None


def announce(weights: Any, ends: Sequence[int]) -> None:
    """Begins to bring the weights of groups that are not empty, where they come on demand (`pieces`)."""
    if (ask := getattr(weights, "announce", None)) is not None:
        ask(ends)


def list_groups(ends: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """The number and the rows of each group that is not empty."""
    for number, (first, after) in enumerate(pairwise([0, *ends])):
        if after > first:
            yield number, slice(first, after)


class FilledRows(TorchFunctionMode):
    """A mode in which products of few rows on a CPU get rows of zeros. All other calls are PyTorch's own."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        output = None
        if function is functional.linear:
            output = multiply_linear(*args, **named)
        elif function in MATMUL and len(args) == 2 and not named:
            output = multiply_rows(args[0], args[1], None, transposed=False)
        elif function is torch.addmm and len(args) == 3 and not named and args[0].dim() == 1:
            output = multiply_rows(args[1], args[2], args[0], transposed=False)
        elif read_name(function) in GROUPED:
            output = multiply_groups(*args, **named)
        return function(*args, **named) if output is None else output


def multiply_linear(input: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
    return multiply_rows(input, weight, bias, transposed=True)


def multiply_rows(x: Any, weight: Any, bias: Any, transposed: bool) -> torch.Tensor | None:
    """The product with rows of zeros; None if PyTorch's own has the same bits with any number of threads."""
    if x.dim() < 2 or weight.dim() != 2 or not x.is_cpu or not count_missing_rows(x.shape[:-1].numel()):
        return None
    output: torch.Tensor = Product.apply(x.flatten(0, -2), weight, bias, transposed)
    return output.view(*x.shape[:-1], output.shape[-1])


def multiply_groups(input: Any, weight: Any, offs: Any = None, **others: Any) -> torch.Tensor | None:
    """The product with rows of zeros; None if PyTorch's own has the same bits with any number of threads."""
    has_others = any(other is not None for other in others.values())
    if has_others or offs is None or input.dim() != 2 or weight.dim() != 3 or not input.is_cpu:
        return None
    if isinstance(offs, FakeTensor) or offs.is_meta or input.dtype != weight.dtype:
        return None
    if getattr(weight, "multiplies_itself", False):  # `pieces`
        return None
    ends = offs.tolist()
    few = any(count_missing_rows(rows.stop - rows.start) for _, rows in list_groups(ends))
    if not few or ends[-1] != input.shape[0]:
        return None
    output: torch.Tensor = Groups.apply(input, weight, ends)
    return output


def read_name(function: Any) -> str:
    """The name of a function without the overload of an operator."""
    return str(getattr(function, "__name__", "")).partition(".")[0]


@contextmanager
def fill_rows(device: torch.device) -> Iterator[None]:
    """A context in which a layer's products on this device have the same bits with any number of threads."""
    if device.type != "cpu":
        yield
        return
    with FilledRows():
        yield
