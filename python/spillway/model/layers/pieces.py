"""Experts whose values come while their layer runs: a product takes the few that it multiplies by. They are kept as
codes, or they come on demand.

What a layer sees as the parameter of its experts has a shape and no bytes. PyTorch asks it whenever something is to be
done with it, in forward and in backward: views are views of it, and a product asks the engine for the values of a few
experts at a time, in one place for all (the engine's plan/conversion.h). Autograd saves it as any weight, which takes
nothing. Experts that no token met are not converted. The products are those of a layer whose experts were converted
before it began: of the same values, in the same order, so all bits are the same.

Experts may have products of their own, above autograd: those with adapters (`adapted_pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import nn
from torch.torch_version import TorchVersion

from spillway.model.layers.few_rows import GROUPED as PRODUCTS
from spillway.model.layers.few_rows import multiply as multiply_matrices
from spillway.model.layers.few_rows import read_name

AT_ONCE = 4  # plan::kPiecesAtOnce
BLOCK = 64  # values: kernels::kPackedBlock
GROUPED = "grouped_mm"  # the library's function for experts that multiplies by all of them in one call
# Before, the library asked the weights of experts on a CPU for their address.
NEEDED = "2.11"

Convert = Callable[[int, int, int], None]  # tensor number, first piece, pieces: Engine.convert_pieces, ask_pieces


def count_pieces(owner: nn.Module, parameter: nn.Parameter, version: str = torch.__version__) -> int:
    """The experts of a packed parameter that a pass can convert a few at a time; 0: it converts all of them at once.
    The library runs them by its own grouped product, which asks for nothing else than products and views."""
    config = getattr(owner, "config", None)
    is_grouped = hasattr(owner, "_apply_gate") and getattr(config, "_experts_implementation", None) == GROUPED
    if not is_grouped or parameter.dim() != 3 or parameter[0].numel() % BLOCK or TorchVersion(version) < NEEDED:
        return 0
    return parameter.shape[0]


class Place:
    """The place where the engine puts pieces of one tensor, and the request that it takes."""

    def __init__(
        self, tensor: int, meta: torch.Tensor, convert: Convert, device: torch.device, ask: Convert | None = None
    ) -> None:
        """`tensor`: the engine's number; `meta`: with its shape and type; `device`: where layers compute. `ask`: begins
        to bring what is converted later; None: it is there before the layer runs."""
        self.meta, self.device = meta, device
        self.trains = meta.requires_grad
        self.beside: list[Place] = []  # those of the other tensors with the matrices of the same experts
        self._tensor, self._convert, self._ask = tensor, convert, ask
        self._values: torch.Tensor | None = None

    def bind(self, arena: torch.Tensor, first: int) -> None:
        """`arena`: flat, of the compute type; `first`: the element of it at which pieces begin."""
        count = self.meta[0].numel() * min(AT_ONCE, self.meta.shape[0])
        self._values = arena[first : first + count].view(-1, *self.meta.shape[1:])

    def release(self) -> None:
        self._values = None

    @property
    def on_demand(self) -> bool:
        return self._ask is not None

    def ask(self, runs: Sequence[tuple[int, int]]) -> None:
        """For first and number of experts that are needed, here and then beside."""
        for place in (self, *self.beside):
            if place._ask is not None:
                for first, count in runs:
                    place._ask(place._tensor, first, count)

    def take(self, first: int, count: int) -> torch.Tensor:
        """So many experts, [count, rows, columns], until the next call for any tensor."""
        assert self._values is not None
        self._convert(self._tensor, first, count)
        return self._values[:count]


class OwnProduct(Protocol):
    """A grouped product with experts, above autograd, in place of PyTorch's."""

    def multiply(self, func: Any, x: torch.Tensor, part: Part, offs: torch.Tensor) -> torch.Tensor:
        """Rows of x, sorted by expert, times the matrix of each; `offs`: where the rows of each expert end. `func`: the
        product of plain tensors."""


