"""What rows of a length take, by shorter ones: exact for polynomials of degree two, and never measured without room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spillway.model.measure.growth import MARGIN, Point, bound, climb, fitted, predicted

Work = Callable[[int], float]
SHAPES: dict[str, Work] = {
    "constant": lambda length: 5000,
    "linear": lambda length: 5000 + 30 * length,
    "eager attention": lambda length: 5000 + 30 * length + 0.5 * length**2,
    "attention alone": lambda length: 2.0 * length**2,
}


def points(work: Work, *lengths: int) -> list[Point]:
    return [Point(length, int(work(length))) for length in lengths]


@pytest.mark.parametrize("work", SHAPES.values(), ids=SHAPES)
def test_three_points_say_all(work: Work) -> None:
    assert fitted(points(work, 512, 1024, 2048), 65536) == pytest.approx(work(65536), rel=1e-6)


@pytest.mark.parametrize("work", SHAPES.values(), ids=SHAPES)
def test_two_points_bound_what_can_be(work: Work) -> None:
    measured = points(work, 512, 1024)
    for length in (1024, 1500, 32768):
        assert bound(measured, length) >= work(length) * (1 - 1e-3)
        assert predicted(measured, length) >= int(work(length) * (1 - 1e-3))


def test_growth_that_slows_down_is_a_line() -> None:
    measured = [Point(1, 0), Point(2, 100), Point(3, 150)]
    assert fitted(measured, 5) == pytest.approx(250)
    assert fitted([Point(1, 100), Point(2, 90)], 100) == 90  # noise


@pytest.mark.parametrize("work", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("room", [10_000, 100_000, 10**7, 10**12])
@pytest.mark.parametrize("length", [700, 4096, 30_000])
def test_nothing_is_measured_that_has_no_room(work: Work, room: int, length: int) -> None:
    taken: list[int] = []

    def measure(at: int) -> int | None:
        assert at < length
        taken.append(at)
        return int(work(at)) if work(at) <= room else None

    found = climb(measure, lambda _: room, 512, length)
    assert taken == [512 * 2**n for n in range(len(taken))]
    assert all(work(at) <= room for at in taken[3:])  # of the first three nobody knows
    if len(taken) > 2:
        assert found.there or work(length) * (1 + MARGIN) > room * (1 - 1e-3)
        assert not found.there or work(length) <= room
    if not found.there and len(found.points) > 2:
        assert predicted(found.points, length) > room


def test_ample_room_is_seen_early() -> None:
    taken: list[int] = []
    found = climb(lambda at: taken.append(at) or at, lambda _: 10**15, 512, 1 << 20)
    assert found.there and taken == [512, 1024]


def test_too_little_room_is_seen_early() -> None:
    """Three points, though thirty times as long a row as the last would have room: what is asked for cannot."""
    taken: list[int] = []
    found = climb(lambda at: taken.append(at) or 30 * at + at**2, lambda _: 2 * 10**9, 512, 1 << 20)
    assert not found.there and taken == [512, 1024, 2048]
    assert predicted(found.points, 1 << 20) > 10**12
