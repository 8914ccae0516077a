"""`spillway.Session`: a run for a training loop of your own.

    with spillway.Session(model="./Qwen2.5-1.5B", storage=["/mnt/nvme/spillway"], dram_budget="4GiB",
                          learning_rate=1e-5, max_steps=1000, max_length=1024,
                          per_device_train_batch_size=1, gradient_accumulation_steps=8) as session:
        for micro_batches in my_batches:            # dictionaries of input_ids and labels
            metrics = session.step(micro_batches)   # loss, grad_norm, learning_rate ...
        session.save("tuned")

With an `output_dir` it is a run as `spillway train` makes one: a bar on a terminal, its metrics in metrics.jsonl and
for `report_to`, finished steps durable where its state lies on a path, `resume_from_checkpoint` goes on with it, and
when it closes it leaves summary.json, timeline.json.gz, loss.png and report.html.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from spillway import report
from spillway.base.files import replace_text, write_json
from spillway.base.sums import Mean, add_told
from spillway.config import Config, normalised, read_file, resolve
from spillway.config.checks import check
from spillway.errors import InputError, SpillwayError
from spillway.machine import products
from spillway.model import hub
from spillway.model.batch import WorkShape
from spillway.output import checkpoints, directory, identity, left, saved, state, unsaved
from spillway.output.records import METRICS, Metrics
from spillway.output.so_far import SoFar
from spillway.output.state import RunState
from spillway.output.summary import endurance, perplexity, summary
from spillway.report.plot import plot_apart
from spillway.run import rates, room
from spillway.run.progress import Display
from spillway.run.protocol import Keeping, StartPoint, StepResult
from spillway.run.trackers import Trackers

if TYPE_CHECKING:
    from spillway.model.batch import Batch
    from spillway.model.own import Blocks
    from spillway.run.session import EngineSession

# input_ids, labels, and where wanted attention_mask, position_ids: [rows, length]; of pairs see Session.reference
MicroBatch = Mapping[str, Any]
SAVE_AGAIN = "the session still has the state: save it to another directory before it closes"
STEADY = ("constant", "constant_with_warmup", "inverse_sqrt")  # schedules that need no end


class Session:
    """Construction plans (DoesNotFit, InputError) and allocates nothing; `open`, or `with`, or the first use starts."""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        module: Blocks | None = None,
        **values: Any,
    ) -> None:
        """Keys as everywhere; `values` win. The largest step is `gradient_accumulation_steps` micro-batches of
        `per_device_train_batch_size` rows of `max_length` tokens; evaluations take `per_device_eval_batch_size` rows
        where that is given, else as many. `module`: code of your own, whose weights lie in the directory `model`, as
        safetensors under the names of its state_dict; None: transformers' own, by the config.json there."""
        config, given = merged(config, values)
        check(config, required=("model",), described=module is None)
        self._module = module
        if config.output_dir is None and (config.resume_from_checkpoint or config.durability not in (None, "none")):
            raise InputError(
                "output_dir: durability and resume_from_checkpoint are of a run that lives in one; give it"
            )
        if config.output_dir is None and config.report_to:
            raise InputError("report_to: what is tracked is of a run that lives in an output_dir; give it")
        self._opened = self._closed = False
        self._left = False  # a save failed, and the state stays on the storage paths
        self._made: Path | None = None  # the checkpoint that `save` wrote last
        self._metrics: Metrics | None = None
        self._schedule: rates.Rate | None = None
        self._seconds: list[float] = []  # of the steps of this process
        self._told: set[str] = set()  # notices
        self._pairs = config.objective == "dpo"
        self._start = directory.decide(config) if config.output_dir is not None else None
        self._so_far = SoFar(self._start.output_dir) if self._start is not None else None
        self._trackers = Trackers(config, self._start.output_dir) if self._start is not None else None
        self._display = Display(Console(stderr=True), endurance(config))
        config, self._state, self._identity = begun(config, self._start)
        self._config = hub.settled(products.settled(config), self._display.note, ("model", "tokenizer"))
        if not self._state.fixed:
            self._state.fixed = state.fixed_keys(self._config)
        self._interval = logging_interval(self._config)  # bad input is refused before anything is planned
        self._shape = shape_of(self._config, given)
        self._engine = self._planned()

    @property
    def plan(self) -> dict[str, Any]:
        """The content of plan.json."""
        return self._engine.plan

    @property
    def steps(self) -> int:
        """Done so far, those before a resume too: how far a loop has to skip in its data."""
        return self._state.step

    @property
    def model(self) -> Any:
        """The model as it is now, to be called (`model(input_ids).logits`) and for `model.generate(input_ids)`. Every
        pass streams its layers, so text comes slowly. Good until the session closes."""
        return self.open()._engine.model

    def open(self) -> Session:
        """Maps the memory, opens the storage paths, loads weights or what the run goes on from. Once."""
        if self._opened:
            return self
        self._opened = True
        if self._start is None:
            self._engine.start(StartPoint())
        else:
            self._open_run(self._start)
        self._tell_notices()
        return self

    def step(self, batches: MicroBatch | Sequence[MicroBatch], learning_rate: float | None = None) -> dict[str, Any]:
        """One optimizer step over one micro-batch or several; the row of metrics.jsonl. `learning_rate`: instead of
        the schedule's."""
        taken = self._taken(batches, self._shape.micro_batches)
        rate = self._rate(self._state.step) if learning_rate is None else learning_rate
        engine = self.open()._engine
        self._take_back()
        result = engine.step(taken, rate)
        return self._record(result, sum(batch.tokens for batch in taken), rate)

    def reference(self, batches: MicroBatch | Iterable[MicroBatch]) -> list[dict[str, Any]]:
        """With `objective: dpo`, before the first step: these micro-batches of pairs with `ref_chosen_logps` and
        `ref_rejected_logps`, [pairs] fp64, what the model makes of their rows as it is now.

        A micro-batch of pairs is what TRL's DataCollatorForPreference makes: input_ids, attention_mask and
        completion_mask, [rows, length], rows that were chosen and then as many that were rejected. `step` and
        `evaluate` take those that have both columns, of this model or of any other. A run that is resumed is not its
        reference any more: keep what this returns, with `torch.save`."""
        if not self._pairs:
            raise InputError(f"reference: it is for objective dpo, and the objective is {self._config.objective}")
        self.open()
        if self._state.step:
            raise InputError(
                f"reference: the reference is the model before the first step, and this one has made "
                f"{self._state.step}; give the micro-batches that it returned then"
            )
        found: list[dict[str, Any]] = []
        for batch in [batches] if isinstance(batches, Mapping) else batches:
            (rows,) = self._engine.log_probabilities(self._taken(batch, 1, referred=False))
            found.append({**batch, **as_columns(rows)})
        return found

    def evaluate(self, batches: MicroBatch | Iterable[MicroBatch]) -> dict[str, Any]:
        """Loss over all label tokens of all batches: eval_loss, eval_perplexity, label_tokens. Of pairs eval_loss, what
        TRL tells besides (eval_rewards/margins ...), pairs."""
        self.open()
        sums, count = [], 0
        means: dict[str, Mean] = {}
        for batch in [batches] if isinstance(batches, Mapping) else batches:
            loss_sum, units = self._engine.evaluate(self._taken(batch, 1))
            sums.append(loss_sum)
            count += units
            if self._pairs:
                add_told(means, self._engine.told())
        if not count:
            raise InputError("batch: nothing to evaluate, no token has a label")
        loss = math.fsum(sums) / count
        found = {"eval_loss": loss, **({} if self._pairs else {"eval_perplexity": perplexity(loss)})}
        found |= {f"eval_{name}": mean.value() for name, mean in means.items()}
        self._log({"step": self._state.step, **found})
        return {**found, "pairs" if self._pairs else "label_tokens": count}

    def save(self, to: str | Path | None = None) -> Path:
        """The model as `from_pretrained` reads it, in `to` or else in `output_dir`; and, unless finished steps are
        durable on the storage paths anyway, what `resume_from_checkpoint: DIR` needs to go on bit by bit: in `to`, or
        in a checkpoint in `output_dir`. It is there whole or not at all, and an earlier save until then.

        Where it fails, the session still has the state, for another directory; of a run in an `output_dir` it stays on
        the storage paths, too, for `spillway export`."""
        place = to or self._config.output_dir
        if place is None:
            raise InputError("save: neither a directory nor an output_dir is given")
        target = Path(place)
        own = None if self._start is None else self._start.output_dir
        in_run = own is not None and same_place(target, own)
        if not in_run:
            refuse_a_run(target)
        self.open()
        try:
            self._save_in_run(target) if in_run else checkpoints.write_directory(target, self._fill)
        except InputError:
            raise
        except Exception as error:
            raise SpillwayError(f"save: {unsaved.why(error)}; {SAVE_AGAIN}{self._leave()}") from error
        self._take_back()
        return target

    def _fill(self, place: Path) -> None:
        """An empty directory."""
        self._engine.save_model(place)
        self._save_tokenizer(place)
        if self.plan.get("durability", "none") == "none":
            self._engine.save_state(place)
            self._state.save(place)
            saved.record_files(place)

    def _save_in_run(self, output_dir: Path) -> None:
        """A checkpoint with the state in place of the one before, or where steps are durable without, the model alone;
        and that at the root."""
        if self.plan.get("durability", "none") == "none":
            release, limit = self._engine.release, self._config.save_total_limit
            made = checkpoints.write(output_dir, self._state.step, self._fill, release, self._display.note)
            checkpoints.publish(made, output_dir)
            told = checkpoints.keep_newest(output_dir, limit, release)
            if limit is None and self._made is not None and self._made != made and self._made.is_dir():
                told = checkpoints.tried(self._made, release)
            self._made = made
            for words in told:
                self._display.note(words)
            return
        temporary = output_dir / ".tmp-model"
        directory.remove(temporary)
        try:
            checkpoints.write_directory(temporary, self._fill)
            checkpoints.publish(temporary, output_dir)
        finally:
            directory.remove(temporary)

    def _leave(self) -> str:
        """What could not be saved stays where it is; in words that go on a sentence."""
        if self._start is None:
            return ""
        try:
            self._left = True
            return "; " + unsaved.leave(self._engine, self._config, self._start.output_dir, self._state.moving())
        except Exception as error:
            return f"; it cannot stay on a storage path: {unsaved.why(error)}"

    def _take_back(self) -> None:
        """It was saved after all, or training goes on."""
        if self._left and self._start is not None:
            left.forget(self._start.output_dir, self._config.paths)
            self._engine.take_back()
        self._left = False

    def close(self) -> None:
        """Gives memory and storage paths back. In an `output_dir` it leaves summary, timeline, loss curve and page."""
        if self._closed:
            return
        self._closed = True
        self._display.stop()
        try:
            if self._metrics is not None and self._start is not None:
                output_dir = self._start.output_dir
                write_json(output_dir / "summary.json", self._summary())
                self._engine.write_timeline(output_dir / "timeline.json.gz")
                if self._so_far is not None:
                    self._so_far.ended()
        finally:
            if self._trackers is not None:
                self._trackers.stop()
            if self._metrics is not None:
                self._metrics.close()
            self._engine.close()
        self._draw()

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self) -> None:
        """What is no reason to fail a run, when the engine's memory is free again."""
        if self._start is None or not self._seconds:
            return
        output_dir = self._start.output_dir
        if reason := plot_apart(output_dir / METRICS, output_dir / "loss.png", f"Training loss: {output_dir.name}"):
            self._display.note(f"no loss.png: {reason}")
        try:
            report.write(output_dir)
        except Exception as error:
            self._display.note(f"no report: {error}; `spillway report {output_dir}` tries again")

    def _planned(self) -> EngineSession:
        from spillway.run.session import EngineSession

        config = self._config.replaced(output_dir=self._config.output_dir or str(Path.cwd()))
        kept = 0 if self._start is None or self._start.clear else len(directory.manifests(self._start.output_dir))
        start = self._start
        saving = None if start is None else room.of_run(config, start, self._state.step, saves=1, rows=config.max_steps)
        keeps, resumes = config.durability != "none", start is not None and start.from_paths
        keeping = Keeping(self._identity.run, kept, keep=keeps, resumes=resumes, saving=saving)
        own = None
        if self._module is not None:
            from spillway.model.own import OwnConfig

            own = OwnConfig(self._module)
        return EngineSession(config, self._shape, keeping=keeping, model_config=own)

    def _open_run(self, start: directory.Start) -> None:
        self._identity.fixed = self._state.fixed
        self._identity.durability = self.plan.get("durability", "none")
        self._identity.steps = max(self._config.max_steps, 0)
        with self._identity.claim(start.output_dir):
            recovery = self._engine.start(StartPoint(start.resume, start.durable, start.fresh, start.held))
        if recovery is not None:
            self._state = RunState.of(recovery.state, self._state.fixed)
        goes_on = recovery is not None or start.resume is not None
        directory.prepare(start, fresh=not goes_on)
        (start.output_dir / identity.FOLDER).mkdir(exist_ok=True)
        write_json(start.output_dir / identity.DESCRIPTION, self._engine.description)
        write_json(start.output_dir / identity.SETTINGS, self._engine.settings)
        replace_text(start.output_dir / "config.yaml", self._config.text())
        write_json(start.output_dir / "plan.json", self.plan)
        self._identity.save(start.output_dir)
        if recovery is None:
            self._engine.commit(self._state.moving())
        if goes_on:
            self._engine.settle()
            checkpoints.go_back(start.output_dir, self._state.step, self._engine.release)
        self._metrics = Metrics(start.output_dir / METRICS)
        assert self._trackers is not None
        self._trackers.start(self._state.step, max(self._config.max_steps, 0))
        if self._display.console.is_terminal:
            self._display.start(self._state.step, max(self._config.max_steps, 0))

    def _record(self, result: StepResult, tokens: int, rate: float) -> dict[str, Any]:
        self._state.step += 1
        self._state.tokens_seen += tokens
        self._state.skipped += result.skipped
        self._seconds.append(result.seconds)
        loss = result.loss_sum / result.label_tokens if result.label_tokens else math.nan
        row = result.row(self._state.step, loss, tokens, rate, skipped_steps=self._state.skipped)
        self._state.losses.add(loss)
        own: dict[str, Mean] = {}
        add_told(self._state.told, result.told)
        add_told(own, result.told)
        logged = self._state.step % self._interval == 0
        if logged:
            means = {name: mean.value() for name, mean in self._state.told.items()}
            self._log({**row, "loss": self._state.losses.value(), **means})
            self._state.losses.clear()
            self._state.told.clear()
        if self._start is not None:
            self._engine.commit(self._state.moving())
            self._display.step(self._state.step, result, tokens, rate, logged=False)
        self._tell_notices()
        if self._so_far is not None:
            self._so_far.tell(self._engine, len(self._seconds), self._summary)
        return row | {name: mean.value() for name, mean in own.items()}

    def _log(self, row: dict[str, Any]) -> None:
        """To metrics.jsonl, before the step is durable, and to trackers."""
        if self._metrics is not None and self._trackers is not None:
            self._metrics.add(row)
            if self.plan.get("durability") == "step":
                self._metrics.sync()
            self._trackers.log(row)

    def _tell_notices(self) -> None:
        chosen = products.said(self._config.compute_dtype, self._config.chosen)
        for notice in [chosen, *products.warnings(self._config), *self._engine.notices()]:
            if notice and notice not in self._told:
                self._told.add(notice)
                self._display.note(notice)

    def _summary(self) -> dict[str, Any]:
        return summary(self._config, self.plan, self._engine.measured(), self._state, self._seconds)

    def _rate(self, step: int) -> float:
        if self._schedule is None:
            self._schedule = schedule_of(self._config)
        return self._schedule(step)

    def _taken(self, batches: MicroBatch | Sequence[MicroBatch], most: int, referred: bool = True) -> list[Batch]:
        """`referred`: pairs have what the reference makes of them."""
        several = [batches] if isinstance(batches, Mapping) else list(batches)
        return planned_for(several, most, self._shape, self._config, referred)

    def _save_tokenizer(self, target: Path) -> None:
        """Where there is one: a loop of its own may well do without."""
        from spillway.data.loading import load_tokenizer

        try:
            tokenizer = load_tokenizer(self._config)
        except InputError:
            return
        tokenizer.save_pretrained(str(target))


