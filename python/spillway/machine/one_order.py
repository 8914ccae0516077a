"""Kernels of a GPU that add in one order, so that the same step has the same bits each time.

PyTorch refuses products in one order unless CUBLAS_WORKSPACE_CONFIG is set, which it looks for at the first product of
the process alone. The order itself comes from elsewhere: PyTorch gives cuBLAS memory to work in for each stream and
thread, which is one of the ways that NVIDIA names (cuBLAS, "Results Reproducibility"). So a process that multiplied
before without the variable need not start again. PyTorch then only warns where it would refuse. As it picks another
kernel of attention in that case, attention alone is asked for as strictly as ever.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def one_order(device: torch.device) -> Iterator[None]:
    """PyTorch takes kernels that add in one order, and is as it was afterwards."""
    of_memory = torch.utils.deterministic
    were = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = of_memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    of_memory.fill_uninitialized_memory = False
    try:
        if agree_with_cublas(device):
            yield
        else:
            with products_unchecked():
                yield
    finally:
        torch.use_deterministic_algorithms(were[0], warn_only=were[1])
        of_memory.fill_uninitialized_memory = filled


@functools.cache
def agree_with_cublas(device: torch.device) -> bool:
    """Called where PyTorch takes one order. False: it refuses products, since it has looked for the variable before.

    Where nobody has set the variable, it is there for PyTorch's look alone: cuBLAS reads it at every product (beside an
    H200 a product took 70 us of the host instead of 12)."""
    given = CUBLAS in os.environ
    if not given:
        torch.cuda.current_blas_handle()  # of this thread, which reads the variable when it is made
        os.environ[CUBLAS] = ":4096:8"
    one = torch.ones(1, 1, device=device)
    try:
        torch.mm(one, one)
    except RuntimeError as refused:
        if CUBLAS not in str(refused):
            raise
        return False
    finally:
        if not given:
            del os.environ[CUBLAS]
    return True


@contextmanager
def products_unchecked() -> Iterator[None]:
    """Inside `one_order`: PyTorch lets products pass, and warns of operations that add in any order by their names."""
    attend = functional.scaled_dot_product_attention
    warnings.filterwarnings("ignore", message=f"(?s).*{CUBLAS}")
    torch.use_deterministic_algorithms(True, warn_only=True)
    functional.scaled_dot_product_attention = functools.partial(attend_in_one_order, attend)  # of all threads
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = attend


def attend_in_one_order(
    attend: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *more: Any,
    **said: Any,
) -> torch.Tensor:
    """`attend`, forward and backward in one order."""
    states = EndOfOrder.apply(query, key, value)
    torch.use_deterministic_algorithms(True)
    try:
        output = attend(*states, *more, **said)
    except RuntimeError as refused:
        if CUBLAS not in str(refused):
            raise
        output = None  # attention made of products has no kernel to choose
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)
    return attend(query, key, value, *more, **said) if output is None else BeginOfOrder.apply(output)


class BeginOfOrder(torch.autograd.Function):
    """After attention; the backward pass comes here first."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        return gradient


class EndOfOrder(torch.autograd.Function):
    """Before attention; the backward pass comes here when it has all gradients of attention."""

    @staticmethod
    def forward(ctx: Any, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(state.view_as(state) for state in states)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.use_deterministic_algorithms(True, warn_only=True)
        return gradients