@dataclass(frozen=True)
class Part:
    """The part of a tensor that a view has: all experts, or one; `turned`: rows and columns have changed places."""

    place: Place
    expert: int | None = None
    turned: bool = False
    product: OwnProduct | None = None

    def turn(self) -> Part:
        return replace(self, turned=not self.turned)

    def select(self, expert: int) -> Part:
        if self.product is not None:
            raise NotImplementedError("one expert was asked for of experts that have their own products")
        return replace(self, expert=expert % self.place.meta.shape[0])

    def shape(self) -> torch.Tensor:
        """A tensor without bytes, of its shape and strides."""
        tensor = self.place.meta if self.expert is None else self.place.meta[self.expert]
        return tensor.transpose(-2, -1) if self.turned else tensor

    def values(self) -> torch.Tensor:
        """The values of one expert."""
        assert self.expert is not None
        return self._view(self.place.take(self.expert, 1))[0]

    def values_of(self, first: int, count: int) -> torch.Tensor:
        return self._view(self.place.take(first, count))

    def _view(self, values: torch.Tensor) -> torch.Tensor:
        return values.transpose(-2, -1) if self.turned else values


class Experts(torch.Tensor):
    """A part of a tensor that is converted in pieces, without bytes."""

    part: Part

    @staticmethod
    def __new__(cls, part: Part) -> Experts:
        shape = part.shape()
        experts: Experts = torch.Tensor._make_wrapper_subclass(
            cls, shape.size(), strides=shape.stride(), dtype=shape.dtype, device=part.place.device
        )
        experts.part = part
        return experts

    def __init__(self, part: Part) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:
        return f"Experts({tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if read_name(func) in PRODUCTS and any(isinstance(it, Experts) and it.multiplies_itself for it in args):
            return multiply_by_own_product(func, *args, **named)
        return torch._C._disabled_torch_function_impl(func, types, args, named)

    def announce(self, ends: Sequence[int]) -> None:
        """Asks for the experts that rows meet before the first product; `ends`: where the rows of each expert end."""
        if self.part.place.on_demand:
            self.part.place.ask(list(list_runs([0, *ends], gaps=False)))

    @property
    def multiplies_itself(self) -> bool:
        """True if its grouped products are not PyTorch's."""
        return self.part.product is not None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        operation = OPERATIONS.get(func._schema.name)
        if operation is None:
            raise NotImplementedError(f"experts that are converted in pieces were asked for {func}")
        return operation(func, *args, **(kwargs or {}))


def copy_view(_: Any, experts: Experts) -> Experts:
    return Experts(experts.part)


def transpose(_: Any, experts: Experts, first: int = 0, second: int = 1) -> Experts:
    dimensions = {first % experts.dim(), second % experts.dim()}
    if dimensions == {experts.dim() - 2, experts.dim() - 1}:
        return Experts(experts.part.turn())
    if len(dimensions) == 1:
        return Experts(experts.part)
    raise NotImplementedError("experts that are converted in pieces were turned among each other")


def select(_: Any, experts: Experts, dimension: int, index: int) -> Experts:
    if experts.dim() != 3 or dimension % 3:
        raise NotImplementedError("a row was asked for of experts that are converted in pieces")
    return Experts(experts.part.select(index))


def multiply(func: Any, *args: Any, **named: Any) -> Any:
    """A product with the matrix of one expert."""
    return func(*(it.part.values() if isinstance(it, Experts) else it for it in args), **named)


def multiply_by_own_product(func: Any, x: torch.Tensor, experts: Experts, offs: torch.Tensor, **named: Any) -> Any:
    product = experts.part.product
    if product is None or x.dim() != 2 or any(it is not None for it in named.values()):
        raise NotImplementedError(f"experts that have their own products were asked for another form of {func}")

    def multiply_plain(rows: torch.Tensor, values: torch.Tensor, ends: torch.Tensor) -> Any:
        return func(rows, values, offs=ends)

    return product.multiply(multiply_plain, x, replace(experts.part, product=None), offs)


