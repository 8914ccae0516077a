"""The loop: batches in order, a rate for each step, rows, evaluations, checkpoints.

Everything the loop decides follows from the configuration, the data and the step, so a resumed run goes on exactly.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillway import checkpoints
from spillway.config import Config
from spillway.dataset import Dataset
from spillway.errors import Interrupted
from spillway.events import Events
from spillway.interruption import Interruption
from spillway.order import Order, in_file_order
from spillway.progress import Display
from spillway.protocol import Session, StepResult, WorkShape
from spillway.rates import Rate
from spillway.records import METRICS, Metrics, flush, rows, step_row, write_json
from spillway.so_far import SoFar
from spillway.state import RunState
from spillway.summary import perplexity, summary
from spillway.trackers import Trackers
from spillway.trainer_state import trainer_state


@dataclass(frozen=True)
class Work:
    """What is to be done: data, order and rates of one run."""

    train: Dataset
    held_out: Dataset | None
    tokenizer: Any
    order: Order
    rate: Rate
    events: Events
    shape: WorkShape

    @property
    def steps(self) -> int:
        return self.events.steps


@dataclass
class Trainer:
    """Runs the steps after `state.step`."""

    config: Config
    work: Work
    state: RunState
    display: Display
    interruption: Interruption
    output_dir: Path
    seconds: list[float] = field(default_factory=list)  # of every step of this process
    session: Session = field(init=False)
    metrics: Metrics = field(init=False)
    saved: Path | None = field(init=False)  # the checkpoint that holds `state.step`
    trackers: Trackers = field(init=False)
    every_step: bool = field(init=False)  # each step is durable once it is committed
    so_far: SoFar = field(init=False)

    def __post_init__(self) -> None:
        """InputError where a tracker is not here: before anything is planned."""
        self.trackers = Trackers(self.config, self.output_dir)
        self.so_far = SoFar(self.output_dir)

    def run(self, session: Session, saved: Path | None) -> None:
        """`session` is started and has committed `state`, which checkpoint `saved` holds if there is one.

        Raises Interrupted, state saved."""
        self.session = session
        self.saved = saved
        self.every_step = session.plan.get("durability") == "step"
        self.metrics = Metrics(self.output_dir / METRICS)
        if self.every_step:
            flush(self.output_dir)  # the file is there after a power cut, too
        self.display.start(self.state.step, self.work.steps)
        self.trackers.start(self.state.step, self.work.steps)
        try:
            if self.evaluation_missing():
                self.evaluate()
            if self.save_missing():
                self.save(with_state=not self.config.save_only_model)
            while self.state.step < self.work.steps:
                self.stop_if_asked()
                self.step()
                self.stop_if_asked()
                if self.work.events.evaluation_due(self.state.step):
                    self.evaluate()
                if self.work.events.save_due(self.state.step):
                    self.save(with_state=not self.config.save_only_model or bool(self.interruption))
            if self.interruption and self.evaluation_missing():
                raise self.interrupted()
        finally:
            self.display.stop()
            self.metrics.close()
            self.trackers.stop()
        if self.saved is not None:
            checkpoints.publish(self.saved, self.output_dir)

    def step(self) -> None:
        batches = [self.work.train.batch(part) for part in self.work.order.step(self.state.step)]
        learning_rate = self.work.rate(self.state.step)
        result = self.session.step(batches, learning_rate)
        tokens = sum(batch.tokens for batch in batches)
        self.state.step += 1
        self.state.epoch = self.work.order.epoch_after(self.state.step)
        self.state.tokens_seen += tokens
        self.state.skipped += result.skipped
        self.state.losses.add(result.loss_sum / result.label_tokens)
        self.seconds.append(result.seconds)
        self.saved = None
        logged = self.work.events.log_due(self.state.step)
        if logged:
            self.log(result, tokens, learning_rate)
        self.session.commit(self.state.moving())
        self.display.step(self.state.step, result, tokens, learning_rate, logged)
        if result.skipped:
            self.display.note(f"step {self.state.step}: the gradient is not finite, nothing was updated")
        for notice in self.session.notices():
            self.display.note(f"step {self.state.step}: {notice}")
        self.so_far.tell(self.session, len(self.seconds), lambda: self.summary(self.session))

    def log(self, result: StepResult, tokens: int, learning_rate: float) -> None:
        now, loss = self.state, self.state.losses.value()
        row = step_row(now.step, result, loss, tokens, learning_rate, now.epoch, now.skipped)
        self.metrics.add(row)
        self.trackers.log(row)
        if self.every_step:
            self.metrics.sync()  # before the step is durable: a resume after it finds every row
        self.state.losses.clear()

    def save_missing(self) -> bool:
        """Whether a signal or a crash came between a durable step and its checkpoint."""
        return self.saved is None and self.state.step > 0 and self.work.events.save_due(self.state.step)

    def evaluation_missing(self) -> bool:
        """Whether a signal or a crash came between a step and its evaluation."""
        done = (row["step"] for row in rows(self.output_dir / METRICS) if "eval_loss" in row)
        return self.work.events.evaluation_due(self.state.step) and self.state.step not in done

    def complete(self) -> bool:
        return self.state.step >= self.work.steps and not self.evaluation_missing()

    def evaluate(self) -> None:
        """The loss over all of the held-out rows. A signal ends it without a row; the resumed run does it again."""
        assert self.work.held_out is not None
        parts = in_file_order(len(self.work.held_out), self.config.per_device_eval_batch_size)
        sums, count = [], 0
        for first in range(0, len(parts), self.work.shape.micro_batches):
            if self.interruption:
                return
            group = parts[first : first + self.work.shape.micro_batches]
            loss_sum, label_tokens = self.session.evaluate([self.work.held_out.batch(part) for part in group])
            sums.append(loss_sum)
            count += label_tokens
        loss = math.fsum(sums) / count
        row = {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "eval_loss": loss,
            "eval_perplexity": perplexity(loss),
        }
        self.metrics.add(row)
        self.trackers.log(row)
        self.display.evaluation(row)

    def save(self, with_state: bool) -> None:
        """Writes checkpoint-STEP, with or without what a resume needs."""

        def fill(directory: Path) -> None:
            self.session.save_model(directory)
            self.work.tokenizer.save_pretrained(str(directory))
            steps, steps_per_epoch = self.work.steps, self.work.order.steps_per_epoch
            written = trainer_state(self.config, steps, steps_per_epoch, self.state, self.metrics.path)
            write_json(directory / "trainer_state.json", written)
            if with_state:
                self.session.save_state(directory)
                self.state.save(directory)

        self.metrics.sync()
        self.saved = checkpoints.write(self.output_dir, self.state.step, fill, self.session.release)
        checkpoints.keep_newest(self.output_dir, self.config.save_total_limit, self.session.release)
        self.display.saved(self.saved)

    def stop_if_asked(self) -> None:
        """After a signal: saves the step just done, unless it is durable without, and leaves.

        A run whose last step is done goes on to its end."""
        if not self.interruption or self.state.step == self.work.steps:
            return
        if not self.seconds and self.state.step == 0:
            raise Interrupted("interrupted before the first step; there is nothing to save", self.interruption.signal)
        if self.seconds and not self.every_step and (self.saved is None or self.config.save_only_model):
            self.save(with_state=True)
        raise self.interrupted()

    def interrupted(self) -> Interrupted:
        if self.every_step:
            self.session.settle()
        self.interruption.all_is_saved()
        where = "on its storage paths" if self.every_step else f"in {self.output_dir}"
        return Interrupted(
            f"interrupted: step {self.state.step} of {self.work.steps} is saved {where}; "
            f"go on with: spillway resume {shlex.quote(str(self.output_dir))}",
            self.interruption.signal,
        )

    def summary(self, session: Session) -> dict[str, Any]:
        """summary.json: prediction beside measurement."""
        return summary(self.config, session.plan, session.measured(), self.state, self.seconds)
