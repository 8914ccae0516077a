"""The cost of keeping what autograd saves of a layer: bytes and seconds, measured by a dry run's stream. The dry run
also shows bit-identical gradients with a pass that recomputes, in the run's sizes and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from spillway.machine import process_memory
from spillway.model.layers.saved import RECOMPUTE_ALL, SavedStep
from spillway.model.measure.slack import SAVED_SLACK
from spillway.model.measure.timed_engine import TimedEngine
from spillway.model.stream.saved_layers import NOT_ALONE, SHARING, keep_all

if TYPE_CHECKING:
    from spillway.model.batches.microbatch import Work
    from spillway.model.stream.stream import Stream

KINDS = ("kept_forward", "kept_backward")  # of passes, beside those of a dry run
ROUNDS = 4  # at least, of a step that is not long: two of each kind of run, of which the first warms up

# Why no layer keeps anything, as the end of a sentence.
UNLIKE = "the gradients of a layer that keeps what autograd saves are not the same bits here"
NO_ROOM = "what a layer keeps has no room beside what is measured of it"
SHORTER = "a step of this size was measured by smaller ones, and what a layer keeps of it was not"


@dataclass(frozen=True)
class SavedProfile:
    token_bytes: float = 0.0  # that one layer keeps of each token, holes included; 0: see `why`
    why: str = ""  # why no layer keeps anything; empty with 0 bytes: it was not asked
    spilled_token_bytes: float = 0.0  # of each token that a layer moves which spills; 0: none can
    graph_token_bytes: float = 0.0  # that such a layer keeps of each token all the same, holes included

    def longer(self, times: float) -> SavedProfile:
        """The profile of rows so many times as long, each token of which sees as many times more others."""
        return replace(self, token_bytes=self.token_bytes * times, spilled_token_bytes=self.spilled_token_bytes * times)


def measure(
    stream: Stream, engine: TimedEngine, work: Work, several: bool, rounds: int, budget: int | None
) -> SavedProfile:
    """Runs `work`, one micro-batch, once without what is kept and once with it, and with it as often as `rounds` says;
    seconds go to the engine's record. `several`: as for a step of several micro-batches, whose weights come from
    caches, too. `budget`: as of a dry run."""
    choice = keep_all(stream.meta_model)
    if not choice.stages:
        return SavedProfile(why=NOT_ALONE)
    try:
        with process_memory.bounded(budget):
            expected = run_step(stream, engine, work)
            stream.saved, engine.kept_blocks = choice, frozenset(place + 1 for place in choice.stages)
            results = run_step(stream, engine, work)
            saved = stream.last_saved
            kept = saved.kept
            if results != expected or not kept:
                return SavedProfile(why=UNLIKE if kept else SHARING)
            engine.digests = None
            for number in range(rounds):
                engine.cold = not several or number % 2 == 0
                stream.step(work)
    except (process_memory.OutOfBounds, torch.cuda.OutOfMemoryError):
        return SavedProfile(why=NO_ROOM)
    finally:
        stream.saved, engine.kept_blocks, engine.cold = RECOMPUTE_ALL, frozenset(), True
        engine.digests = None
        process_memory.give_back()
    return profile_of(saved, work.tokens)


def profile_of(saved: SavedStep, tokens: int) -> SavedProfile:
    """The profile of a step of one micro-batch of so many tokens, of which something was kept."""
    return SavedProfile(
        max(saved.kept.values()) / tokens * (1 + SAVED_SLACK),
        spilled_token_bytes=max(saved.rooms.values()) / tokens,
        graph_token_bytes=max(saved.graphs.values()) / tokens * (1 + SAVED_SLACK),
    )


def run_step(stream: Stream, engine: TimedEngine, work: Work) -> tuple[float, dict[tuple[int, int], int]]:
    """The loss, and a checksum of every gradient."""
    engine.digests = {}
    loss = stream.step(work).loss_sum
    return loss, engine.digests


def ratios(engine: TimedEngine, forward: float, backward: float) -> tuple[float, float]:
    """Ratios of passes that keep to passes that recompute, of which the seconds are given; 1 where nothing is known."""
    seconds = (engine.seconds[True][kind] for kind in KINDS)
    last = [values[-1] if values else 0.0 for values in seconds]
    pairs: Sequence[tuple[float, float]] = list(zip(last, (forward, backward), strict=True))
    kept_forward, kept_backward = (kept / whole if kept > 0 and whole > 0 else 1.0 for kept, whole in pairs)
    return kept_forward, min(1.0, kept_backward)
