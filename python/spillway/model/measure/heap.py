"""The process's heap, without bytes: where glibc's malloc would put what PyTorch asks for, and so how far it grows.

One arena that is never trimmed, as `process_memory.settle` makes it: a request takes the smallest hole that has room,
of equal ones the lowest; what is let go joins the holes beside it; without a hole the heap grows (glibc's malloc.c,
large bins).
"""

from __future__ import annotations

import bisect

ALIGNMENT = 64  # c10::gAlignment of PyTorch's CPU allocator
HEADER = 16  # bytes that malloc keeps of each


class Heap:
    def __init__(self) -> None:
        self.most = 0  # bytes that it has grown to
        self._end = 0  # of what is in use
        self._sizes: dict[int, int] = {}  # of what is in use, by address
        self._holes: dict[int, int] = {}  # sizes by address
        self._before: dict[int, int] = {}  # addresses of holes by their end
        self._by_size: list[tuple[int, int]] = []  # sizes and addresses, rising

    def take(self, size: int) -> int:
        """The address of so many bytes."""
        size = -(-(size + HEADER) // ALIGNMENT) * ALIGNMENT
        place = bisect.bisect_left(self._by_size, (size, 0))
        if place < len(self._by_size):
            hole, at = self._by_size[place]
            self._close(at)
            if hole > size:
                self._open(at + size, hole - size)
        else:
            at, self._end = self._end, self._end + size
            self.most = max(self.most, self._end)
        self._sizes[at] = size
        return at

    def give(self, at: int) -> None:
        """Frees the storage that `take` gave there."""
        size = self._sizes.pop(at)
        if (lower := self._before.get(at)) is not None:
            size += self._close(lower)
            at = lower
        if at + size in self._holes:
            size += self._close(at + size)
        if at + size == self._end:
            self._end = at
        else:
            self._open(at, size)

    def _open(self, at: int, size: int) -> None:
        self._holes[at] = size
        self._before[at + size] = at
        bisect.insort(self._by_size, (size, at))

    def _close(self, at: int) -> int:
        size = self._holes.pop(at)
        del self._before[at + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, at))]
        return size
