"""Counts the engine's votes on durable steps with torch.distributed, in a thread of its own: a step is durable when it
is on the paths of all processes (docs/decisions/0009-shards.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from spillway._engine import Engine
from spillway.errors import first_line


class Votes:
    """Until the engine has no more. The k-th vote of each process is one reduction."""

    def __init__(self, engine: Engine, group: Any, disturbed: Callable[[], None] = lambda: None) -> None:
        """`disturbed` is called when another process fails a vote."""
        self._engine, self._group, self._disturbed = engine, group, disturbed
        self._under_way: int | None = None  # the step that is voted for
        self._aborted = False
        self._thread = threading.Thread(target=self._count, name="votes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After the engine has closed."""
        if not self._aborted:
            self._thread.join()

    def abort(self) -> None:
        """From another thread: whoever waits for a step to be durable gets an error, and the last one that all have
        stands."""
        self._aborted = True
        step = self._under_way
        if step is not None:
            with suppress(ValueError):  # it has ended meanwhile
                self._engine.end_vote(step, -1, "another process of the run has failed")

    def _count(self) -> None:
        while (step := self._engine.next_vote()) is not None:
            self._under_way = step
            smallest, error = self._smallest(step)
            self._under_way = None
            with suppress(ValueError):  # `abort` has ended it
                self._engine.end_vote(step, smallest, error)

    def _smallest(self, step: int) -> tuple[int, str]:
        """The smallest step of all processes, or the reason why it is unknown."""
        if self._aborted:
            return -1, "another process of the run has failed"
        value = torch.tensor([step], dtype=torch.int64)
        try:
            dist.all_reduce(value, op=dist.ReduceOp.MIN, group=self._group)
        except Exception as error:  # of whatever kind a backend's own are
            self._disturbed()
            return -1, f"the processes of the run could not agree on step {step}: {first_line(error)}"
        return int(value), ""
