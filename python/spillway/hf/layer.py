"""One of the model's own layers on views of the engine's arena.

The engine changes the arena's bytes between visits, so nothing outlives a visit but the views themselves: they are
leaves without history, made once for every place at which the block's weights have lain.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import nn

from spillway.hf.prologue import Arguments
from spillway.hf.unneeded import uncomputed


@dataclass(frozen=True)
class Slot:
    """Where a parameter hangs in its module, and where its elements lie in its block."""

    owner: nn.Module
    name: str
    tensor: int  # the engine's number
    first: int  # element, counted from the block's start
    meta: nn.Parameter  # what hangs there while the layer is bound to no bytes


GradientSink = Callable[[int, torch.Tensor], None]  # tensor number, its gradient


class StreamedLayer:
    """A layer that can be bound to bytes, run, and run again backward."""

    def __init__(
        self, module: nn.Module, slots: list[Slot], sink: GradientSink, unneeded: Collection[str] = ()
    ) -> None:
        """`sink`, a bound method, is given every gradient as soon as autograd has it, and must not keep it.
        `unneeded`: linear layers, by name, that backward does not compute again.
        """
        self._module = module
        self._unneeded = [inner for name, inner in module.named_modules() if name in unneeded]
        self._slots = slots
        self._sink = sink
        self._leaves: dict[int, list[torch.Tensor]] = {}  # by the block's first element in the arena

    def bind(self, arena: torch.Tensor, first: int) -> None:
        """Makes the elements of `arena` (flat, compute type) from `first` on the layer's parameters."""
        leaves = self._leaves.get(first)
        if leaves is None:
            leaves = self._leaves[first] = [self._leaf(arena, first, slot) for slot in self._slots]
        for slot, leaf in zip(self._slots, leaves, strict=True):
            slot.owner._parameters[slot.name] = leaf  # type: ignore[assignment]

    def forward(self, hidden: torch.Tensor, arguments: Arguments) -> torch.Tensor:
        with torch.no_grad():
            return arguments.call(self._module, hidden)

    def backward(self, hidden: torch.Tensor, gradient: torch.Tensor, arguments: Arguments) -> None:
        """Recomputes the layer from its input; turns d loss / d output into d loss / d input, in place."""
        leaf = hidden.detach().requires_grad_()
        with torch.enable_grad(), uncomputed(self._unneeded):
            output = arguments.call(self._module, leaf)
        torch.autograd.backward(output, gradient)
        assert leaf.grad is not None
        gradient.copy_(leaf.grad)

    def release(self) -> None:
        """Lets go of the arena: the parameters are on meta again."""
        for slot in self._slots:
            slot.owner._parameters[slot.name] = slot.meta
        self._leaves.clear()

    def _leaf(self, arena: torch.Tensor, first: int, slot: Slot) -> torch.Tensor:
        begin, shape = first + slot.first, slot.meta.shape
        leaf = arena[begin : begin + shape.numel()].view(shape).detach().requires_grad_()
        # Autograd holds its hooks where Python's garbage collector does not look.
        sink = weakref.WeakMethod(self._sink)

        def hand_over(parameter: torch.Tensor) -> None:
            receive = sink()
            assert receive is not None and parameter.grad is not None
            receive(slot.tensor, parameter.grad.contiguous())
            parameter.grad = None

        leaf.register_post_accumulate_grad_hook(hand_over)
        return leaf


def slots_of(module: nn.Module, first_tensor: int, tensor_offset: Callable[[int], int]) -> list[Slot]:
    """Slots of a module's parameters, numbered from `first_tensor` on in the order of `parameters()`."""
    slots = []
    for number, (name, parameter) in enumerate(module.named_parameters(), start=first_tensor):
        owner, _, own = name.rpartition(".")
        slots.append(Slot(module.get_submodule(owner), own, number, tensor_offset(number), parameter))
    return slots
