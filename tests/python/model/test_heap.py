"""Where a heap puts what is asked of it."""

from __future__ import annotations

import random

from spillway.model.measure.heap import ALIGNMENT, HEADER, Heap

PIECE = 4 * ALIGNMENT - HEADER  # bytes that take four units


def test_a_hole_is_used_again_and_the_heap_grows_only_without_one() -> None:
    heap = Heap()
    first, second, third = (heap.take(PIECE) for _ in range(3))
    assert (first, second, third) == (0, 4 * ALIGNMENT, 8 * ALIGNMENT)
    heap.give(second)
    assert heap.take(PIECE // 2) == second and heap.most == 12 * ALIGNMENT
    assert heap.take(PIECE) == 12 * ALIGNMENT, "what is left of the hole has no room for it"


def test_the_smallest_hole_that_has_room_is_taken() -> None:
    heap = Heap()
    held = [heap.take(size) for size in (5 * PIECE, 1, 2 * PIECE, 1)]
    heap.give(held[0])
    heap.give(held[2])
    assert heap.take(2 * PIECE) == held[2]
    assert heap.take(2 * PIECE) == held[0]


def test_holes_side_by_side_are_one_and_the_end_comes_back() -> None:
    heap = Heap()
    held = [heap.take(PIECE) for _ in range(4)]
    heap.give(held[0])
    heap.give(held[2])
    heap.give(held[1])
    assert heap.take(3 * 4 * ALIGNMENT - HEADER) == 0
    heap.give(held[3])
    assert heap.take(100 * PIECE) == held[3]


def test_nothing_overlaps() -> None:
    heap, draw = Heap(), random.Random(3)
    held: dict[int, int] = {}
    for _ in range(4000):
        if held and draw.random() < 0.48:
            heap.give(at := draw.choice(list(held)))
            del held[at]
        else:
            size = draw.randrange(1, 5000)
            held[heap.take(size)] = size
    places = sorted(held.items())
    assert all(at + size <= other for (at, size), (other, _) in zip(places, places[1:], strict=False))
    assert heap.most >= places[-1][0] + places[-1][1]
    for at in list(held):
        heap.give(at)
    assert heap.take(heap.most - ALIGNMENT - HEADER) == 0
