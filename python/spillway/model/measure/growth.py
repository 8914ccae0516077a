"""How much memory rows of a length take, from what shorter ones took: a polynomial of degree two, of which attention
may make all three coefficients and none is below zero.

So a dry run can be stopped before it takes what nobody has, and says all the same what it would take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MARGIN = 0.1  # of what is extrapolated: measurements of one shape differ by that, as seen


@dataclass(frozen=True)
class Point:
    length: int
    bytes: int


def bound(points: Sequence[Point], length: int) -> float:
    """No more than this, whichever part of the growth between the last two is quadratic. `length` >= the last one's."""
    before, last = points[-2:]
    return last.bytes + max(0, last.bytes - before.bytes) * (length**2 - last.length**2) / (
        last.length**2 - before.length**2
    )


def fitted(points: Sequence[Point], length: int) -> float:
    """Through the last three points; of two, or where growth slows down, the line through the last two."""
    before, last = points[-2:]
    curve = 0.0
    if len(points) > 2:
        first = points[-3]
        rise = max(0.0, slope(before, last))
        curve = max(0.0, (rise - slope(first, before)) / (last.length - first.length))
    return line(points, length) + (length - last.length) * curve * (length - before.length)


def line(points: Sequence[Point], length: int) -> float:
    """Through the last two points; level where there was no growth."""
    before, last = points[-2:]
    return last.bytes + (length - last.length) * max(0.0, slope(before, last))


def slope(first: Point, second: Point) -> float:
    return (second.bytes - first.bytes) / (second.length - first.length)


def least(points: Sequence[Point], length: int) -> float:
    """No less than this, as measurements go: growth never slows down."""
    return line(points, length) * (1 - MARGIN)


def predicted(points: Sequence[Point], length: int) -> int:
    """An upper bound for rows of `length`. Three points give it with a margin, two points the highest possible value,
    and one point a value in proportion to the square."""
    if len(points) == 1:
        return int(points[0].bytes * (length / points[0].length) ** 2)
    most = bound(points, length)
    return int(most if len(points) == 2 else min(most, fitted(points, length) * (1 + MARGIN)))


@dataclass(frozen=True)
class Climb:
    """Measurements below a length, and the verdict whether there is room to measure at that length."""

    points: tuple[Point, ...]
    there: bool


def climb(
    measure: Callable[[int], int | None], room: Callable[[int], int], first: int, length: int, bend: int = 0
) -> Climb:
    """Measures at twice the length each time, from `first` on, as long as what is predicted has room, and until all of
    `length` surely has, or surely has not: nobody waits for long rows to be told that longer ones do not fit.
    `measure`: bytes of rows of a length, or None when there was not enough memory; `room`: bytes there are for rows of
    a length. `bend`: a length up to which memory grows faster than beyond it, so that shorter rows say nothing of what
    longer ones have no room for."""
    points: list[Point] = []
    at = first
    while at < length:
        known = beyond(points, bend)
        if len(points) > 1 and bound(points, length) <= room(length):
            return Climb(tuple(known), True)
        settled = len(known) > 2 and known[0].length > bend
        if settled and least(known, length) > room(length):
            return Climb(tuple(known), False)
        if (settled or (len(known) > 2 and at <= bend)) and predicted(known, at) > room(at):
            return Climb(tuple(known), False)
        bytes_taken = measure(at)
        if bytes_taken is None:
            return Climb(tuple(known), False)
        points.append(Point(at, bytes_taken))
        at *= 2
    known = beyond(points, bend)
    settled = len(known) > 2 and known[0].length > bend
    return Climb(tuple(known), not settled or predicted(known, length) <= room(length))


def beyond(points: Sequence[Point], bend: int) -> list[Point]:
    """The points that show how memory grows: points beyond the bend if there are several, else all."""
    later = [point for point in points if point.length > bend]
    return later if len(later) > 1 else list(points)


@dataclass(frozen=True)
class Seen:
    """Measurements of a shape that was approached by smaller ones."""

    bytes: int  # of its temporaries, at most; 0 where nothing was measured
    rows: int  # the largest that was measured; 0: nothing was
    length: int
    there: bool  # it has room itself


def climb_shape(
    measure: Callable[[int, int], int | None], room: Callable[[int], int], first: int, shape: tuple[int, int], bend: int
) -> Seen:
    """Climbs to `shape`, rows and tokens of each: first one row that grows, then rows. `measure`: bytes of so many rows
    of a length, or None; `room`: bytes there are for so many tokens; `first`, `bend`: tokens, as in `climb`."""
    rows, length = shape
    long = climb(lambda at: measure(1, at), room, first, length, bend)
    if not long.there:
        seen = predicted(long.points, length) * rows if long.points else 0
        return Seen(seen, 1, long.points[-1].length if long.points else 0, False)
    many = climb(
        lambda at: measure(at, length), lambda at: room(at * length), max(1, first // length), rows, bend // length
    )
    if many.points:
        return Seen(predicted(many.points, rows), many.points[-1].length, length, many.there)
    if long.points:
        return Seen(predicted(long.points, length) * rows, 1, long.points[-1].length, rows == 1)
    return Seen(0, 0, 0, many.there)
