"""Writes down what PyTorch is asked to do, operation by operation, where nothing is computed (`trace`)."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spillway.model.measure.heap import Heap
from spillway.model.measure.libraries import Libraries

# Operations that make a tensor and touch none of its bytes.
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
COPIES = {"copy", "_to_copy", "clone"}
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# Operations that are as fast as another one, which a probe measures.
ALIKE = {
    **dict.fromkeys(("sub", "rsub", "where", "masked_fill", "eq", "ge", "lt"), "add"),
    **dict.fromkeys(("div", "neg", "rsqrt", "sigmoid_backward", "tanh_backward", "_softmax_backward_data"), "mul"),
    **dict.fromkeys(("zero", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like"), "fill"),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), "fill"),
    **dict.fromkeys(("clone", "_to_copy", "slice_backward", "select_backward"), "copy"),
    **dict.fromkeys(("amax", "mean"), "sum"),
    **dict.fromkeys(("index", "embedding", "gather"), "index_select"),
    **dict.fromkeys(("index_put", "scatter_add"), "index_add"),
    "sigmoid": "tanh",
    "_log_softmax": "_softmax",
    "stack": "cat",
}

ProductKey = tuple[str, int, int, int]  # which of a linear layer's three, tokens, inner, outer
AttentionKey = tuple[int, int, float, bool]  # tokens, size of a head, operations, backward
ElementKey = tuple[str, bool, int]  # operation, strided, bytes


@dataclass
class Operations:
    """Operations by kind, and their counts."""

    products: Counter[ProductKey] = field(default_factory=Counter)
    attention: Counter[AttentionKey] = field(default_factory=Counter)
    elements: Counter[ElementKey] = field(default_factory=Counter)
    calls: int = 0


class Recorder(TorchDispatchMode):
    """To be open inside of a FakeTensorMode. What follows from values is answered as if each expert of a layer were
    asked by as many tokens as the others, and as if everything else that is looked at were zero."""

    def __init__(
        self,
        heap: Heap,
        into: Callable[[], Operations],
        experts: int | None,
        libraries: Libraries | None = None,
    ) -> None:
        """`into`: where what is asked for now belongs. `experts`: of a layer; 1: it has none; None: all is computed.
        `libraries`: what products keep in the heap besides tensors; None: nothing."""
        super().__init__()
        self._heap, self._into, self._experts, self._libraries = heap, into, experts, libraries
        self._held: dict[int, weakref.ref[Any]] = {}  # storages that lie in the heap

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if self._experts is not None:
            if name == "_local_scalar_dense":
                return nothing(args[0].dtype)
            if name == "nonzero":
                return self._places(args[0], self._experts)
        given = tensors(args, kwargs)
        if name == "_grouped_mm" and self._experts is not None:  # whose rule of shapes knows bf16 alone
            made = grouped(args[0], args[1], self._experts)
        else:
            made = func(*args, **(kwargs or {}))
        self.note(name, func._schema.is_mutable, given, tensors(made), args)
        return made

    def note(
        self, name: str, changes: bool, given: Sequence[Any], made: Sequence[Any], args: Sequence[Any] = ()
    ) -> None:
        """An operation that was called. `changes`: some of what it was given."""
        if not (made or changes):  # a question about a tensor
            return
        there = {key_of(tensor) for tensor in given}
        new = [tensor for tensor in made if key_of(tensor) not in there]
        for tensor in new:
            self._take(tensor)
        into = self._into()
        into.calls += 1
        name = name.rstrip("_") if not name.startswith("_") else name
        if name in EMPTY or not (new or changes):
            return
        if name in PRODUCTS:
            first, second = args[:2] if name in ("mm", "bmm") else args[1:3]
            into.products[product_key(first, second)] += first.shape[0] if first.dim() == 3 else 1
            self._compile(first, second, 1)
        elif name == "_grouped_mm":
            self._grouped(into, given[0], given[1])
        elif name in (ATTENTION, ATTENTION + "_backward"):
            into.attention[attention_key(name, given, args)] += 1
        else:
            into.elements[element_key(name, given, made)] += 1

    def _grouped(self, into: Operations, first: Any, second: Any) -> None:
        """Products of each expert's tokens with its weight, or, of two matrices, the gradients of these weights."""
        groups = second.shape[0] if second.dim() == 3 else self._experts or 1
        self._compile(first, second, groups)
        if second.dim() == 3:
            rows = max(1, first.shape[-2] // groups)
            _, _, inner, outer = key = product_key(first, second)
            into.products[key[0], rows, inner, outer] += groups
        else:
            into.products["weight", max(1, first.shape[-1] // groups), second.shape[-1], first.shape[-2]] += groups

    def _compile(self, first: Any, second: Any, groups: int) -> None:
        """Products of so many groups of tokens. In a run each expert has another number of them, so another shape."""
        if self._libraries is None:
            return
        own = second.storage_offset() if (self._experts or 1) > 1 else 0
        key = (first.shape, first.stride(), second.shape, second.stride(), own)
        self._libraries.multiply(first.dtype, ((*key, group) for group in range(groups)))

    def _places(self, mask: Any, experts: int) -> Any:
        """The places where the mask is not zero: everywhere in a vector, in a matrix at those of one expert."""
        count = mask.numel() if mask.dim() < 2 else max(1, mask.numel() // experts)
        made = torch.empty(count, mask.dim(), dtype=torch.int64, device=mask.device)
        self._take(made)
        return made

    def _take(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._held:
            at = self._heap.take(storage.nbytes())
            self._held[key] = weakref.ref(storage, functools.partial(self._gone, key, at))

    def _gone(self, key: int, at: int, _: Any) -> None:
        del self._held[key]
        self._heap.give(at)


def grouped(first: Any, second: Any, experts: int) -> Any:
    """The result of aten::_grouped_mm."""
    shape = (first.shape[-2], second.shape[-1])
    both = first.dim() == second.dim()
    return first.new_empty((second.shape[0] if first.dim() == 3 else experts, *shape) if both else shape)


def nothing(dtype: torch.dtype) -> float | int | bool:
    """Zero, as Python has it."""
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


def tensors(*values: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def key_of(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def product_key(first: Any, second: Any) -> ProductKey:
    """The kind of a product [m, k] x [k, n], by which of both is turned: x W' makes the output, dY W the gradient of
    the input, dY' x that of the weight."""
    (m, k), n = first.shape[-2:], second.shape[-1]
    if first.stride(-2) == 1 and first.stride(-1) != 1:
        return "weight", k, n, m
    if second.stride(-2) == 1 and second.stride(-1) != 1:
        return "forward", m, k, n
    return "input", m, n, k


def attention_key(name: str, given: Sequence[Any], args: Sequence[Any]) -> AttentionKey:
    """Two products of queries and keys, half of them where the mask is causal; backward twice as many."""
    backward = name != ATTENTION
    query, key = given[1:3] if backward else given[:2]
    causal = next((arg for arg in args if isinstance(arg, bool)), False)
    sequences, heads, tokens, size = query.shape
    operations = 4.0 * sequences * heads * tokens * key.shape[-2] * size
    return tokens, size, operations * (0.5 if causal else 1.0) * (2 if backward else 1), backward


def element_key(name: str, given: Sequence[Any], made: Sequence[Any]) -> ElementKey:
    kind = ALIKE.get(name, name)
    if name in COPIES and len({tensor.dtype for tensor in (*given, *made)}) > 1:
        kind = "convert"
    if kind == "fill":
        touched = list(made)
    elif kind == "index_select":  # of what it is given it reads as much as it gives
        touched = [*made, *given[1:]]
    else:
        touched = [*given, *made]
    large = [tensor for tensor in touched if tensor.dim() > 1 and 0 not in tensor.stride()]
    bytes = sum({place_of(tensor): extent(tensor) for tensor in touched}.values())
    if kind == "index_select":
        bytes += sum(map(extent, made))
    if kind == "swiglu_backward":  # writes in place what it has read
        bytes = sum(map(extent, touched))
    return kind, any(not tensor.is_contiguous() for tensor in large), bytes


def place_of(tensor: Any) -> tuple[int, ...]:
    """The key of a tensor's place. An operation that writes in place was given that tensor, too."""
    return key_of(tensor), tensor.storage_offset(), tensor.numel()


def extent(tensor: Any) -> int:
    """Bytes of it that are touched: one that was expanded has fewer than it has elements."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def largest(named: Iterable[tuple[str, Any]], names: Sequence[str]) -> int:
    """The largest whole number that goes by one of these names; 1: there is none."""
    sizes = [value for name, value in named if name in names and isinstance(value, int)]
    return max(sizes, default=1)