def begun(config: Config, start: directory.Start | None) -> tuple[Config, RunState, identity.Identity]:
    """`config` as the run that is there, or that there is none, makes it; how far that run has come, and which it is.
    InputError where it is another one."""
    if start is None:
        return config.replaced(durability="none", output_dir=None), RunState(), identity.new(Path.cwd())
    known = identity.load(start.output_dir) or identity.new(start.output_dir)
    saved = RunState.load(start.resume) if start.resume else None
    if saved is None and start.durable and known.fixed:
        saved = RunState(fixed=known.fixed)
    if saved is None:
        return config, RunState(), known
    config = state.same_revisions(saved.fixed, state.same_products(saved.fixed, config))
    state.converted(saved, config, start.stands_alone)
    state.check_keys(saved.fixed, config)
    return state.same_durability(known.durability, config), saved, known


def logging_interval(config: Config) -> int:
    """Steps between two rows of metrics.jsonl; below 1 `logging_steps` is a share of `max_steps`."""
    asked = config.logging_steps
    if asked >= 1:
        return int(asked)
    if config.max_steps < 1:
        raise InputError(f"logging_steps: {asked} is a share of max_steps, which is not given")
    return math.ceil(config.max_steps * asked)


def schedule_of(config: Config) -> rates.Rate:
    if config.max_steps < 1 and config.lr_scheduler_type not in STEADY:
        raise InputError(
            f"max_steps: the schedule {config.lr_scheduler_type} needs an end; give it, or lr_scheduler_type: "
            "constant, or step(..., learning_rate=...)"
        )
    return rates.schedule(config, max(config.max_steps, 1))


