"""A mean that forgets nothing and does not grow: exact partial sums instead of the list of what was added."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Mean:
    """The mean of floats: `value()` is math.fsum(all of them) / count exactly, however many they are.

    Shewchuk's expansion: the partial sums do not overlap, so there are a few dozen at most, and their sum is exact.
    """

    partials: list[float] = field(default_factory=list)
    count: int = 0
    beyond: float = 0.0  # sum of what is no finite number; 0: there was none

    def add(self, value: float, count: int = 1) -> None:
        """`value`: the sum of `count` numbers."""
        self.count += count
        if not math.isfinite(value):
            self.beyond += value
            return
        kept = 0
        for partial in self.partials:
            large, small = (value, partial) if abs(value) >= abs(partial) else (partial, value)
            value = large + small
            rest = small - (value - large)
            if rest:
                self.partials[kept] = rest
                kept += 1
        self.partials[kept:] = [value]

    def value(self) -> float:
        """The mean; at least one number must have been added."""
        return self.beyond if self.beyond != 0 else math.fsum(self.partials) / self.count

    def clear(self) -> None:
        self.partials, self.count, self.beyond = [], 0, 0.0


def add_told(means: dict[str, Mean], told: Sequence[Mapping[str, float | tuple[float, int]]]) -> None:
    """`told`: by micro-batch. A pair is a sum and the number of its terms."""
    for each in told:
        for name, value in each.items():
            means.setdefault(name, Mean()).add(*(value if isinstance(value, tuple) else (value,)))
