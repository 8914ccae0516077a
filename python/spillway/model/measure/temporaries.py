"""Bytes of PyTorch's temporaries, as the kernel and PyTorch's allocator on a GPU count them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spillway.machine import process_memory
from spillway.machine.place import Place


class Temporaries:
    """Bytes at the peak beyond the bytes of the process at the start."""

    def __init__(self, place: Place) -> None:
        self.before, self._anonymous = process_memory.resident(), process_memory.anonymous()
        self._place, self._held, self.peak = place, place.watch_peak(), process_memory.PeakWatch()

    def count(self) -> int:
        """Bytes where layers compute."""
        return self.count_on_device() if self._place.on_gpu else self.count_on_host()

    def count_on_host(self) -> int:
        """The heap keeps what it was given. Pages of libraries may leave where memory is short, and lower the peak."""
        return max(0, self.peak.bytes - self.before, process_memory.anonymous() - self._anonymous)

    def count_on_device(self) -> int:
        return max(0, self._place.peak() - self._held)


@contextmanager
def watch_temporaries(place: Place, budget: int | None = None) -> Iterator[Temporaries]:
    """`budget`: bytes that the process may hold inside. Raises OutOfBounds beyond it."""
    temporaries = Temporaries(place)
    with process_memory.bounded(budget), temporaries.peak:
        yield temporaries
