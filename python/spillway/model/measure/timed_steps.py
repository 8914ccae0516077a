"""Steps of a dry run, and their seconds."""

from __future__ import annotations

import statistics
import time

from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import Work
from spillway.model.measure import quick_dry_run
from spillway.model.measure.timed_engine import TimedEngine
from spillway.model.stream.stream import Stream

KINDS = ("forward", "backward", "tail_forward", "tail_backward", "head_loss", "head_gradient")


def time_step(stream: Stream, engine: TimedEngine, work: Work, between: list[float]) -> float:
    """Seconds of one step; what lies outside its passes goes to `between`."""
    passes, aside = engine.in_passes(), engine.aside
    began = time.perf_counter()
    stream.step(work)
    seconds = time.perf_counter() - began - (engine.aside - aside)
    between.append(seconds - (engine.in_passes() - passes))
    return seconds


def time_settled_step(stream: Stream, engine: TimedEngine, work: Work, between: list[float]) -> None:
    """Runs a step twice, where that is quick, and keeps the second one's seconds: it finds pages in the heap, which had
    given them back, as in a run."""
    for _ in range(2):
        engine.seconds = quick_dry_run.make_seconds()
        if time_step(stream, engine, work, between) > quick_dry_run.AGAIN:
            return


def step_seconds(engine: TimedEngine, between: list[float], shape: WorkShape) -> dict[str, float]:
    seconds = engine.pass_seconds(KINDS, shape.micro_batches)
    seconds["between"] = statistics.median(between[len(between) // 2 :]) * shape.micro_batches
    return seconds
