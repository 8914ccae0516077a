"""The sum around a layer's norms, made by the kernels of the norms.

A layer computes hidden + block(norm(hidden)), and the next norm is of that sum. While a layer runs, a `Residual` stands
for its hidden state. It holds a sum until something needs it. A norm that needs it makes it in its own pass over
memory, and adds up the gradients of both ways in its backward pass. Sums are rounded as they are without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from spillway.model.layers.kernels import Forward

SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
# Methods that Python looks up in the class, never by __getattr__.
OPERATORS = """sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod pow rpow matmul rmatmul neg pos abs invert
    and or xor lt le gt ge eq ne len iter bool int float index contains getitem setitem""".split()


class Residual:
    """A hidden state, or the sum of two. Everything but a sum with a tensor of its shape and type is done with the
    tensor itself, by PyTorch's protocol for what is not a tensor."""

    def __init__(self, tensor: torch.Tensor, addend: torch.Tensor | None = None) -> None:
        """`addend`: of the tensor's shape and type; None: the hidden state is the tensor."""
        self._tensor, self._addend = tensor, addend

    @classmethod
    def wrap(cls, hidden: Any) -> Residual:
        return hidden if isinstance(hidden, Residual) else cls(hidden)

    @property
    def first(self) -> torch.Tensor:
        """A tensor of the hidden state's shape and type."""
        return self._tensor

    def resolve(self) -> torch.Tensor:
        if self._addend is not None:
            self._tensor, self._addend = self._tensor + self._addend, None
        return self._tensor

    def pass_through(
        self, norm: Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
    ) -> Any:
        """The result of `norm` for the hidden state and its addend. The norm gives the sum, too, or the hidden state
        itself, through which gradients of all later uses reach it."""
        out, self._tensor = norm(self._tensor, self._addend)
        self._addend = None
        return out

    def add(self, other: Any) -> Any:
        tensor = self.resolve()
        other = resolve_value(other)
        fits = isinstance(other, torch.Tensor) and other.shape == tensor.shape and other.dtype == tensor.dtype
        return Residual(tensor, other) if fits else tensor + other

    __add__ = __radd__ = add

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in SUMS and len(args) == 2 and not kwargs:
            one, other = args
            return one.add(other) if isinstance(one, Residual) else other.add(one)
        return function(*tree_map(resolve_value, args), **tree_map(resolve_value, kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.resolve(), name)


def resolve_value(value: Any) -> Any:
    return value.resolve() if isinstance(value, Residual) else value


def make_operator(name: str) -> Callable[..., Any]:
    def operate(residual: Residual, *others: Any) -> Any:
        return getattr(residual.resolve(), name)(*map(resolve_value, others))

    return operate


for operator in OPERATORS:
    setattr(Residual, f"__{operator}__", make_operator(f"__{operator}__"))
Residual.__hash__ = object.__hash__  # type: ignore[method-assign]


def residual_forwards(
    layer: nn.Module, forwards: Mapping[Any, Forward], norms: Mapping[Any, Any]
) -> dict[Any, Forward]:
    """Replacements with which the layer's own code sums by its norms. `forwards`: of modules inside, by module.
    `norms`: those of them that know a `Residual`. Empty for a layer without such a child, or with a child that is a
    linear layer, whose forward has other replacements."""
    others = [child for child in layer.children() if child not in norms]
    if len(others) == len(list(layer.children())) or any(type(child) is nn.Linear for child in others):
        return {}
    return {child: resolve_arguments(forwards.get(child, child.forward)) for child in others} | {
        layer: wrap_hidden_state(layer.forward)
    }


def resolve_arguments(forward: Forward) -> Forward:
    def call(*positional: Any, **named: Any) -> Any:
        return forward(*map(resolve_value, positional), **{name: resolve_value(value) for name, value in named.items()})

    return call


def wrap_hidden_state(forward: Forward) -> Forward:
    """The forward of a layer whose hidden state comes first, or by the name that transformers gives it."""

    def call(*positional: Any, **named: Any) -> Any:
        if positional:
            positional = (Residual(positional[0]), *positional[1:])
        elif "hidden_states" in named:
            named = {**named, "hidden_states": Residual(named["hidden_states"])}
        results = forward(*positional, **named)
        return type(results)(map(resolve_value, results)) if type(results) in (tuple, list) else resolve_value(results)

    return call
