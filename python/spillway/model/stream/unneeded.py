"""Linear layers whose outputs backward does not need, so that recomputation leaves them out.

Backward, a layer is recomputed for the values that its gradients are made of. The output of its last linear layers (the
down projection of an MLP, which is only added to the residual) is no such value: its product, a tenth of the layer's
forward pass and more, is left out. Which ones these are is found by trying: with its output replaced by NaN, every
gradient of the layer stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from spillway.model.layers.linear_pass import replace_linears
from spillway.model.meta.layer_arguments import Arguments


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
        with replace_linears([linear], float("nan")):
            gradients_without = gradients(layer, call, hidden)
    except RuntimeError:  # it is changed in place further on
        return False
    return all(
        a is not None and b is not None and torch.equal(a, b) for a, b in zip(expected, gradients_without, strict=True)
    )


def gradients(layer: nn.Module, call: Arguments, hidden: torch.Tensor) -> list[torch.Tensor | None]:
    leaf = hidden.detach().requires_grad_()
    output = call.call(layer, leaf)
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return list(torch.autograd.grad(output, [leaf, *layer.parameters()], seed, allow_unused=True))
