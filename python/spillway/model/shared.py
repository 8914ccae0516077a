"""Parameters that several layers share, and a head's bias: kept beside the arena while a step runs.

A tensor belongs to one block, and its bytes are there during that block's passes only. Where another block uses it
too, a copy is kept from its owner's forward pass on, and the gradients that others find for it are added up (fp32)
until the owner's backward pass, which is the last, hands them over with its own.
"""

from __future__ import annotations

import torch

from spillway.model.layer import GradientSink


class Kept:
    """One such tensor."""

    def __init__(
        self,
        number: int,
        shape: torch.Size,
        dtype: torch.dtype,
        trainable: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.number = number
        self.leaf = torch.zeros(shape, dtype=dtype, device=device)
        self.sum = torch.zeros(shape, device=device)
        self._added = False
        self._trainable = trainable
        if trainable:
            self.leaf.requires_grad_().register_post_accumulate_grad_hook(self._take)

    def refresh(self, weight: torch.Tensor) -> None:
        with torch.no_grad():
            self.leaf.copy_(weight)
            self.sum.zero_()
            self._added = False

    def add(self, gradient: torch.Tensor, rows: slice | None = None) -> None:
        if not self._trainable:
            return
        target = self.sum if rows is None else self.sum[rows]
        target += gradient
        self._added = True

    def hand_over(self, sink: GradientSink, own: torch.Tensor | None = None) -> bool:
        """Gives the sum, with the owner's own gradient, to the engine once. False when there is nothing to give."""
        if not self._added and own is None:
            return False
        total = self.sum if own is None else self.sum + own
        sink(self.number, total.to(self.leaf.dtype))
        self._added = False
        return True

    def _take(self, leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        self.add(leaf.grad)
        leaf.grad = None
