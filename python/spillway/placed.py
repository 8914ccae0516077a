"""Tensors on NUMA nodes that the caller names: DRAM of either socket, CXL cards, or striped over several by weight.

What comes of `empty` is an ordinary tensor to everything else; its memory goes with the last reference to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spillway.base.calls import translated
from spillway.config.values import parse_size
from spillway.errors import InputError

if TYPE_CHECKING:
    import torch


def empty(
    shape: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    node: int | None = None,
    nodes: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    granularity: int | str | None = None,
    strict: bool = True,
    huge_pages: bool = True,
    pinned: bool = False,
) -> torch.Tensor:
    """A tensor on one node, or striped over several: page by page, or in pieces of `granularity` bytes ("8MiB"), evenly
    or by `weights`. It is zeroed, and every page of it is in place.

    `strict`: refused (DoesNotFit) when a node cannot hold its part; otherwise full nodes are passed over. InputError:
    a node that does not exist, is offline or not permitted to this process. `pinned`: also registered with PyTorch's
    current GPU, whose copies then run at the speed of the link.
    """
    import torch

    dtype = dtype or torch.get_default_dtype()
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise InputError(f"shape: {list(sizes)} has a negative size")
    gpu = current_gpu() if pinned else None
    chosen, shares, unit = placement_of(node, nodes, weights, granularity)
    count = math.prod(sizes)
    if count == 0:
        return torch.empty(sizes, dtype=dtype)
    from spillway._engine import place

    with translated():
        memory = place(count * dtype.itemsize, chosen, shares, unit, strict, huge_pages, gpu)
    found = torch.empty(0, dtype=dtype)
    return found.set_(torch.from_dlpack(memory).untyped_storage(), 0, sizes)  # a tensor in its own right, no view


def where(tensor: torch.Tensor) -> dict[int | None, int]:
    """Bytes of a tensor on each node, asked from the kernel page by page; None: bytes that are not in memory, because
    nothing was ever written there. Of a tensor that is not contiguous: from its first to its last element."""
    from spillway._engine import where as ask

    with translated():
        return {None if node < 0 else node: count for node, count in ask(*span(tensor))}


def move(
    tensor: torch.Tensor,
    *,
    node: int | None = None,
    nodes: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    granularity: int | str | None = None,
    strict: bool = True,
) -> None:
    """Moves a tensor's memory, whoever made it; its address stays, and so do views of it. Distributed as by `empty`.
    Pages at either end may hold other tensors' bytes, which move too. Where it does not fit, all stays as it is."""
    chosen, shares, unit = placement_of(node, nodes, weights, granularity)
    if not chosen:
        raise InputError("move: where to? node= or nodes= is missing")
    from spillway._engine import move as go

    with translated():
        go(*span(tensor), chosen, shares, unit, strict)


def placement_of(
    node: int | None, nodes: Sequence[int] | None, weights: Sequence[float] | None, granularity: int | str | None
) -> tuple[list[int], list[float], int]:
    if node is not None and nodes is not None:
        raise InputError("node and nodes: only one of them can be given")
    if nodes is not None and not list(nodes):
        raise InputError("nodes: an empty list")
    chosen = [node] if node is not None else list(nodes or [])
    if not chosen and (weights is not None or granularity is not None):
        raise InputError("weights and granularity: the nodes that they are for are missing (nodes=[...])")
    return chosen, [float(weight) for weight in weights or []], piece(granularity)


def piece(granularity: int | str | None) -> int:
    if granularity is None:
        return 0
    try:
        return parse_size(granularity)
    except ValueError:
        raise InputError(f"granularity: {granularity!r} is no size such as 8MiB") from None


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes from the first to the last element."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        kind = f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"{type(tensor).__name__}"
        raise InputError(f"only strided tensors in the host's memory lie on its nodes, not {kind}")
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def current_gpu() -> int:
    import torch

    if not torch.cuda.is_available():
        raise InputError("pinned: memory is pinned for a GPU, and PyTorch finds none here (torch.cuda.is_available())")
    return torch.cuda.current_device()
