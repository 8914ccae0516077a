"""After which steps to log, evaluate and save: a pure function of the configuration and the number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spillway.config import Config
from spillway.data.order import Order


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

    def due(self, kind: str, step: int) -> bool:
        strategy = getattr(self.config, f"{kind}_strategy")
        if strategy == "steps":
            return step % self.interval(f"{kind}_steps") == 0
        return strategy == "epoch" and self.order.ends_epoch(step)

    def interval(self, name: str) -> int:
        """Steps between two events; below 1 the key is a share of all steps."""
        value = getattr(self.config, name)
        return math.ceil(self.steps * value) if value < 1 else int(value)
