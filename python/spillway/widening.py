"""A model of bf16 or fp16 parameters that multiplies in fp32: `spillway.optim.widen`.

What the engine does with a run's blocks, for a loop that is not Spillway's: parameters, gradients and what is saved
stay as they are, and each module finds its own parameters widened while it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from spillway.errors import InputError
from spillway.machine import products

NARROW = {torch.bfloat16: "bf16", torch.float16: "fp16"}
Own = tuple[str, nn.Parameter]  # of a module: name and parameter


@dataclass
class Widened:
    """What `widen` has made of a model."""

    compute_dtype: str  # what its modules multiply in
    why: str
    _handles: list[RemovableHandle] = field(default_factory=list, repr=False)

    def remove(self) -> None:
        """The model computes in the type of its parameters again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def widen(model: nn.Module, compute_dtype: str = "auto") -> Widened:
    """Lets `model`, whose parameters are bf16 or fp16 tensors in host memory, multiply in `compute_dtype`: theirs,
    `fp32`, or with `auto` the faster on these CPUs, measured here. InputError for another one, or where a model
    has both types.

    With fp32 the copies of a module's parameters are there while it computes, and until its backward pass where
    autograd keeps them: with gradient checkpointing of one layer at a time, else of all. Activations are fp32.
    Gradients are of the parameters' type, rounded from fp32 once for each use.
    """
    kept = type_of(model)
    computes, why = settled(kept, compute_dtype)
    widened = Widened(computes, why)
    if computes != kept:
        for module in model.modules():
            if narrow_ones(module):
                widened._handles.append(module.register_forward_pre_hook(put))
                widened._handles.append(module.register_forward_hook(take, always_call=True))
    return widened


def type_of(model: nn.Module) -> str:
    """The parameters' one type of 16 bits; fp32 where they have none."""
    found = sorted({NARROW[parameter.dtype] for parameter in model.parameters() if parameter.dtype in NARROW})
    if len(found) > 1:
        raise InputError(f"widen: the model has parameters of {' and '.join(found)}; give it one of the two")
    return found[0] if found else "fp32"


def settled(kept: str, asked: str) -> tuple[str, str]:
    if asked not in ("auto", "fp32", kept):
        raise InputError(f"compute_dtype: got {asked!r} for parameters of {kept}, expects auto, fp32 or {kept}")
    if asked != "auto":
        return asked, "as it was given"
    if kept == "fp32":
        return kept, "as parameters are kept"
    rates = products.measured(kept)
    return rates.faster(kept), rates.words(kept)


def narrow_ones(module: nn.Module) -> list[Own]:
    return [(name, it) for name, it in module.named_parameters(recurse=False) if it.dtype in NARROW]


def put(module: nn.Module, _: Any) -> None:
    """An attribute of the instance is found before its parameter of the same name, which stays where it is."""
    for name, parameter in narrow_ones(module):
        module.__dict__[name] = parameter.float()


def take(module: nn.Module, *_: Any) -> None:
    for name, _parameter in narrow_ones(module):
        module.__dict__.pop(name, None)
