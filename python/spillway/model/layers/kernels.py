"""The engine's kernels for the arithmetic between a layer's products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

TYPES = (torch.bfloat16, torch.float16, torch.float32)
NAMES = ("rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "rotate")

Forward = Callable[..., Any]


class Kernels(Protocol):
    """The part of spillway._engine.Engine that computes between products."""

    def rms_norm(
        self,
        values: Any,
        weight: Any,
        out: Any,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        addend: Any = None,
        sum: Any = None,
    ) -> None: ...
    def rms_norm_backward(
        self,
        values: Any,
        weight: Any,
        gradient: Any,
        scales: Any,
        out: Any,
        sums: Any,
        to_weight: Any,
        epsilon: float,
        offset: float,
        rounds_early: bool,
        skip_gradient: Any = None,
    ) -> None: ...
    def swiglu(self, gate: Any, up: Any, out: Any) -> None: ...
    def swiglu_backward(
        self, gate: Any, up: Any, gradient: Any, to_gate: Any, to_up: Any, product: Any = None
    ) -> None: ...
    def rotate(self, heads: Any, cosines: Any, sines: Any, out: Any, backward: bool) -> None: ...


def has_known_type(one: Any, other: torch.Tensor) -> bool:
    """True if both tensors have one type that kernels know."""
    return isinstance(one, torch.Tensor) and one.dtype == other.dtype and one.dtype in TYPES