def multiply_groups(func: Any, x: torch.Tensor, experts: Experts, offs: torch.Tensor, *args: Any, **named: Any) -> Any:
    """Rows of x, sorted by expert, times the matrix of each; `offs`: where the rows of each expert end."""
    if isinstance(x, Experts) or x.dim() != 2 or any(it is not None for it in (*args, *named.values())):
        raise NotImplementedError(f"experts that are converted in pieces were asked for another form of {func}")
    return multiply_runs(func, x, experts.part, offs, [0, *offs.tolist()])


def multiply_runs(
    func: Callable[..., Any], x: torch.Tensor, part: Part, offs: torch.Tensor, ends: Sequence[int]
) -> torch.Tensor:
    """The product of `multiply_groups`, without adapters. `func`: makes it of a few experts on a device."""
    product = x.new_empty(x.shape[0], part.shape().shape[2])
    runs = list(list_runs(ends, gaps=not part.place.on_demand))
    part.place.ask(runs)
    for first, count in runs:
        begin, end = ends[first], ends[first + count]
        rows, out, values = x[begin:end], product[begin:end], part.values_of(first, count)
        if x.is_cpu:
            multiply_one_by_one(rows, values, [it - begin for it in ends[first : first + count + 1]], out)
        else:
            multiply_at_once(func, rows, values, offs[first : first + count] - begin, out)
    return product


def multiply_one_by_one(x: torch.Tensor, values: torch.Tensor, ends: Sequence[int], out: torch.Tensor) -> None:
    """A run of experts, as PyTorch multiplies them on CPUs, and without temporaries."""
    for number, (begin, end) in enumerate(pairwise(ends)):
        if end > begin:
            multiply_matrices(x[begin:end], values[number], out=out[begin:end])


def multiply_at_once(func: Any, x: torch.Tensor, values: torch.Tensor, offs: torch.Tensor, out: torch.Tensor) -> None:
    """A run of experts by one grouped product."""
    out.copy_(func(x, values, offs))


def multiply_back(
    _: Any, x: torch.Tensor, experts: Experts, offs: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the library's product for GPUs without one of PyTorch's. The gradient of frozen experts is
    nobody's."""
    of_x = multiply_groups(torch.ops.transformers.grouped_mm_fallback, gradient, transpose(None, experts, 1, 2), offs)
    if not experts.part.place.trains:
        return of_x, gradient.new_zeros(()).expand(experts.shape)
    of_experts = make_zeros(None, experts)
    for number, (begin, end) in enumerate(pairwise([0, *offs.tolist()])):
        if end > begin:
            torch.mm(x[begin:end].t(), gradient[begin:end], out=of_experts[number])
    return of_x, of_experts


def make_zeros(_: Any, experts: Experts, **_named: Any) -> torch.Tensor:
    """A plain tensor of the experts' shape and strides, such as their gradient."""
    shape = experts.part.shape()
    zeros = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device=experts.part.place.device)
    return zeros.zero_()


def list_runs(ends: Sequence[int], gaps: bool = True) -> Iterator[tuple[int, int]]:
    """First and number of experts that are converted at once: those that have rows, and with `gaps` others between
    these."""
    met = [number for number, (begin, end) in enumerate(pairwise(ends)) if end > begin]
    while met:
        first = met[0]
        run = [number for i, number in enumerate(met) if number < first + AT_ONCE and (gaps or number == first + i)]
        yield first, run[-1] + 1 - first
        met = met[len(run) :]


OPERATIONS: dict[str, Callable[..., Any]] = {  # by the name of PyTorch's operation
    "aten::detach": copy_view,
    "aten::alias": copy_view,
    "aten::t": transpose,
    "aten::transpose": transpose,
    "aten::select": select,
    "aten::zeros_like": make_zeros,
    "aten::mm": multiply,
    "aten::addmm": multiply,
    "aten::_grouped_mm": multiply_groups,
    "transformers::grouped_mm_fallback": multiply_groups,
    "transformers::grouped_mm_fallback_backward": multiply_back,
}
