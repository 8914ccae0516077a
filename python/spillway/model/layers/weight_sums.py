"""Weight gradients that a GPU's products add to the engine's fp32 sums.

Where a step sums gradients over several parts, a linear layer's backward pass would write its weight gradient in the
compute type, and the engine would read it and add it to a sum. Here the engine lends the sum, and the product adds to
it. Each part is in the sum without a rounding of its own; the sum is rounded once, as any other.

Configuration alone decides which layers do so: their shapes and types, the parts of a step, the kind of place and
PyTorch's version. Every other gradient goes through autograd's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.torch_version import TorchVersion

from spillway.machine.place import Place
from spillway.model.layers.digests import NoDigests

if TYPE_CHECKING:
    from spillway.model.layers.token_tiles import Parts

TYPES = (torch.bfloat16, torch.float16)
FIRST_VERSION = (2, 12)  # of PyTorch whose operation adds in place
SCHEMA = (
    "aten::addmm.dtype_out(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, "
    "Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)"
)

AddProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]


class Lender(Protocol):
    """The part of spillway._engine.Engine that lends sums."""

    def can_lend_sums(self) -> bool: ...
    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[Any, bool]: ...
    def end_sum(self, tensor: int, micro_batch: int) -> None: ...


def has_operation(version: str = torch.__version__) -> bool:
    """True if PyTorch has the product that adds to an fp32 sum in place."""
    overload = getattr(torch.ops.aten.addmm, "dtype_out", None)
    is_new = TorchVersion(version) >= FIRST_VERSION
    return is_new and overload is not None and str(overload._schema) == SCHEMA


def add_product(sum: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, first: bool) -> None:
    """Adds dy' x to an fp32 sum [rows, columns]. dy [tokens, rows] and x [tokens, columns] are of the compute type.
    `first`: the product overwrites the sum, which holds arbitrary bytes."""
    torch.addmm(sum, dy.t(), x, out_dtype=torch.float32, beta=0 if first else 1, out=sum)


def choose_product(place: Place, dtype: torch.dtype) -> AddProduct | None:
    """The product of layers that compute in this type; None: weight gradients go through autograd."""
    return add_product if place.on_gpu and dtype in TYPES and has_operation() else None


class WeightSums:
    """The engine's sums during one step."""

    def __init__(self, engine: Any, parts: Parts, product: AddProduct | None, shared: Collection[int] = ()) -> None:
        """`parts`: the part of a step that gradients are of. `shared`: numbers of tensors that several blocks use, and
        that have no sums; it may grow later."""
        self._engine: Lender = engine
        self._parts, self._product, self._shared = parts, product, shared
        self.digests = NoDigests()
        self.is_open = False  # products of the step add to sums

    def begin(self, training: bool) -> None:
        """Begins a step, which the engine has begun."""
        self.is_open = training and self._product is not None and self._engine.can_lend_sums()

    def add(self, tensor: int, dy: torch.Tensor, x: torch.Tensor) -> None:
        """Adds dy' x to the sum of a tensor, by the engine's number. dy [tokens, rows], x [tokens, columns]."""
        assert self._product is not None
        part = self._parts.now
        lent, first = self._engine.lend_sum(tensor, part)
        sum = lent if isinstance(lent, torch.Tensor) else torch.from_dlpack(lent)
        sum = sum.view(dy.shape[1], x.shape[1])
        self._product(sum, dy, x, first)
        self.digests.add_gradient(tensor, part, sum)
        self._engine.end_sum(tensor, part)

    def has_sum(self, tensor: int, weight: nn.Parameter) -> bool:
        """True if a product may add the weight's gradient. The weight is a trainable matrix of its block alone."""
        fits = self._product is not None and weight.requires_grad and weight.dim() == 2 and weight.dtype in TYPES
        return fits and tensor not in self._shared


@dataclass(frozen=True)
class StageSums:
    """The linear layers of a stage whose weights have sums."""

    sums: WeightSums
    tensors: Mapping[nn.Module, int]  # the engine's number of each one's weight

    def open_pass(self) -> dict[nn.Module, WeightSum]:
        """The sum of each linear layer for one pass of the stage or of a tile; empty where the step lends none."""
        if not self.sums.is_open:
            return {}
        return {linear: WeightSum(self.sums, tensor) for linear, tensor in self.tensors.items()}


class WeightSum:
    """The sum of one weight's gradient, for one pass."""

    def __init__(self, sums: WeightSums, tensor: int) -> None:
        self._sums, self._tensor = sums, tensor
        self._uses = 0

    def note_use(self) -> None:
        """The layer ran. A layer that runs several times in a pass has one gradient, which autograd adds up."""
        self._uses += 1

    def add(self, dy: torch.Tensor, x: torch.Tensor) -> bool:
        """Adds dy' x. False: the sum is unchanged."""
        if self._uses != 1:
            return False
        self._sums.add(self._tensor, dy, x)
        return True


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, sum: WeightSum | None) -> torch.Tensor | None:
    """dy' x of the compute type, for autograd; None where `sum` has it. dy [tokens, rows], x [tokens, columns]."""
    if sum is not None and sum.add(dy, x):
        return None
    return dy.t().mm(x)
