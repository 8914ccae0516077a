"""A dry run of some ten seconds for a plan alone. It measures all tokens of a large layer once or twice if that is
quick enough. Otherwise it measures fewer tokens, twice as many each time, and extrapolates.

A run that trains measures what it will do itself, more often (`spillway.model.measure.dry_run`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spillway.model.measure import growth
from spillway.model.measure.growth import Point
from spillway.model.measure.timed_engine import AGAIN

FIRST_TOKENS = 64  # measured first, and three times: once to warm up, once from memory, once from caches
SHORT = 64  # tokens of a row whose layer takes no time to speak of
AS_A_RUN = 4.5  # seconds: where what a run measures takes no longer, a plan measures it, too
REPEATS = 8  # micro-batches of the largest shape that a run measures, about
TWICE, ONCE = 5.0, 10.0  # seconds that all of the tokens may take to be measured so often
QUICK, LEAST = 5.0, 3  # otherwise: seconds that one more measurement may take, and how many there are at least
SHORTER = 8  # times: with as many tokens in rows of that part of the length, attention takes little
LONG_ROW, SEEN = 1024, 0.1  # tokens of a row whose attention is looked at; least share of a pass that is no noise
FAR, GROWN = 16, 1.5  # of what has so many times the tokens nothing is known before memory has grown so much

Kinds = dict[str, float]


@dataclass(frozen=True)
class Taken:
    """One measurement."""

    tokens: int
    bytes: int  # of temporaries
    seconds: Kinds  # by kind of pass, with weights from memory


def shapes(rows: int, length: int) -> list[tuple[int, int]]:
    """Rows and lengths of about half as many tokens each time, from the largest down; rows first, then their length."""
    sizes = [(rows, length)]
    while rows * length > FIRST_TOKENS:
        if rows > 1:
            rows = -(-rows // 2)
        else:
            length = -(-length // 2)
        sizes.append((rows, length))
    return sizes[::-1]


def shape_of(rows: int, length: int, tokens: int) -> tuple[int, int]:
    """The one of `shapes` that has so many tokens."""
    return next(shape for shape in shapes(rows, length) if shape[0] * shape[1] == tokens)


def other_lengths(length: int) -> list[int]:
    """Lengths of somewhat shorter rows: a dataset has many, and PyTorch keeps what it makes for each."""
    return sorted({length * part // 8 for part in (7, 6, 5)} - {0, 1})


def is_long(seconds: float, tokens: int, largest: int) -> bool:
    """True if measuring all tokens would take longer than a user waits, judging by the seconds of `tokens` of them."""
    return seconds * largest / tokens * REPEATS > AS_A_RUN


def measured(first: Taken, rest: Sequence[tuple[int, int]], measure: Callable[[int, int], Taken | None]) -> list[Taken]:
    """`first`, and what else of the shapes that follow there is time and room for; all of them are more than one token.
    `measure`: None where there is no room."""
    if rest:
        rows, length = rest[-1]
        seconds = sum(first.seconds.values()) * rows * length / first.tokens
        if seconds <= ONCE and (whole := measure(rows, length)) is not None:
            new = sum(whole.seconds.values()) > AGAIN and seconds <= TWICE  # to the heap, which the second step is not
            again = measure(rows, length) if new else None
            return [first, replace(again, bytes=max(again.bytes, whole.bytes)) if again else whole]
    return ascend(first, rest, measure)


def ascend(first: Taken, rest: Sequence[tuple[int, int]], measure: Callable[[int, int], Taken | None]) -> list[Taken]:
    points = [first]
    for rows, length in rest:
        last = points[-1]
        slow = len(points) >= LEAST and sum(last.seconds.values()) * rows * length / last.tokens > QUICK
        if slow and not says_little(points, rest[-1]):
            break
        taken = measure(rows, length)
        if taken is None:
            break
        points.append(taken)
    return points


def says_little(found: Sequence[Taken], all_of_it: tuple[int, int]) -> bool:
    """True if the measured tokens are so few that their bytes are what libraries and the heap take for any."""
    first, last = found[0], found[-1]
    return last.tokens * FAR < all_of_it[0] * all_of_it[1] and last.bytes < GROWN * first.bytes


def bytes_of(
    found: Sequence[Taken], tokens: int, linear: bool, bend: int = 0, beyond: Callable[[], float | None] | None = None
) -> int:
    """Temporaries of so many tokens, at most. `linear`: attention keeps no scores, so that nothing grows by the square,
    and what differs from a line is the heap's noise. `bend`: tokens up to which memory grows faster than beyond;
    `beyond`: bytes of each token there, as `slope_in_tiles` has them, asked for where nothing was measured there."""
    first, last = found[0], found[-1]
    if last.tokens >= tokens:
        return last.bytes
    points = growth.beyond([Point(taken.tokens, taken.bytes) for taken in found], bend)
    if not linear or len(points) < 2:
        return growth.predicted(points, tokens)
    slope = max(0.0, growth.slope(points[0], points[-1]))
    after = beyond() if beyond is not None and last.tokens < bend < tokens and first.tokens < last.tokens else None
    here = tokens if after is None else bend
    return int((last.bytes + slope * (here - last.tokens) + (after or 0.0) * (tokens - here)) * (1 + growth.MARGIN))


def slope_in_tiles(
    all_shapes: Sequence[tuple[int, int]], last: Taken, measure: Callable[[int, int, int], Taken | None]
) -> float | None:
    """Bytes that each token more takes where there are many tiles: of what was measured `last`, in tiles of fewer
    tokens. `measure`: of rows, their length and the tokens of a tile; None where there is no room."""
    there = [shape for shape in all_shapes if shape[0] * shape[1] <= last.tokens][-2:]
    tile = max(1, there[0][0] * there[0][1] // 4)
    measurements = [measure(rows, length, tile) for rows, length in there]
    points = [Point(taken.tokens, taken.bytes) for taken in measurements if taken is not None]
    return max(0.0, growth.slope(*points)) if len(points) == 2 else None


def middle(found: Sequence[Taken]) -> Taken:
    """The medians of measurements of one shape."""
    seconds = {kind: statistics.median(each.seconds[kind] for each in found) for kind in found[0].seconds}
    return Taken(found[0].tokens, int(statistics.median(each.bytes for each in found)), seconds)


def bytes_per_token(found: Sequence[Taken]) -> float:
    if len(found) < 2:
        return found[-1].bytes / found[-1].tokens
    last, before = found[-1], found[-2]
    return max(0.0, (last.bytes - before.bytes) / (last.tokens - before.tokens))


def beyond_a_line(last: Taken, shorter: Taken, tokens: int, times: float) -> Kinds:
    """Seconds of so many tokens in rows `times` as long as those measured `last`, beyond the line: attention grows with
    the square of a row. Its share is what `shorter` saves, as many tokens in rows of one part in SHORTER."""
    shares = {kind: (all_of_it - shorter.seconds[kind]) / (1 - 1 / SHORTER) for kind, all_of_it in last.seconds.items()}
    seen = {kind: share for kind, share in shares.items() if share > SEEN * last.seconds[kind]}
    return {kind: share * (times - 1) * tokens / last.tokens for kind, share in seen.items()}


def seconds_of(
    found: Sequence[Taken], warm: Kinds, tokens: int, micro_batches: int, more: Kinds | None = None
) -> Kinds:
    """The seconds of a step: the first micro-batch of a pass has its weights from memory, the others from caches, which
    is faster by as much as it was with the fewest tokens (`warm`). `more`: of a micro-batch, beyond the line."""
    cold = {kind: on_line(found, kind, tokens) + (more or {}).get(kind, 0.0) for kind in found[0].seconds}
    saved = {kind: max(0.0, found[0].seconds[kind] - warm.get(kind, found[0].seconds[kind])) for kind in cold}
    return {kind: value + (micro_batches - 1) * max(0.0, value - saved[kind]) for kind, value in cold.items()}


def on_line(found: Sequence[Taken], kind: str, tokens: int) -> float:
    """Through the first and the last measurement, which are farthest apart; level at least."""
    first, last = found[0], found[-1]
    if len(found) == 1:
        return last.seconds[kind] * tokens / last.tokens
    slope = (last.seconds[kind] - first.seconds[kind]) / (last.tokens - first.tokens)
    return last.seconds[kind] + max(0.0, slope) * (tokens - last.tokens)
