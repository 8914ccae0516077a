"""MLPs of the form down(silu(gate) * up) by the engine's kernels.

Where its three linear layers are plain, an MLP is one autograd function. It saves its input and the outputs of gate and
up. Backward makes the product of these once more, in the pass over memory that makes their gradients. The gradient of
the input is summed in the epilogue of its second product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from spillway.model.layers.kernels import Forward, Kernels, has_known_type
from spillway.model.layers.linear_pass import filler_of, is_plain, open_sum
from spillway.model.layers.weight_sums import WeightSum, weight_gradient


@dataclass(frozen=True)
class GateForm:
    """The linear layers of an MLP, by name: down(silu(gate) * up)."""

    gate: str
    up: str
    down: str


def gate_forward(module: nn.Module, form: GateForm, kernels: Kernels) -> Forward:
    own: Forward = module.forward

    def forward(*positional: Any, **named: Any) -> Any:
        if len(positional) != 1 or named:
            return own(*positional, **named)
        gate, up, down = (getattr(module, name) for name in (form.gate, form.up, form.down))
        if has_plain_layers(gate, up, down) and has_known_type(positional[0], down.weight):
            weights, sums = (gate.weight, up.weight, down.weight), [open_sum(linear) for linear in (gate, up, down)]
            return GatedMlp.apply(positional[0], *weights, kernels, filler_of(down), sums)
        gates, ups = gate(positional[0]), up(positional[0])
        if not has_known_type(gates, ups):
            return down(nn.functional.silu(gates) * ups)
        return down(SwiGlu.apply(gates.contiguous(), ups.contiguous(), kernels))

    return forward


def has_plain_layers(gate: nn.Module, up: nn.Module, down: nn.Module) -> bool:
    """True if calls of the layers are their products alone. `down` may be left out of a recomputation."""
    return is_plain(gate) and is_plain(up) and is_plain(down, may_be_left_out=True)


class GatedMlp(torch.autograd.Function):
    """hidden [..., columns] to the same shape. `filler`: stands for the output, which is not computed; None: it is.
    `sums`: take the gradients of the three weights; None: autograd does."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        to_gate: torch.Tensor,
        to_up: torch.Tensor,
        to_down: torch.Tensor,
        kernels: Kernels,
        filler: float | None,
        sums: list[WeightSum | None],
    ) -> torch.Tensor:
        gate, up = nn.functional.linear(hidden, to_gate), nn.functional.linear(hidden, to_up)
        ctx.save_for_backward(hidden, gate, up, to_gate, to_up, to_down)
        ctx.kernels, ctx.sums = kernels, sums
        if filler is not None:
            return hidden.new_full((), filler).expand(*hidden.shape[:-1], to_down.shape[0])
        product = torch.empty_like(gate)
        kernels.swiglu(gate, up, product)
        return nn.functional.linear(product, to_down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        hidden, gate, up, *weights = (saved.detach() for saved in ctx.saved_tensors)
        to_gate, to_up, to_down = weights
        wants = ctx.needs_input_grad
        dy, tokens = gradient.flatten(0, -2), hidden.flatten(0, -2)
        product = dy.mm(to_down)  # holds its gradient first
        of_gate, of_up = torch.empty_like(product), torch.empty_like(product)
        ctx.kernels.swiglu_backward(gate, up, product, of_gate, of_up, product if wants[3] else None)
        sum_of_gate, sum_of_up, sum_of_down = ctx.sums
        of_down_weight = weight_gradient(dy, product, sum_of_down) if wants[3] else None
        del product
        of_hidden = of_gate.mm(to_gate).addmm_(of_up, to_up).view(hidden.shape) if wants[0] else None
        of_gate_weight = weight_gradient(of_gate, tokens, sum_of_gate) if wants[1] else None
        of_up_weight = weight_gradient(of_up, tokens, sum_of_up) if wants[2] else None
        return of_hidden, of_gate_weight, of_up_weight, of_down_weight, None, None, None


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up of contiguous tensors."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kernels = kernels
        out = torch.empty_like(gate)
        kernels.swiglu(gate.detach(), up.detach(), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gate, up = (saved.detach() for saved in ctx.saved_tensors)
        to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
        ctx.kernels.swiglu_backward(gate, up, gradient.contiguous(), to_gate, to_up)
        return to_gate, to_up, None
