"""The passes of layers with LoRA adapters, in place of PEFT's own: a linear layer (PEFT's `Linear`), with DoRA or
without, and experts that are fused into one parameter (PEFT's `ParamWrapper`).

PEFT computes base(x) + B(A(dropout(x))) * scaling with two passes over memory as large as the output. Here the product
with B adds to the base's output in its epilogue, and the narrow A(x) is scaled. Without dropout a product adds the
adapter's part of the input's gradient, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from spillway.model.layers.adapted_pieces import add_factors
from spillway.model.layers.linear_pass import filler_of, is_plain, open_sum
from spillway.model.layers.pieces import Experts
from spillway.model.layers.weight_sums import WeightSum, weight_gradient


class AdaptedLinear(torch.autograd.Function):
    """hidden [..., columns] to [..., rows]. `dropped`: the result of dropout on it; None: there is no dropout.
    weight [rows, columns] and bias [rows] are frozen. to_narrow [r, columns], to_wide [rows, r]. `sums`: take the
    gradients of these two; None: autograd does. `filler`: stands for the output, which is not computed."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        dropped: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        to_narrow: torch.Tensor,
        to_wide: torch.Tensor,
        scaling: float,
        filler: float | None,
        sums: tuple[WeightSum | None, WeightSum | None],
    ) -> torch.Tensor:
        tokens = (hidden if dropped is None else dropped).flatten(0, -2)
        narrow = tokens.mm(to_narrow.t()).mul_(scaling)
        ctx.save_for_backward(tokens, narrow, weight, to_narrow, to_wide)
        ctx.shape, ctx.has_dropout, ctx.scaling, ctx.sums = hidden.shape, dropped is not None, scaling, sums
        if filler is not None:
            return hidden.new_full((), filler).expand(*hidden.shape[:-1], weight.shape[0])
        out = nn.functional.linear(hidden, weight, bias)
        out.view(-1, weight.shape[0]).addmm_(narrow, to_wide.t())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        tokens, narrow, weight, to_narrow, to_wide = (saved.detach() for saved in ctx.saved_tensors)
        wants = ctx.needs_input_grad
        dy = gradient.flatten(0, -2)
        of_narrow = dy.mm(to_wide).mul_(ctx.scaling)
        of_hidden = dy.mm(weight) if wants[0] else None
        of_dropped = None
        if ctx.has_dropout:
            of_dropped = of_narrow.mm(to_narrow).view(ctx.shape) if wants[1] else None
        elif of_hidden is not None:
            of_hidden.addmm_(of_narrow, to_narrow)
        sum_of_narrow, sum_of_wide = ctx.sums
        of_to_narrow = weight_gradient(of_narrow, tokens, sum_of_narrow) if wants[4] else None
        of_to_wide = weight_gradient(dy, narrow, sum_of_wide) if wants[5] else None
        of_hidden = None if of_hidden is None else of_hidden.view(ctx.shape)
        return of_hidden, of_dropped, None, None, of_to_narrow, of_to_wide, None, None, None


@dataclass(frozen=True)
class AdapterForward:
    """Stands for the forward of a PEFT `Linear` with one adapter."""

    module: Any
    adapter: str

    def __call__(self, hidden: torch.Tensor, *positional: Any, **named: Any) -> torch.Tensor:
        module, name = self.module, self.adapter
        base, narrow, wide = module.base_layer, module.lora_A[name], module.lora_B[name]
        if positional or named or not self._is_known(hidden, base, narrow, wide):
            own: torch.Tensor = type(module).forward(module, hidden, *positional, **named)
            return own
        dropout = module.lora_dropout[name]
        does_drop = isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0
        out: torch.Tensor = AdaptedLinear.apply(
            hidden,
            dropout(hidden) if does_drop else None,
            base.weight,
            base.bias,
            narrow.weight,
            wide.weight,
            module.scaling[name],
            filler_of(base),
            (open_sum(narrow), open_sum(wide)),
        )
        return out

    def _is_known(self, hidden: torch.Tensor, base: Any, narrow: Any, wide: Any) -> bool:
        """True if the layer is the plain form, with outputs that are all computed or all left out."""
        module, types = self.module, {hidden.dtype, base.weight.dtype, narrow.weight.dtype, wide.weight.dtype}
        is_active = list(module.active_adapters) == [self.adapter]
        is_adapted = is_active and not module.disable_adapters and not module.merged
        dropout = module.lora_dropout[self.adapter]
        return (
            is_adapted
            and self.adapter not in module.lora_variant
            and isinstance(dropout, nn.Identity | nn.Dropout)
            and is_frozen(base)
            and is_plain(narrow)
            and is_plain(wide, may_be_left_out=True)
            and filler_of(base) == filler_of(wide)
            and len(types) == 1
            and hidden.dim() >= 2
        )


