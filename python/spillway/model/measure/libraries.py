"""Memory of a heap that libraries keep beside tensors: products that they have compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

import torch

from spillway.machine.process_memory import PRODUCTS
from spillway.model.measure.heap import Heap

# As seen with PyTorch 2.13 on x86-64: oneDNN and PyTorch keep so much of each product of these types, and a product
# works in so much more while it runs. Those of fp32 have one place for all, part of a profile's `libraries_bytes`.
COMPILED = (torch.bfloat16, torch.float16)
KEPT, WORKING = 640 << 10, 4 << 20


class Libraries:
    """The products that a heap's process has compiled. It keeps as many as `process_memory.settle` lets it."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._products: OrderedDict[Hashable, int] = OrderedDict()  # addresses, the one used last at the end

    def multiply(self, dtype: torch.dtype, shapes: Iterable[Hashable]) -> None:
        """Runs a product of each of these shapes, whose results have their places."""
        if dtype not in COMPILED:
            return
        for shape in shapes:
            self._keep(shape)
        self._heap.give(self._heap.take(WORKING))

    def _keep(self, shape: Hashable) -> None:
        if shape not in self._products:
            self._products[shape] = self._heap.take(KEPT)
        self._products.move_to_end(shape)
        if len(self._products) > PRODUCTS:
            self._heap.give(self._products.popitem(last=False)[1])
