"""Parameters that several layers share, and a head's bias: kept beside the arena while a step runs.

A tensor belongs to one block, and its bytes are there during that block's passes only. Where another block uses it
too, a copy is kept from its owner's forward pass on, and the gradients that others find for it are added up (fp32)
until the owner's backward pass, which is the last, hands them over with its own: for each virtual rank by itself.
"""

from __future__ import annotations

import torch

from spillway.model.stream.layer import GradientSink


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
        self.rank = 0  # the virtual rank whose gradients are being found
        self.leaf = torch.zeros(shape, dtype=dtype, device=device)
        self._sums = [torch.zeros(shape, device=device)]  # by virtual rank
        self._added: set[int] = set()  # the ranks that have something to hand over
        self._trainable = trainable
        if trainable:
            self.leaf.requires_grad_().register_post_accumulate_grad_hook(self._take)

    def refresh(self, weight: torch.Tensor, ranks: int = 1) -> None:
        """For a step of so many virtual ranks."""
        with torch.no_grad():
            self.leaf.copy_(weight)
            self._sums += [torch.zeros_like(self._sums[0]) for _ in range(len(self._sums), ranks)]
            for sum in self._sums:
                sum.zero_()
            self._added.clear()

    def add(self, gradient: torch.Tensor, rows: slice | None = None) -> None:
        if not self._trainable:
            return
        target = self._sums[self.rank] if rows is None else self._sums[self.rank][rows]
        target += gradient
        self._added.add(self.rank)

    def hand_over(self, sink: GradientSink, own: torch.Tensor | None = None) -> bool:
        """Gives the rank's sum, with the owner's own gradient, to the engine once. False when there is nothing to
        give."""
        if self.rank not in self._added and own is None:
            return False
        total = self._sums[self.rank] if own is None else self._sums[self.rank] + own
        sink(self.number, total.to(self.leaf.dtype))
        self._added.discard(self.rank)
        return True

    def _take(self, leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        self.add(leaf.grad)
        leaf.grad = None