def planned_for(batches: list[MicroBatch], most: int, shape: WorkShape, config: Config, referred: bool) -> list[Batch]:
    """The micro-batches as the engine's session takes them. InputError where there are more than `most`, or one is
    larger than `shape`. `referred`: pairs have what the reference makes of them."""
    from spillway.data.batches import batch_of, pairs_of

    if not 1 <= len(batches) <= most:
        raise InputError(
            f"gradient_accumulation_steps: the session was planned for steps of up to {most} micro-batches, not "
            f"{len(batches)}"
        )
    pairs = config.objective == "dpo"
    taken = [pairs_of(batch, referred) if pairs else batch_of(batch, bool(config.packing)) for batch in batches]
    room = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
    for batch in taken:
        if batch.input_ids.numel() > room:
            rows, length = batch.input_ids.shape
            raise InputError(
                f"max_length: the session was planned for {shape.batch} rows of {shape.length} tokens, not {rows} "
                f"of {length}; set per_device_train_batch_size and max_length to the largest there will be"
            )
    return taken


def as_columns(rows: list[float]) -> dict[str, Any]:
    """What was told of a micro-batch of pairs, in columns that are named as TRL names them."""
    import torch

    from spillway.data.batches import REFERENCE

    return dict(zip(REFERENCE, torch.tensor(rows, dtype=torch.float64).chunk(2), strict=True))


def same_place(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def refuse_a_run(target: Path) -> None:
    """A save would replace the file by which a run knows its storage paths."""
    try:
        known = identity.load(target)
    except InputError:  # an earlier save's file of the same name
        return
    if known is not None:
        raise InputError(f"save: {target} is the output_dir of a run; name another directory")


def merged(config: Config | Mapping[str, Any] | str | Path | None, values: dict[str, Any]) -> tuple[Config, set[str]]:
    """The configuration, and the names of the keys that were said."""
    name = "config" if config is None or isinstance(config, Config | Mapping) else str(config)
    if isinstance(config, Config):
        config = config.values()
    config = {} if config is None else config
    file_values = normalised(config, name) if isinstance(config, Mapping) else read_file(Path(config))
    said = normalised(values, "Session()")
    return resolve(copy.copy(file_values), said, name), {*file_values, *said}


def shape_of(config: Config, given: set[str]) -> WorkShape:
    batch = config.rows_each * config.per_device_train_batch_size
    evaluates = "per_device_eval_batch_size" in given
    evaluated = config.rows_each * config.per_device_eval_batch_size if evaluates else batch
    return WorkShape(config.gradient_accumulation_steps, batch, config.max_length, evaluated, config.max_length)
