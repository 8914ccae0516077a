"""How long a call takes as a part of something longer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

WINDOW = 0.008  # seconds of calls, whose mean counts
LEAST = 5  # windows, or FEWEST of calls so long that LEAST would take LONG times what was asked for
FEWEST, LONG = 2, 8.0
HELD_UP = 2.0  # medians: what takes longer counts as that much


def typical(call: Callable[[], object], seconds: float, before: Callable[[], object] = lambda: None) -> float:
    """A call's seconds: the mean over windows, and of each window the mean. A layer's time is the sum of many calls,
    those included that others on the machine hold up, so it is no sum of medians; but of a layer's times it is the
    median that a plan has, so that what was held up for long counts as HELD_UP medians. `seconds`: for all of them.
    `before`: what comes before each call and is not counted."""
    found: list[float] = []
    began, spent = time.perf_counter(), 0.0
    while len(found) < FEWEST or spent < seconds or (len(found) < LEAST and spent < LONG * seconds):
        taken, calls = 0.0, 0
        while not calls or taken < WINDOW:
            before()
            start = time.perf_counter()
            call()
            taken, calls = taken + time.perf_counter() - start, calls + 1
        found.append(taken / calls)
        spent = time.perf_counter() - began
    most = HELD_UP * statistics.median(found)
    return statistics.fmean(min(each, most) for each in found)
