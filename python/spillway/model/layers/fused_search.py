"""Which parts of a layer the engine's kernels stand for, found by trying each on the CPU with random weights.

A norm, an MLP or a rotation is one of these where it gives what the kernels give but for the order of additions, with
the same roundings in bf16, whatever its class.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from spillway.model.layers.fused import ROTARY, Fusions, NormForm
from spillway.model.layers.fused_mlp import GateForm

WITHIN = 1e-5  # relative to the largest element, in fp32
HIDDEN, INNER = 6, 10  # of the MLP that is tried
# Errors of code that is given one tensor and asks for more, or for another shape.
UNLIKE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def find_fusions(layer: nn.Module) -> Fusions:
    """The parts of a layer, whose parameters may lie on meta. The layer stays as it is."""
    fusions, known = Fusions(), dict[Any, NormForm | None]()
    with _disable_current_modes(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(20)
        for module in layer.modules():
            if (weight := only_weight(module)) is not None:
                key = (type(module), module._parameters[weight].shape, settings(module))  # type: ignore[union-attr]
                if key not in known:
                    known[key] = norm_form(module, weight)
                if (form := known[key]) is not None:
                    fusions.norms[module] = form
            elif (gates := gate_form(module)) is not None:
                fusions.gates[module] = gates
        names = {type(module).__module__ for module in layer.modules()}
        fusions.rotations = sorted(name for name in names if is_rotation(getattr(sys.modules.get(name), ROTARY, None)))
    return fusions


# ---- norms


def only_weight(module: nn.Module) -> str | None:
    """The name of a vector that is all a module has."""
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    alone = len(own) == 1 and not module._modules and not module._buffers
    return own[0] if alone and module._parameters[own[0]].dim() == 1 else None  # type: ignore[union-attr]


def settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in vars(module).items() if isinstance(value, bool | int | float | str))


def epsilons(module: nn.Module) -> list[float]:
    return sorted({value for value in vars(module).values() if isinstance(value, float)})


def norm_form(module: nn.Module, weight: str) -> NormForm | None:
    columns = module._parameters[weight].numel()  # type: ignore[union-attr]
    values = torch.randn(4, columns) * torch.tensor([2.0, 1.0, 1e-2, 1e-3])[:, None]  # of the least epsilon counts
    scale = torch.randn(columns)
    for epsilon, offset, early in itertools.product(epsilons(module), (0.0, 1.0), (False, True)):
        form = NormForm(weight, epsilon, offset, early)
        if all(matches_form(module, form, values.to(kind), scale.to(kind)) for kind in (torch.float32, torch.bfloat16)):
            return form
    return None


def matches_form(module: nn.Module, form: NormForm, values: torch.Tensor, scale: torch.Tensor) -> bool:
    trial = copy.copy(module)
    trial._parameters = {form.weight: nn.Parameter(scale, requires_grad=False)}
    return is_same(attempt(trial.forward, values), plain_norm(form, values, scale))


def plain_norm(form: NormForm, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The kernels' computation, written in PyTorch."""
    wide = values.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + form.epsilon)
    if form.rounds_early:
        normal = normal.to(values.dtype).float()
    return (normal * (form.offset + scale.float())).to(values.dtype)


# ---- MLPs


def gate_form(module: nn.Module) -> GateForm | None:
    linears = {name: child for name, child in module._modules.items() if hasattr(child, "in_features")}
    others = [child for name, child in module._modules.items() if name not in linears and child is not None]
    if len(linears) != 3 or module._parameters or any(True for child in others for _ in child.parameters()):
        return None
    forms = (GateForm(*names) for names in itertools.permutations(linears))
    return next((form for form in forms if fits_together(linears, form) and is_gated(module, linears, form)), None)


def fits_together(linears: dict[str, Any], form: GateForm) -> bool:
    gate, up, down = (linears[name] for name in (form.gate, form.up, form.down))
    inner = gate.out_features == up.out_features == down.in_features
    return bool(inner and gate.in_features == up.in_features == down.out_features)


def is_gated(module: nn.Module, linears: dict[str, Any], form: GateForm) -> bool:
    """Tried with small layers in place of the module's own."""
    trial = copy.copy(module)
    for kind in (torch.float32, torch.bfloat16):
        small = {
            name: nn.Linear(
                *((INNER, HIDDEN) if name == form.down else (HIDDEN, INNER)), bool(has_bias(it)), dtype=kind
            )
            for name, it in linears.items()
        }
        trial._modules = {**module._modules, **small}
        hidden = torch.randn(1, 7, HIDDEN).to(kind)
        gate, up, down = (small[name] for name in (form.gate, form.up, form.down))
        if not is_same(attempt(trial.forward, hidden), down(nn.functional.silu(gate(hidden)) * up(hidden))):
            return False
    return True


def has_bias(linear: Any) -> bool:
    return getattr(linear, "bias", None) is not None


# ---- rotations


def is_rotation(function: Any) -> bool:
    """True if a function of queries, keys and tables turns both as the kernels do."""
    if not callable(function):
        return False
    for kind in (torch.float32, torch.bfloat16):
        queries, keys, cosines, sines = (
            torch.randn(shape).to(kind) for shape in ((2, 3, 5, 8), (2, 1, 5, 8), (2, 5, 8), (2, 5, 8))
        )
        rotated = attempt(function, queries, keys, cosines, sines)
        expected = [turn(heads, cosines, sines) for heads in (queries, keys)]
        if not isinstance(rotated, tuple) or len(rotated) != 2 or not all(map(is_same, rotated, expected)):
            return False
    return True


def turn(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    low, high = heads.chunk(2, -1)
    return heads * cosines[:, None] + torch.cat((-high, low), -1) * sines[:, None]


# ---- trials


def attempt(call: Callable[..., Any], *given: torch.Tensor) -> Any:
    """The result of a call; None if it raises."""
    try:
        return call(*given)
    except UNLIKE:
        return None


def is_same(found: Any, expected: torch.Tensor) -> bool:
    """Bit for bit in a narrow type, where another rounding would show; close in fp32."""
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype != torch.float32:
        return torch.equal(found, expected)
    return bool((found - expected).abs().max() <= WITHIN * expected.abs().max())


def list_fusions(layers: Iterable[nn.Module]) -> list[str]:
    """Names, for a person, of the parts that any of the layers has."""
    words = {word: None for layer in layers for word in find_fusions(layer).words}
    return list(words)
