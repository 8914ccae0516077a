"""The loop: batches in order, a rate for each step, rows, evaluations, checkpoints.

Everything the loop decides follows from the configuration, the data and the step, so a resumed run goes on exactly.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from spillway.base.files import flush, write_json
from spillway.base.sums import Mean, add_told
from spillway.config import Config
from spillway.data.dataset import Dataset
from spillway.data.order import Order, in_file_order
from spillway.data.preferences import Preferences
from spillway.data.prompts import Prompts
from spillway.errors import ComputationDiffers, Interrupted
from spillway.model.batches.batch import Batch, WorkShape
from spillway.output import checkpoints, displaced, saved, unsaved
from spillway.output.padding import name_padding
from spillway.output.records import METRICS, rows
from spillway.output.state import RunState
from spillway.output.summary import perplexity, summary
from spillway.output.trainer_state import trainer_state
from spillway.run import reference
from spillway.run.events import Events
from spillway.run.interruption import Interruption
from spillway.run.progress import Display
from spillway.run.protocol import SessionProtocol, StepResult
from spillway.run.rates import Rate
from spillway.run.reference import Pass, Reference
from spillway.run.run import Run
from spillway.run.sampling import Sampler
from spillway.run.teacher import require_same


@dataclass(frozen=True)
class Work:
    """The work of one run: data, order and rates."""

    train: Dataset | Preferences | Prompts
    held_out: Dataset | Preferences | None
    tokenizer: Any
    order: Order
    rate: Rate
    events: Events
    shape: WorkShape
    started: datetime | None = None  # the time that a chat template rendered; None: no template asked
    sampler: Sampler | None = None  # of completions; None: rows hold all that a step needs

    def explain_refusals(self) -> AbstractContextManager[None]:
        """A refusal of a plan says what the sampling of completions takes of its memory."""
        return nullcontext() if self.sampler is None else self.sampler.memory.explain_refusals()

    @property
    def steps(self) -> int:
        return self.events.steps

    @property
    def padding(self) -> int:
        """The token that fills rows up."""
        return (self.train.rows if isinstance(self.train, Preferences) else self.train).pad

    @property
    def preferences(self) -> dict[str, Preferences]:
        """The pairs that a reference model reads first, by name; none where each step has its own."""
        if self.shape.refers:
            return {}
        data = {"train": self.train, "eval": self.held_out}
        return {name: each for name, each in data.items() if isinstance(each, Preferences) and each.has_reference}

    @property
    def taught(self) -> dict[str, Dataset]:
        """Rows that a teacher looks at first."""
        if not self.shape.teacher_top_k:
            return {}
        data = {"train": self.train, "eval": self.held_out}
        return {name: each for name, each in data.items() if isinstance(each, Dataset)}

    @property
    def pairs(self) -> int:
        return sum(map(len, self.preferences.values()))

    @property
    def reference_values(self) -> int:
        """Log-probabilities that the reference gives."""
        return sum(int(data.value_starts()[-1]) for data in self.preferences.values())

    def passes(self, config: Config, name: str) -> Pass:
        """How the reference looks at one of them: by micro-batches of its own size, as many as a step has."""
        training = name == "train"
        pairs = config.per_device_train_batch_size if training else config.per_device_eval_batch_size
        return Pass(pairs, self.shape.micro_batches)


@dataclass
class Loop:
    """Runs the steps after `state.step`."""

    run: Run
    work: Work
    state: RunState
    display: Display
    interruption: Interruption
    references: dict[str, Reference] = field(default_factory=dict)  # of `work.preferences`, whole
    seconds: list[float] = field(default_factory=list)  # of every step of this process
    session: SessionProtocol = field(init=False)
    saved: Path | None = field(init=False)  # the checkpoint that holds `state.step`
    every_step: bool = field(init=False)  # each step is durable once it is committed
    told_displaced: bool = False  # a volume lost its file, and nothing depends on it
    between: bool = True  # no step or evaluation is under way: the session can be saved

    def __post_init__(self) -> None:
        self.config, self.world, self.output_dir = self.run.config, self.run.world, self.run.output_dir

    def train(self, session: SessionProtocol, saved: Path | None) -> None:
        """`session` is started and has committed `state`, which checkpoint `saved` holds if there is one.

        Raises Interrupted, state saved."""
        self.session = session
        self.saved = saved
        self.committed = True  # the session has the step that the state says
        self.every_step = session.planned.durability == "step"
        self.run.open_metrics()
        if self.every_step and self.world.leads:
            flush(self.output_dir)  # the file is there after a power cut, too
        self.refer()
        self.display.start(self.state.step, self.work.steps)
        self.run.trackers.start(self.state.step, self.work.steps)
        try:
            if self.world.agreed(self.evaluation_missing):
                self.evaluate()
            if self.save_missing():
                self.save(with_state=not self.config.save_only_model)
            while self.state.step < self.work.steps:
                self.stop_if_asked()
                self.step()
                self.require_volumes()
                self.stop_if_asked()
                if self.work.events.evaluation_due(self.state.step):
                    self.evaluate()
                if self.work.events.save_due(self.state.step):
                    self.save(with_state=not self.config.save_only_model or bool(self.interruption))
                    self.require_volumes()
            if self.interruption and self.world.agreed(self.evaluation_missing):
                raise self.interrupted()
        finally:
            self.display.stop()
            self.run.close_records()
        if self.saved is not None and self.world.leads:
            checkpoints.publish(self.saved, self.output_dir)

    def refer(self) -> None:
        """Gives pairs what the reference model makes of them: from the run's files, or by a first pass.

        Raises Interrupted in between; what was computed stays."""
        self.between = False
        if self.state.step:
            self.find_references()
        require_same(self.state, self.work.taught)
        for name, data in self.work.preferences.items():
            record = self.references.get(name) or self.reference(name, data)
            record.keep(self.output_dir)
            data.reference = record.values
            self.state.reference[name] = record.digest
            self.references[name] = record
        self.between = True

    def find_references(self) -> None:
        """Finds the references of a run that has made steps. InputError where they are not there as they were."""
        places = [self.output_dir, *filter(None, [self.run.start.resume])]
        for name, data in self.work.preferences.items():
            digest = self.state.reference.get(name)
            self.references[name] = reference.load_known(self.world, name, data, places, digest)

    def reference(self, name: str, data: Preferences) -> Reference:
        """The reference of a run that has made no step."""
        record = reference.open_stored(self.world, self.output_dir, name, data)
        if not record.whole:
            what = "" if name == "train" else " of eval_dataset"
            self.display.say(f"reference log-probabilities of {len(data)} rows{what}: a first pass computes them")

            def tell(done: int) -> None:
                self.display.share(done, len(data))
                self.stop_if_asked()

            record.compute(self.session, data, self.work.passes(self.config, name), tell)
        return record

    def step(self) -> None:
        batches = self.make_batches()
        learning_rate = self.work.rate(self.state.step)
        self.between = False
        result = self.compute(batches, learning_rate)
        self.between = True
        tokens = sum(batch.tokens for batch in batches)
        self.state.step += 1
        self.state.epoch = self.work.order.epoch_after(self.state.step)
        self.state.tokens_seen += tokens
        self.state.skipped += result.skipped
        self.state.losses.add(result.loss_sum / result.label_tokens)
        add_told(self.state.told, result.told)
        self.seconds.append(result.seconds)
        self.saved, self.committed = None, False
        logged = self.work.events.log_due(self.state.step)
        if logged:
            self.log(result, tokens, learning_rate)
        self.session.commit(self.state.moving())
        self.committed = True
        self.display.step(self.state.step, result, tokens, learning_rate, logged)
        if result.skipped:
            self.display.note(f"step {self.state.step}: the gradient is not finite, nothing was updated")
        for notice in self.session.notices():
            self.display.note(f"step {self.state.step}: {notice}")
        self.run.tell_so_far(self.session, len(self.seconds), lambda: self.summary(self.session))

    def make_batches(self) -> list[Batch]:
        """The micro-batches of the next step."""
        parts, train = self.work.order.step(self.state.step), self.work.train
        if self.work.sampler is not None:
            return self.work.sampler.sample(self.session, parts[0], self.state.step, self.work.steps)
        assert not isinstance(train, Prompts)
        return [train.batch(part) for part in parts]

    def compute(self, batches: list[Any], learning_rate: float) -> StepResult:
        """Computes a step. Raises ComputationDiffers with the place of the state before the step."""
        try:
            return self.session.step(batches, learning_rate)
        except ComputationDiffers as error:
            words = self.keep_state(error.memory_changed)
            raise ComputationDiffers(f"{error}. {words}", error.memory_changed) from error

    def keep_state(self, memory_changed: bool) -> str:
        """Saves the state before a step without an update, and returns its place. All processes make the call."""
        step, go_on = self.state.step, f"go on with: spillway resume {shlex.quote(str(self.output_dir))}"
        if self.every_step:
            return f"Step {step} is durable on the storage paths; {go_on}"
        if step == 0:
            return "No step was done before, so there is nothing to save"
        if self.saved is None and memory_changed:
            return f"Step {step} is not saved, since its weights have changed; from the last checkpoint, {go_on}"
        if self.saved is None or self.config.save_only_model:
            self.save(with_state=True)
        return f"Step {step} is saved in {self.saved}; {go_on}"

    def log(self, result: StepResult, tokens: int, learning_rate: float) -> None:
        now, loss = self.state, self.state.losses.value()
        row = result.row(now.step, loss, tokens, learning_rate, now.epoch, now.skipped)
        row |= {name: mean.value() for name, mean in now.told.items()}
        self.run.log(row, sync=self.every_step)
        self.state.losses.clear()
        self.state.told.clear()

    def save_missing(self) -> bool:
        """True if a signal or a crash came between a durable step and its checkpoint."""
        return self.saved is None and self.state.step > 0 and self.work.events.save_due(self.state.step)

    def evaluation_missing(self) -> bool:
        """True if a signal or a crash came between a step and its evaluation."""
        done = (row["step"] for row in rows(self.output_dir / METRICS) if "eval_loss" in row)
        return self.work.events.evaluation_due(self.state.step) and self.state.step not in done

    def complete(self) -> bool:
        return self.state.step >= self.work.steps and not self.evaluation_missing()

    def evaluate(self) -> None:
        """The loss over all of the held-out rows. A signal ends it without a row; the resumed run does it again."""
        assert self.work.held_out is not None
        parts = in_file_order(len(self.work.held_out), self.config.per_device_eval_batch_size)
        sums, count = [], 0
        means: dict[str, Mean] = {}
        self.between = False
        for first in range(0, len(parts), self.work.shape.micro_batches):
            if self.is_asked_to_stop():
                self.between = True
                return
            group = parts[first : first + self.work.shape.micro_batches]
            loss_sum, label_tokens = self.session.evaluate([self.work.held_out.batch(part) for part in group])
            sums.append(loss_sum)
            count += label_tokens
            if self.config.objective_entry.tells:
                add_told(means, self.session.list_figures())
        self.between = True
        loss = math.fsum(sums) / count
        row = {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "eval_loss": loss,
            **({} if self.config.objective_entry.tells else {"eval_perplexity": perplexity(loss)}),
            **{f"eval_{name}": mean.value() for name, mean in means.items()},
        }
        self.run.log(row)
        self.display.evaluation(row)

    def require_volumes(self) -> None:
        """VolumeDisplaced if a volume lost its file, after a save that needs no volume. A run without durable steps
        gets a notice and goes on."""
        if self.session.planned.durability != "none":
            self.run.require_volumes(self.session, lambda: self.save(with_state=True))
        elif not self.told_displaced and (volumes := self.session.displaced_volumes()):
            self.display.note(displaced.describe(volumes))
            self.told_displaced = True

    def save(self, with_state: bool) -> None:
        """Writes checkpoint-STEP, with or without what a resume needs."""
        self.saved = self.world.gather(self.write(with_state) if self.world.leads else self.give(with_state))[0]

    def give(self, with_state: bool) -> Path:
        """Writes this process's part of a checkpoint that rank 0 writes."""
        place = self.output_dir / f"checkpoint-{self.state.step}"
        self.session.save_model(place)
        if with_state:
            self.session.save_state(place, self.work.events.whole_due(self.state.step))
        return place

    def write(self, with_state: bool) -> Path:
        self.run.metrics.sync()
        saved = self.run.write_checkpoint(self.session, self.state.step, lambda place: self.fill(place, with_state))
        self.run.keep_newest(self.session)
        self.display.saved(saved)
        return saved

    def fill(self, place: Path, with_state: bool) -> None:
        """An empty directory, with a checkpoint."""
        self.session.save_model(place)
        self.work.tokenizer.save_pretrained(str(place))
        if self.config.objective_entry.has_head and self.config.method != "lora":
            name_padding(place / "config.json", self.work.padding)
        steps, steps_per_epoch = self.work.steps, self.work.order.steps_per_epoch
        written = trainer_state(self.config, steps, steps_per_epoch, self.state, self.run.metrics.path)
        write_json(place / "trainer_state.json", written)
        if with_state:
            self.session.save_state(place, self.work.events.whole_due(self.state.step))
            self.state.save(place)
            for each in self.references.values():
                each.copy(place)
        saved.record_files(place)

    def leave(self) -> str:
        """Leaves a state that could not be saved here, and says so in words. Empty where nothing is to be said, or the
        session is in the middle of something."""
        if not self.between or not self.state.step or not hasattr(self, "session"):
            return ""
        step = f"step {self.state.step}"
        if self.saved is not None:
            return f"{step} is saved in {self.saved}"
        if self.every_step and not self.committed:
            return f"{step} is not durable yet; the run goes on from the one before, and does it again"
        lost = f"{step} is lost with this process, since its volumes lost their files"
        if self.session.displaced_volumes():
            self.session.stand_alone()
            return self.save_elsewhere() or self.save_model_alone() or lost
        try:
            words = self.run.leave_state(self.session, self.state.moving())
            return f"{step} is not saved, but {words}"
        except Exception as error:
            if self.session.planned.durability != "none":
                return ""  # what is durable was so before
            lost = f"{step} is lost with this process, since it cannot stay on a storage path: {unsaved.why(error)}"
        return self.save_elsewhere() or self.save_model_alone() or lost

    def save_elsewhere(self) -> str:
        """A whole checkpoint in a storage directory that has room for it, named in words."""
        needed = self.count_whole_bytes()
        for place in unsaved.with_room(self.config, needed):
            target = place / f"{self.output_dir.name}-checkpoint-{self.state.step}"
            with suppress(Exception):
                checkpoints.write_directory(target, lambda found: self.fill(found, with_state=True))
                return f"step {self.state.step} is saved in {target} instead"
        return ""

    def count_whole_bytes(self) -> int:
        """Bytes of a checkpoint that stands alone; 0 where nothing was planned for saves."""
        planned = self.session.planned
        if planned.saving is None:
            return 0
        state = sum(part.bytes for part in planned.bytes if part.class_ == "state")
        return max(planned.saving.checkpoint_bytes, planned.saving.weights + state)

    def save_model_alone(self) -> str:
        """Saves the weights alone, which take less room than a checkpoint and need no tokenizer or configuration."""
        return self.save_at_root(lambda place: self.fill(place, with_state=False), "model") or self.save_at_root(
            self.session.save_weights_alone, "weights"
        )

    def save_at_root(self, fill: Callable[[Path], None], what: str) -> str:
        """Saves files at the root of output_dir. Returns a notice; empty on failure."""
        with suppress(Exception):
            self.run.write_model(fill)
            verb = "is" if what == "model" else "are"
            return (
                f"the {what} of step {self.state.step} alone {verb} saved in {self.output_dir}; the state of its "
                "optimizer, without which nothing can go on from it, is lost with this process"
            )
        return ""

    def stop_if_asked(self) -> None:
        """After a signal: saves the step just done, unless it is durable without, and leaves.

        A run whose last step is done goes on to its end."""
        if not self.is_asked_to_stop() or self.state.step == self.work.steps:
            return
        if not self.seconds and self.state.step == 0:
            raise Interrupted("interrupted before the first step; there is nothing to save", self.interruption.signal)
        if self.seconds and not self.every_step and (self.saved is None or self.config.save_only_model):
            self.save(with_state=True)
        raise self.interrupted()

    def is_asked_to_stop(self) -> bool:
        """True if a signal has come to any of the run's processes. All ask at the same places, so all stop there."""
        if self.world.ranks.world > 1:
            self.interruption.agree(self.world.gather(self.interruption.signal))
        return bool(self.interruption)

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

    def summary(self, session: SessionProtocol) -> dict[str, Any]:
        """summary.json: prediction beside measurement."""
        return summary(self.config, session.planned, session.measured(), self.state, self.seconds)
