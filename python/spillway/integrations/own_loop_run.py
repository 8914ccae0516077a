"""The run behind a Session: planned, opened, and how its steps are recorded; of several processes, which make the same
calls in the same order, each with what it gives to them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from spillway.base.sums import Mean, add_told
from spillway.config import Config
from spillway.config.checks import check
from spillway.errors import InputError
from spillway.integrations.own_loop_parts import (
    MicroBatch,
    check_count,
    describe_unused_keys,
    logging_interval,
    merged,
    plan_images,
    schedule_of,
    shape_of,
    take_batches,
)
from spillway.machine import products
from spillway.model.batches.batch import WorkShape
from spillway.model.source import hub
from spillway.output import state
from spillway.output.directory_lock import DirectoryLock
from spillway.output.state import RunState
from spillway.output.summary import endurance, summary
from spillway.report import tables
from spillway.run import beginning, rates, room
from spillway.run.alike import places
from spillway.run.leaving import close_all
from spillway.run.progress import Display
from spillway.run.protocol import StartPoint, StepResult
from spillway.run.run import Run, open_run, open_unrecorded_run
from spillway.run.trial_save import try_save
from spillway.run.world import World, ended_together

if TYPE_CHECKING:
    from spillway.model.batches.batch import Batch
    from spillway.model.source.own import Blocks
    from spillway.run.session import EngineSession


class OwnRun:
    """The implementation of a Session."""

    _world: World
    _opened: bool
    _closed: bool
    _config: Config
    _shape: WorkShape
    _engine: EngineSession
    _run: Run | None  # None without an output_dir
    _session_run: Run  # `_run`, or one that keeps no record
    _state: RunState
    _display: Display
    _lock: DirectoryLock | None  # the lock of output_dir; None without one

    @property
    def plan(self) -> dict[str, Any]:
        """The content of plan.json."""
        return self._engine.plan

    def _plan(self, config: Any, module: Blocks | None, images: MicroBatch | None, values: dict[str, Any]) -> None:
        config, given = merged(config, values)
        config, before, _ = beginning.load_existing_run(config, self._world)
        config = beginning.restrict_to_one_process(config, before, self._world)
        check(config, required=("model",), described=module is None)
        entry = config.objective_entry
        if (entry.has_head and not entry.is_labelled) or entry.has_teacher or entry.is_sampled:
            raise InputError(f"objective: {config.objective} is for `spillway train` alone in this release")
        if config.objective_entry.is_mismatched:
            raise InputError(
                f"objective: {config.objective} pairs each prompt with another row's answer before the first step; use "
                "`spillway train`"
            )
        places(self._world, config)
        self._module = module
        if config.output_dir is None and (config.resume_from_checkpoint or config.durability not in (None, "none")):
            raise InputError(
                "output_dir: durability and resume_from_checkpoint are of a run that lives in one; give it"
            )
        if config.output_dir is None and config.report_to:
            raise InputError("report_to: what is tracked is of a run that lives in an output_dir; give it")
        self._left = False  # a save failed, and the state stays on the storage paths
        self._made: Path | None = None  # the checkpoint that `save` wrote last
        self._schedule: rates.Rate | None = None
        self._seconds: list[float] = []  # of the steps of this process
        self._told: set[str] = set()  # notices
        self._unit = "pairs" if entry.compares else "labels" if entry.is_labelled else "label_tokens"
        world, saved, self._run = self._world, None, None
        self._display = Display(Console(stderr=True, quiet=not world.leads), endurance(config))
        if config.output_dir is not None:
            self._lock = DirectoryLock(Path(config.output_dir))
            weakref.finalize(self, self._lock.release)
            beginning.lock_directory(self._lock, config, world, self._display.note)
            self._run = open_run(config, world, self._display.note, self._display.open_log)
            saved, config = self._run.load_state(), self._run.config
            self._run.open_trackers()
        else:
            config = config.replaced(durability="none")
        self._state = saved or RunState()
        self._config = beginning.resolve_auto_keys(config, world, self._display.note, ("model", "tokenizer"))
        if not self._state.fixed:
            self._state.fixed = state.fixed_keys(self._config)
        self._try_save()
        self._interval = logging_interval(self._config)  # bad input is refused before anything is planned
        self._plan_shape(given, images)
        self._engine = self._plan_session()

    def _plan_shape(self, given: set[str], images: MicroBatch | None) -> None:
        if words := describe_unused_keys(self._config, given):
            self._display.note(words)
        self._shape = shape_of(self._config, given)
        self._arguments: frozenset[str] = frozenset()  # of the model, which come with images
        if images is None:
            return
        if self._module is not None:
            raise InputError("images: rows with images are for models of transformers; leave it out beside `module`")
        self._shape, self._arguments = plan_images(images, self._shape, self._config)

    def _try_save(self) -> None:
        """Tries what a save writes beside the weights; a loop of its own may do without a tokenizer."""
        from spillway.data.loading import load_tokenizer
        from spillway.model.source.labels import load_run_config

        own = self._module is not None
        described = None if own else load_run_config(self._config, hub.model_directory(self._config))
        try:
            tokenizer = load_tokenizer(self._config)
        except InputError:
            tokenizer = None
        try_save(self._config, described, tokenizer)

    def _plan_session(self) -> EngineSession:
        from spillway.run.session import EngineSession

        config = self._config.replaced(output_dir=self._config.output_dir or str(Path.cwd()))
        saving, most = None, 0
        if self._run is None:
            self._session_run = open_unrecorded_run(config, self._world, StartPoint())
        else:
            start, self._session_run = self._run.start, self._run
            self._run.config = self._config
            if self._world.leads:
                saves = [self._run.alone]
                saving = room.estimate_saving(config, start, self._state.step, saves, rows=config.max_steps)
            most = len(self._run.manifests())
        keeping = self._session_run.keep(most, saving)
        own = None
        if self._module is not None:
            from spillway.model.source.own import OwnConfig

            own = OwnConfig(self._module)
        return EngineSession(config, self._shape, keeping=keeping, model_config=own, world=self._world)

    def _begin(self, run: Run) -> None:
        steps = max(self._config.max_steps, 0)
        run.identity.fixed, run.identity.steps = self._state.fixed, steps
        recovery = run.restore(self._engine)
        if recovery is not None:
            self._state = RunState.of(recovery.state, self._state.fixed)
        run.begin(self._engine, recovery, self._state.step, self._state.moving())
        run.open_metrics()
        run.trackers.start(self._state.step, steps)
        if self._display.console.is_terminal:
            self._display.start(self._state.step, steps)

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
        if run := self._run:
            self._engine.commit(self._state.moving())
            self._display.step(self._state.step, result, tokens, rate, logged=False)
            if self._engine.planned.durability != "none":
                run.require_volumes(self._engine, lambda: self._write_checkpoint(run))
        self._tell_notices()
        if run:
            run.tell_so_far(self._engine, len(self._seconds), self._summary)
        return row | {name: mean.value() for name, mean in own.items()}

    def _write_checkpoint(self, run: Run) -> Path:
        """Writes the model and its state to a checkpoint in `output_dir`."""
        return run.write_checkpoint(self._engine, self._state.step, self._fill_whole)

    def _fill_whole(self, place: Path) -> None:
        raise NotImplementedError

    def _log(self, row: dict[str, Any]) -> None:
        """To metrics.jsonl, before the step is durable, and to trackers."""
        if self._run is not None:
            self._run.log(row, sync=self._engine.planned.durability == "step")

    def _tell_notices(self) -> None:
        chosen = products.said(self._config.compute_dtype, self._config.chosen)
        for notice in [
            tables.computes_on(self.plan.get("device_why", "")),
            chosen,
            *products.warnings(self._config),
            *self._engine.notices(),
        ]:
            if notice and notice not in self._told:
                self._told.add(notice)
                self._display.note(notice)

    def _summary(self) -> dict[str, Any]:
        return summary(self._config, self._engine.planned, self._engine.measured(), self._state, self._seconds)

    def _rate(self, step: int) -> float:
        if self._schedule is None:
            self._schedule = schedule_of(self._config)
        return self._schedule(step)

    def _take_batches(
        self, batches: MicroBatch | Sequence[MicroBatch], most: int, referred: bool = True
    ) -> list[Batch]:
        """The micro-batches of this process. `referred`: pairs come with the reference's log-probabilities."""
        several = [batches] if isinstance(batches, Mapping) else list(batches)
        check_count(len(several), 1 if self._world.ranks.world == 1 else 0, most)
        return take_batches(several, self._shape, self._config, referred, self._arguments)

    def _parts(self, call: str, own: list[Batch]) -> list[list[Batch]]:
        """The micro-batches that each process gives to this call, by rank."""
        calls = self._world.gather((call, own))
        if other := {name for name, _ in calls} - {call}:
            raise InputError(
                f"Session: this process called {call}, and another one {other.pop()}; all processes of a run make the "
                "same calls in the same order"
            )
        return [batches for _, batches in calls]

    def _rounds(
        self, call: str, batches: MicroBatch | Iterable[MicroBatch], referred: bool = True
    ) -> Iterator[tuple[MicroBatch | None, list[list[Batch]]]]:
        """One micro-batch of each process that still has one: this process's, and those of all, by rank."""
        given = iter([batches] if isinstance(batches, Mapping) else batches)
        while True:
            batch = next(given, None)
            parts = self._parts(call, [] if batch is None else self._take_batches(batch, 1, referred))
            if not any(parts):
                return
            yield batch, parts

    def _let_go(self) -> None:
        """All processes end by the failure of one."""
        self._closed = True
        close_all(lambda: self._engine.close(), lambda: self._display.stop(), self._close_records, self._unlock)

    def _close_records(self) -> None:
        if self._run is not None and self._run.records:
            self._run.close_records()

    def _unlock(self) -> None:
        """Releases the lock of output_dir."""
        if self._lock is not None:
            self._lock.release()

    def _end_together(self) -> AbstractContextManager[None]:
        """Around what all processes do together."""
        return ended_together(self._world, self._let_go)
