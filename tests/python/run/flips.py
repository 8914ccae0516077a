"""One flipped bit in a product of one computation of a step, as a silent error of a CPU leaves it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spillway.model.layers.digests import Digests
from spillway.model.stream.stream import Stream
from spillway.run.replays import Replays

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
WORDS = {2: torch.int16, 4: torch.int32}


class Products(TorchDispatchMode):
    """Counts products, and flips a bit of product number `at`: bit number `bit`, or a random bit for None."""

    def __init__(self, at: int = -1, seed: int = 0, bit: int | None = None) -> None:
        super().__init__()
        self._bit = bit
        self.count, self._at, self._random = 0, at, random.Random(seed)
        self.words = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.overloadpacket in PRODUCTS and output.numel():
            if self.count == self._at:
                self._flip(output)
            self.count += 1
        return output

    def _flip(self, output: torch.Tensor) -> None:
        bits = output.view(WORDS[output.element_size()])
        place = tuple(self._random.randrange(size) for size in output.shape)
        bit = self._random.randrange(8 * output.element_size()) if self._bit is None else self._bit
        mask = 1 << bit
        if bit == 8 * output.element_size() - 1:
            mask = -mask
        bits[place] ^= mask
        self.words = f"bit {bit} of element {place} of product {self._at}"


@contextmanager
def watch_products(products: Callable[[int, int], Products]) -> Iterator[list[Products]]:
    """Runs computation n of replayed step m in `products(m, n)`. Both numbers begin at 1."""
    runs: list[Products] = []
    place = [0, 0]
    replay, compute = Replays.compute, Stream.compute

    def count_step(self: Replays, *positional: Any) -> float:
        place[:] = [place[0] + 1, 0]
        return replay(self, *positional)

    def count_computation(self: Stream, work: Any, step: int, digests: Digests) -> float:
        place[1] += 1
        runs.append(products(*place))
        with runs[-1]:
            return compute(self, work, step, digests)

    with patch.object(Replays, "compute", count_step), patch.object(Stream, "compute", count_computation):
        yield runs