@dataclass(frozen=True)
class MagnitudeForward:
    """Stands for the forward of a PEFT `Linear` with one adapter of DoRA: magnitude * (W + BA) / |W + BA|, row by row.
    The lengths of the rows count as constants in backward. PEFT makes BA by a product of the adapter's layers with a
    unit matrix; here their weights are multiplied."""

    module: Any
    adapter: str

    def __call__(self, hidden: torch.Tensor, *positional: Any, **named: Any) -> torch.Tensor:
        module, name = self.module, self.adapter
        if positional or named or module.disable_adapters or module.merged:
            own: torch.Tensor = type(module).forward(module, hidden, *positional, **named)
            return own
        base, narrow, wide, scaling = module.base_layer, module.lora_A[name], module.lora_B[name], module.scaling[name]
        weight = base.weight.t() if module.fan_in_fan_out else base.weight
        with torch.no_grad():
            whole = torch.addmm(weight, wide.weight, narrow.weight, alpha=scaling)
            lengths = torch.linalg.norm(whole, dim=1).to(weight.dtype)
        share = module.lora_magnitude_vector[name].weight / lengths
        out: torch.Tensor = base(hidden)
        dropout = module.lora_dropout[name]
        if isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0:
            hidden = dropout(hidden)
            product = nn.functional.linear(hidden, weight)
        else:
            product = out if base.bias is None else out - base.bias
        return out + (share - 1) * product + share * wide(narrow(hidden)) * scaling


@dataclass(frozen=True)
class ExpertsForward:
    """Stands for the forward of a PEFT `ParamWrapper`, which parametrises a parameter; the engine binds plain tensors.
    While the module runs, the sum of the base and its adapter stands in for the parameter. The sum and its gradient
    are each as large as the parameter. Neither is made of experts in pieces."""

    module: Any
    adapter: str

    def __call__(self, *positional: Any, **named: Any) -> Any:
        module = self.module
        if module.disable_adapters or module.merged:
            return type(module).forward(module, *positional, **named)
        owner, name = module.get_base_layer(), module.parameter_name
        frozen = owner._parameters[name]
        owner._parameters[name] = add_adapter(module, frozen, self.adapter)
        try:
            return module.base_layer(*positional, **named)
        finally:
            owner._parameters[name] = frozen


def add_adapter(module: Any, frozen: torch.Tensor, adapter: str) -> Any:
    """The sum of a parameter and its adapter, as PEFT makes it."""
    if not hasattr(module, "get_delta_factors"):  # releases of PEFT that make the product first
        return frozen + module.get_delta_weight(adapter)
    left, right, scaling = module.get_delta_factors(adapter)
    if isinstance(frozen, Experts):
        return add_factors(frozen, left, right, scaling)
    return torch.baddbmm(frozen, left, right, alpha=scaling)


def is_frozen(linear: Any) -> bool:
    """True if the layer is a product with a frozen weight, and at most a frozen bias beside it."""
    is_bare = type(linear) is nn.Linear and not (linear._forward_hooks or linear._forward_pre_hooks)
    return is_bare and not any(parameter.requires_grad for parameter in linear.parameters())


def replace_forwards(modules: Iterable[nn.Module], adapter: str) -> None:
    """Gives each PEFT `Linear` and `ParamWrapper` the pass of this module."""
    from peft.tuners.lora import Linear
    from peft.tuners.lora.layer import ParamWrapper

    for module in modules:
        if type(module) is Linear and module.use_dora.get(adapter):
            module.forward = MagnitudeForward(module, adapter)  # type: ignore[assignment]
        elif type(module) is Linear:
            module.forward = AdapterForward(module, adapter)  # type: ignore[assignment]
        elif type(module) is ParamWrapper:
            module.forward = ExpertsForward(module, adapter)  # type: ignore[assignment]
