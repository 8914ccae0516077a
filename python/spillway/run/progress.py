"""Progress on the screen: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from spillway.base import streams
from spillway.base.sizes import duration, pace, rate, size, used_up
from spillway.output.identity import LOG
from spillway.output.run_log import RunLog
from spillway.run.protocol import StepResult

LOG_WIDTH = 120


class Display:
    """The output of a trainer: on the terminal, and after the terminal has gone in a log."""

    def __init__(self, console: Console, endurance: dict[str, int] | None = None) -> None:
        """`endurance`: bytes that the drives of some paths are rated for."""
        self.console = console
        self._endurance = endurance or {}
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._done = self._first = self._total = 0
        self._begun = 0.0
        self._tenths = 0  # of what comes before the first step
        self._stream = streams.ERROR if console.stderr else streams.OUTPUT
        self._losses = streams.losses(self._stream).count
        self._log: RunLog | None = None  # the log that replaces the terminal
        self._output_dir: Path | None = None

    def open_log(self, output_dir: Path) -> None:
        """Allows a log in the run's directory, which is ready."""
        self._output_dir = output_dir
        if self._log is not None:
            self._log.append_to(output_dir)

    def start(self, done: int, total: int) -> None:
        """The first step to come is number `done` + 1 of `total`; 0: nobody knows of how many."""
        self._done = self._first = done
        self._total = total
        self._begun = time.monotonic()
        if self.console.is_terminal:
            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[now]}"),
            )
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task("", total=total or None, completed=done, now="")
            with streams.guard():
                self._bar.start()

    def stop(self) -> None:
        if self._bar is not None:
            with streams.guard():
                self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        self.say(f"note: {text}")

    def say(self, text: str) -> None:
        self.show(lambda console: console.print(text, highlight=False, markup=False, soft_wrap=True))

    def show(self, tell: Callable[[Console], None]) -> None:
        """Calls `tell` with the console, and once more with the log where the terminal has just gone."""
        with streams.guard():
            tell(self.console)
        if self.move_to_log():
            tell(self.console)

    def move_to_log(self) -> bool:
        """Moves the output to the log if the terminal has gone. True if it went since the last call."""
        losses = streams.losses(self._stream)
        if self._log is not None or losses.count == self._losses:
            return False
        self._log = RunLog()
        self.stop()
        self.console = Console(file=cast(TextIO, self._log), width=LOG_WIDTH, highlight=False)
        words = f"{streams.NAMES[self._stream]} cannot be written ({losses.reason}). The run goes on"
        self.say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {words}, and this file has its messages.")
        if self._output_dir is not None:
            self._log.append_to(self._output_dir)
        if self._stream == streams.OUTPUT:
            with streams.guard():
                print(f"note: {words}, with its messages in output_dir/{LOG}", file=sys.stderr, flush=True)
        return True

    def step(self, done: int, result: StepResult, tokens: int, learning_rate: float, logged: bool) -> None:
        self._done = done
        words = self.describe(result, tokens, learning_rate)
        self.move_to_log()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, now=words)
        elif logged:
            self.say(f"step {done}/{self._total}  {words}")

    def describe(self, result: StepResult, tokens: int, learning_rate: float) -> str:
        loss = result.loss_sum / result.label_tokens if result.label_tokens else math.nan
        words = [
            f"loss {loss:.4f}",
            f"grad norm {result.grad_norm:.3g}" + (" (skipped)" if result.skipped else ""),
            f"lr {rate(learning_rate)}",
            f"{pace(tokens / max(result.seconds, 1e-9))} tokens/s",
        ]
        if left := self.seconds_left():
            words.append(f"{duration(left)} left")
        for name, moved in result.path_bytes.items():
            words.append(f"{name} {size(moved['read'])} read {size(moved['written'])} written{self.wear(name, result)}")
        return "  ".join(words)

    def wear(self, path: str, result: StepResult) -> str:
        """The run's total writes to a path, and their share of its drive's life."""
        if path not in result.written:
            return ""
        total = result.written[path]
        share = f", {used_up(total, self._endurance[path])}" if path in self._endurance else ""
        return f" ({size(total)} in all{share})"

    def seconds_left(self) -> float:
        steps = self._done - self._first
        left = max(0, self._total - self._done)
        return (time.monotonic() - self._begun) / steps * left if steps else 0.0

    def evaluation(self, row: dict[str, Any]) -> None:
        known = {"eval_perplexity": "perplexity", "eval_rewards/margins": "reward margin", "eval_accuracy": "accuracy"}
        others = "".join(f"  {words} {row[name]:.4g}" for name, words in known.items() if name in row)
        self.say(f"step {row['step']}/{self._total}  eval loss {row['eval_loss']:.4f}{others}")

    def share(self, done: int, total: int, what: str = "pairs") -> None:
        """Says how much of what comes before the first step is done, whenever another tenth is."""
        if 10 * done // total > self._tenths:
            self._tenths = 10 * done // total
            self.say(f"{done} of {total} {what}")
        if done == total:
            self._tenths = 0

    def saved(self, checkpoint: Path) -> None:
        self.say(f"step {self._done}/{self._total}  saved {checkpoint.name}")
