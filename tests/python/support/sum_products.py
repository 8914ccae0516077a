"""Products that add weight gradients to fp32 sums on the host, where PyTorch has none
(spillway.model.layers.weight_sums)."""

from __future__ import annotations

import torch


def add_in_fp32(sum: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, first: bool) -> None:
    """The product as a GPU makes it: multiplied, added and kept in fp32."""
    add(sum, dy.t().float() @ x.float(), first)


def add_rounded(sum: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, first: bool) -> None:
    """The bits of a gradient that is handed over: each part is rounded to the compute type, and then added."""
    add(sum, (dy.t() @ x).float(), first)


def add(sum: torch.Tensor, product: torch.Tensor, first: bool) -> None:
    if first:
        sum.copy_(product)
    else:
        sum.add_(product)
