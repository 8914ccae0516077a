"""After which steps to log, evaluate and save: a pure function of the configuration and the number of steps."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import groupby, islice

from spillway.config import Config
from spillway.data.order import Order

MOST_SAVES = 100_000  # checkpoints that a plan counts


@dataclass(frozen=True)
class Events:
    """Asked about a step that was just done, counted from 1; 0 is the time before the first."""

    config: Config
    order: Order
    steps: int

    def log_due(self, step: int) -> bool:
        return step % self.interval("logging_steps") == 0

    def evaluation_due(self, step: int) -> bool:
        if self.config.eval_dataset is None:
            return False
        if step == 0:
            return bool(self.config.eval_on_start)
        return self.config.eval_strategy != "no" and (step == self.steps or self.due("eval", step))

    def save_due(self, step: int) -> bool:
        return step == self.steps or self.due("save", step) or self.whole_due(step)

    def whole_due(self, step: int) -> bool:
        """True if the checkpoint of the step stands alone."""
        return self.config.save_whole_steps is not None and step % self.interval("save_whole_steps") == 0

    def list_saves(self, begun: int) -> list[int]:
        """The steps after `begun` with a checkpoint, in order; of very many the first."""
        intervals = [self.interval_of("save")]
        if self.config.save_whole_steps is not None:
            intervals.append(self.interval("save_whole_steps"))
        multiples = [range(each * (begun // each + 1), self.steps, each) for each in intervals if each]
        last = [self.steps] if self.steps > begun else []
        return list(islice((step for step, _ in groupby(heapq.merge(*multiples, last))), MOST_SAVES))

    def count_rows(self) -> int:
        """Rows that the run adds to metrics.jsonl, at most."""
        rows = self.steps // self.interval("logging_steps")
        if self.config.eval_dataset is not None and self.config.eval_strategy != "no":
            rows += math.ceil(self.steps / self.interval_of("eval"))
        return rows

    def interval_of(self, kind: str) -> int:
        """Steps between two events of the kind's strategy; 0: none before the last step."""
        strategy = getattr(self.config, f"{kind}_strategy")
        if strategy == "no":
            return 0
        return self.interval(f"{kind}_steps") if strategy == "steps" else self.order.steps_per_epoch

    def due(self, kind: str, step: int) -> bool:
        strategy = getattr(self.config, f"{kind}_strategy")
        if strategy == "steps":
            return step % self.interval(f"{kind}_steps") == 0
        return strategy == "epoch" and self.order.ends_epoch(step)

    def interval(self, name: str) -> int:
        """Steps between two events; below 1 the key is a share of all steps."""
        value = getattr(self.config, name)
        return math.ceil(self.steps * value) if value < 1 else int(value)
