"""Linear layers whose outputs backward does not need, so that recomputation leaves them out.

Backward, a layer is recomputed for the values that its gradients are made of. The output of its last linear layers (the
down projection of an MLP, which is only added to the residual) is no such value: its product, a tenth of the layer's
forward pass and more, is left out. Which ones these are is found by trying: with its output replaced by NaN, every
gradient of the layer stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spillway.model.layer_arguments import Arguments


class Uncomputed(torch.autograd.Function):
    """A linear layer's backward pass. Forward it gives `filler` everywhere, and takes no memory for it; its product
    where that is None."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, filler: float | None
    ) -> Any:
        ctx.save_for_backward(hidden, weight)
        ctx.biased = bias is not None
        if filler is None:
            return nn.functional.linear(hidden, weight, bias)
        return hidden.new_full((), filler).expand(*hidden.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        wanted = ctx.needs_input_grad
        to_hidden = gradient.mm(weight).view(hidden.shape) if wanted[0] else None
        to_weight = gradient.t().mm(hidden.flatten(0, -2)) if wanted[1] else None
        return to_hidden, to_weight, gradient.sum(0) if ctx.biased and wanted[2] else None, None


@dataclass(frozen=True)
class LeftOut:
    """Stands for the forward of an nn.Linear whose output is not needed."""

    linear: Any
    filler: float | None  # in place of the product; None: it is made

    def __call__(self, hidden: torch.Tensor) -> Any:
        return Uncomputed.apply(hidden, self.linear.weight, self.linear.bias, self.filler)


@contextmanager
def uncomputed(linears: Sequence[nn.Module], filler: float | None = 0.0) -> Iterator[None]:
    """Inside, these nn.Linear leave out their product. With None they make it, and their backward pass is the same."""

    for linear in linears:
        linear.forward = LeftOut(linear, filler)
    try:
        yield
    finally:
        for linear in linears:
            del linear.forward


def find_unneeded(layers: Sequence[nn.Module], calls: Sequence[Arguments], hidden: torch.Tensor) -> frozenset[str]:
    """Names, within a layer, of the linear layers whose output no gradient of any of `layers` depends on.

    The layers hold real weights; `calls` are their arguments, `hidden` [rows, length, hidden] any input.
    """
    names = {name for layer in layers for name, module in layer.named_modules() if type(module) is nn.Linear}
    with all_learning(layers):
        return frozenset(
            name
            for name in names
            if all(holds(layer, name, call, hidden) for layer, call in zip(layers, calls, strict=True))
        )


@contextmanager
def all_learning(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, nothing is frozen: what is frozen in these layers may be trained in others of their kind."""
    frozen = [p for layer in layers for p in layer.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def holds(layer: nn.Module, name: str, call: Arguments, hidden: torch.Tensor) -> bool:
    """True when every gradient of the layer is bit for bit the same without this linear layer's output."""
    linear = dict(layer.named_modules()).get(name)
    if type(linear) is not nn.Linear:
        return False
    expected = gradients(layer, call, hidden)
    try:
        with uncomputed([linear], float("nan")):
            found = gradients(layer, call, hidden)
    except RuntimeError:  # it is changed in place further on
        return False
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def gradients(layer: nn.Module, call: Arguments, hidden: torch.Tensor) -> list[torch.Tensor | None]:
    leaf = hidden.detach().requires_grad_()
    output = call.call(layer, leaf)
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return list(torch.autograd.grad(output, [leaf, *layer.parameters()], seed, allow_unused=True))
