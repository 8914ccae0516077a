"""RMSNorm, SwiGLU and rotary embedding by the engine's kernels, in place of a layer's own modules on a GPU.

PyTorch runs each as many small kernels, each of which reads and writes whole activations. The engine's take one pass
over memory forward, and two at most backward. They round where the model's code rounds, and add in another order. A
search by trying (`fused_search`) says which modules these are. All others keep their own code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from spillway.model.layers.fused_mlp import GateForm, gate_forward
from spillway.model.layers.kernels import Forward, Kernels, has_known_type
from spillway.model.layers.residual import Residual, resolve_arguments

TILE = 16  # rows of which a weight's gradient is summed at once (device/fused.h)
ROTARY = "apply_rotary_pos_emb"  # the name of transformers' function, in every file of a model


@dataclass(frozen=True)
class NormForm:
    """How a norm computes."""

    weight: str  # its parameter
    epsilon: float
    offset: float  # added to the weight
    rounds_early: bool  # to the type of the hidden state, before the weight multiplies


@dataclass
class Fusions:
    """The parts of a module that run in the engine's kernels."""

    norms: dict[nn.Module, NormForm] = field(default_factory=dict)
    gates: dict[nn.Module, GateForm] = field(default_factory=dict)
    rotations: list[str] = field(default_factory=list)  # Python modules whose function rotates heads

    @property
    def words(self) -> list[str]:
        """Names of the parts, for a person."""
        parts = (("RMSNorm", self.norms), ("SwiGLU", self.gates), ("rotary embedding", self.rotations))
        return [name for name, fused in parts if fused]

    def forwards(self, kernels: Kernels) -> dict[Any, Forward]:
        """The function that runs in place of a module's own forward, by module."""
        norms = {module: norm_forward(module, form, kernels) for module, form in self.norms.items()}
        return norms | {module: gate_forward(module, form, kernels) for module, form in self.gates.items()}

    @contextmanager
    def rotating(self, kernels: Kernels) -> Iterator[None]:
        """Inside, the functions rotate by the kernels."""
        own = {name: getattr(sys.modules[name], ROTARY) for name in self.rotations}
        for name, function in own.items():
            setattr(sys.modules[name], ROTARY, rotary_forward(function, kernels))
        try:
            yield
        finally:
            for name, function in own.items():
                setattr(sys.modules[name], ROTARY, function)


def norm_forward(module: nn.Module, form: NormForm, kernels: Kernels) -> Forward:
    own = resolve_arguments(module.forward)

    def forward(*positional: Any, **named: Any) -> Any:
        weight = module._parameters[form.weight]
        assert weight is not None
        hidden = Residual.wrap(positional[0]) if len(positional) == 1 and not named else None
        if hidden is None or not has_known_type(hidden.first, weight):
            return own(*positional, **named)
        return hidden.pass_through(partial(norm_of_sum, weight, form, kernels))

    return forward


def norm_of_sum(
    weight: torch.Tensor, form: NormForm, kernels: Kernels, values: torch.Tensor, addend: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of values + addend, and that sum. None: of the values."""
    other = None if addend is None else addend.contiguous()
    return RmsNorm.apply(values.contiguous(), other, weight, form, kernels)  # type: ignore[no-any-return]


def rotary_forward(own: Forward, kernels: Kernels) -> Forward:
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *others: Any, **named: Any
    ) -> Any:
        if others or named or not all(can_rotate(heads, cos, sin) for heads in (q, k)):
            return own(q, k, cos, sin, *others, **named)
        return Rotary.apply(q, cos, sin, kernels), Rotary.apply(k, cos, sin, kernels)

    return rotate


def can_rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> bool:
    """True if tables have an angle for every element of a token's heads, as kernels read them."""
    if heads.dim() != 4 or cosines.dim() != 3 or sines.shape != cosines.shape or sines.stride() != cosines.stride():
        return False
    sequences, _, tokens, size = heads.shape
    tables = cosines.shape[0] in (1, sequences) and tuple(cosines.shape[1:]) == (tokens, size)
    learned = cosines.requires_grad or sines.requires_grad
    side_by_side = heads.stride(-1) == 1 and cosines.stride(-1) == 1
    return (
        tables
        and side_by_side
        and size % 2 == 0
        and not learned
        and has_known_type(heads, cosines)
        and has_known_type(heads, sines)
    )


class RmsNorm(torch.autograd.Function):
    """The norm of values + addend, contiguous both, and the sum, which backward normalises again. Without an addend the
    sum is the values themselves."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        addend: torch.Tensor | None,
        weight: torch.Tensor,
        form: NormForm,
        kernels: Kernels,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.form, ctx.kernels, ctx.is_of_sum = form, kernels, addend is not None
        out, sum = torch.empty_like(values), values
        more = {}
        if addend is not None:
            sum = torch.empty_like(values)
            more = {"addend": addend.detach(), "sum": sum}
        kernels.rms_norm(values.detach(), weight.detach(), out, form.epsilon, form.offset, form.rounds_early, **more)
        ctx.save_for_backward(sum, weight)
        return out, sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor | None, skip_gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return skip_gradient, skip_gradient if ctx.is_of_sum else None, None, None, None
        values, weight = (saved.detach() for saved in ctx.saved_tensors)
        form, columns, rows = ctx.form, weight.numel(), values.numel() // weight.numel()
        out = torch.empty_like(values)
        scales = torch.empty(rows, 2, dtype=torch.float32, device=values.device)
        sums = to_weight = None
        if ctx.needs_input_grad[2]:
            sums = torch.empty(-(-rows // TILE), columns, dtype=torch.float32, device=values.device)
            to_weight = torch.empty_like(weight)
        made = (values, weight, gradient.contiguous(), scales, out, sums, to_weight)
        more = {} if skip_gradient is None else {"skip_gradient": skip_gradient.contiguous()}
        ctx.kernels.rms_norm_backward(*made, form.epsilon, form.offset, form.rounds_early, **more)
        return out, out if ctx.is_of_sum else None, to_weight, None, None


class Rotary(torch.autograd.Function):
    """Heads [sequences, heads, tokens, size] turned by a token's angles; backward turns back."""

    @staticmethod
    def forward(
        ctx: Any, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, kernels: Kernels
    ) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        ctx.kernels = kernels
        return turn_heads(kernels, heads.detach(), cosines, sines, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        given = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        cosines, sines = ctx.saved_tensors
        return turn_heads(ctx.kernels, given, cosines, sines, True), None, None, None


def turn_heads(
    kernels: Kernels, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, backward: bool
) -> torch.Tensor:
    """The heads of a token lie beside each other, as a projection leaves them."""
    sequences, count, tokens, size = heads.shape
    out = torch.empty(sequences, tokens, count, size, dtype=heads.dtype, device=heads.device).transpose(1, 2)
    kernels.rotate(heads, cosines, sines, out, backward)
    return out
