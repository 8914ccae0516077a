"""A Trainer's run whose finished steps are durable: on the storage paths, with where the Trainer stood after each.

A step is committed when it is logged and before it is evaluated or saved, which may follow it; what was due when a
process died is done first by the one that goes on. transformers goes on from a directory as from a checkpoint: the one
that `resumed` returns holds its files as they would have been saved after the last durable step.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spillway.base.documents import read_json
from spillway.base.files import flush, replace_text
from spillway.config import Config
from spillway.errors import InputError
from spillway.integrations.loading import LOGGER
from spillway.output import checkpoints, directory, identity, saved, state
from spillway.output.base_files import BASE
from spillway.output.directory import MANIFEST, RUN_STATE
from spillway.output.position import STATE as TRAINER_STATE
from spillway.output.position import Due, Log, Position, Row, packed, position_of, random_name
from spillway.run.leaving import close_after_failure
from spillway.run.protocol import Keeping, Recovery, Saving
from spillway.run.run import Run
from spillway.run.session import EngineSession

GOING_ON = Path(identity.FOLDER, "going_on")  # what transformers resumes from
SAVING = ".tmp-saving"  # a checkpoint that is not whole yet

Make = Callable[[Config, Keeping], EngineSession]


class DurableRun:
    """The files of one run in `output_dir` and on the storage paths."""

    def __init__(self, run: Run, checkpoints_at_once: int, rows: int | None, saving: Saving | None = None) -> None:
        """Looks only. `rows`: of the training data, where they can be counted; `saving`: to output_dir. InputError
        where the run may not start."""
        self.run, self._world, self._start, self.output_dir = run, run.world, run.start, run.output_dir
        self._scratch: Path | None = None
        config, known = run.config, run.identity
        resume, base = config.resume_from_checkpoint, {}
        if known.fixed and (run.start.resume is not None or run.start.durable):
            config = state.same_products(known.fixed, config)
            check_step(known.fixed, config)
            state.check_keys(known.fixed, config)
            check_rows(known.fixed.get("rows"), rows)
            run.config = config = state.same_durability(known.durability, config)
            base = {name: value for name, value in known.fixed.items() if name == BASE}
        known.fixed = state.fixed_keys(config) | {"rows": rows} | base
        self._named = not (resume is True or resume == "auto")
        self._at_once = checkpoints_at_once
        self._saving = saving
        self._manifests: dict[Path, bytes] = {}  # of the checkpoints that are there
        self.position: Position | None = None  # that it goes on from
        self.committed = 0  # steps
        self.ending = False  # what follows an epoch's last step is being done

    @property
    def began_in(self) -> Path | None:
        """A checkpoint that it goes on from, maybe another run's."""
        return self._start.resume

    def open(self, make: Make) -> EngineSession:
        """A started session, at the step that the run goes on from, or with the model's weights."""
        most = max(self._at_once, len(self.run.manifests())) + 1
        session = make(self.run.config, self.run.keep(most, self._saving))
        with close_after_failure(self._world, session.close):
            self._begin(session)
        self.session = session
        return session

    def _begin(self, session: EngineSession) -> None:
        """The first writes of the run, as `spillway train` makes them."""
        out, leads = self.output_dir, self._world.leads
        run = self.run
        recovery = run.restore(session)
        log = Log(out / identity.TRAINER_LOG, None if run.goes_on(recovery) else ([], None)) if leads else None
        known = self._world.agreed(lambda: (log.rows, log.done) if log else ([], None))
        self._log = log or Log(out / identity.TRAINER_LOG, known, writes=False)
        position = self._position(recovery)
        if leads and position is not None and (words := self._log.describe_loss(position)):
            LOGGER.warning(words)
        self.committed = position.step if position else 0
        run.begin(session, recovery, self.committed, payload(position))
        if position is not None:
            LOGGER.warning(recovery.words if recovery and recovery.words else f"going on after step {self.committed}")
        self.position = self._log.go_back(position)
        if leads:
            self._manifests = {path: (path / MANIFEST).read_bytes() for _, path in directory.manifests(out)}

    def _position(self, recovery: Recovery | None) -> Position | None:
        """The last one of the step that the session is at: what was done after it is not done again."""
        saved = read_position(self._start.resume) if self._start.resume is not None else None
        if saved is not None and recovery is not None and recovery.step != saved.step:
            saved = None
        if saved is not None and self._start.resume is not None:
            if self._start.resume.parent.resolve() != self.output_dir.resolve():
                self._log.rows = read_rows(self._start.resume)
        committed = recovery.state.get("position") if recovery is not None else None
        if saved is None and committed is None:
            return None
        position = saved or Position.of(committed)
        own = None if saved is None or self._start.resume is None else self._start.resume / self._random
        if own is not None and self._world.ranks.world > 1 and own.is_file():
            position = replace(position, random=packed(own.read_bytes()))
        done = self._log.done
        if done is not None and done.step == position.step:
            position = done if self._world.leads else replace(done, random=position.random)
        return position

    def resumed(self) -> str | None:
        """A directory for the Trainer's own `resume_from_checkpoint`; None: it begins."""
        if self.position is None:
            return None
        self.position.write(self.scratch, self._log.until(self.position), self._random)
        return str(self.scratch)

    @property
    def scratch(self) -> Path:
        """A directory of this process's own."""
        if self._scratch is None:
            if not self._world.leads:
                self._temporary = tempfile.TemporaryDirectory()
            self._scratch = self.output_dir / GOING_ON if self._world.leads else Path(self._temporary.name)
            self._scratch.mkdir(parents=True, exist_ok=True)
        return self._scratch

    @property
    def _random(self) -> str:
        return random_name(self._world.ranks.world, self._world.ranks.rank)

    def commit(self, trainer: Any, norm: Any, rate: float | None, due: Due) -> None:
        """The step just ended, which was logged."""
        trainer.state.total_flos += sum(self._world.gather(trainer.current_flos))  # another number may go on
        trainer.current_flos = 0
        self._log.add(trainer.state.log_history)
        self.position = position_of(trainer, self.scratch, norm, rate, due)
        self.session.commit(payload(self.position))
        self.committed = self.position.step

    def done(self, trainer: Any) -> None:
        """All that was due after the step, or, `ending`, after the epoch."""
        self.position = self._now(trainer)
        self._log.add(trainer.state.log_history, self.position)

    def _now(self, trainer: Any) -> Position:
        before = self.position
        norm, rate = (before.gradient_norm, before.learning_rate) if before else (None, None)
        position = position_of(trainer, self.scratch, norm, rate)
        position.epoch_ended = self.ending
        return position

    @contextmanager
    def saving(self, trainer: Any) -> Iterator[Path]:
        """The folder where the Trainer writes its checkpoint. A complete checkpoint moves to its final place."""

        def finish(made: Path) -> None:
            if not (made / RUN_STATE.parent).is_dir():  # of the model alone
                return
            self._log.add(trainer.state.log_history)
            replace_text(made / RUN_STATE, self._now(trainer).text() + "\n")

        with saving(self.output_dir, self.session.release, finish) as place:
            yield place
        self._manifests |= {path: (path / MANIFEST).read_bytes() for _, path in directory.manifests(self.output_dir)}

    def keep_newest(self, limit: int | None, best: str | None) -> None:
        for path in keep_newest(self.output_dir, limit, best, self.session.release):
            self._manifests.pop(path, None)

    def is_over(self, max_steps: int) -> bool:
        """Nothing is trained: all steps are done, or a callback ended the run and the process died before its end.
        One that had ended so goes on, as transformers has it, and so does one at a checkpoint that was named."""
        position, done = self.position, self._log.done
        if position is None or position.step >= max_steps:
            return position is not None
        finished = done is not None and done.step == position.step and done.epoch_ended
        return position.stopped and not finished and not self._named

    @property
    def saved_last(self) -> bool:
        """The newest checkpoint is of the last step: a process that died may have left older ones than are kept."""
        newest = self._world.agreed(lambda: directory.checkpoints(self.output_dir)[-1:])
        return bool(newest) and newest[0][0] == self.committed

    def sweep(self) -> None:
        """Gives up the places of checkpoints that somebody else has removed."""
        for path in [path for path in self._manifests if not path.exists()]:
            flush(self.output_dir)
            self.session.release(self._manifests.pop(path))

    def go_back_to(self, checkpoint: Path, make: Make) -> EngineSession:
        """A session at another checkpoint of this run, for evaluation and saving; the open one is closed."""
        self.session.close()
        run, start = self.run, replace(self._start, resume=checkpoint, durable=False, fresh=False, clear=False)
        self.session = make(run.config, replace(run.keep(len(start.held()) + 1, saving=None), resumes=True))
        with close_after_failure(self._world, self.session.close):
            run.lines.start(self.session, start)
        return self.session


@contextmanager
def saving(output_dir: Path, release: checkpoints.Release, finish: Callable[[Path], None]) -> Iterator[Path]:
    """A directory for one checkpoint, which gets its place in `output_dir` when it is whole; `finish` is called before
    that. After a failure nothing of it is there."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with checkpoints.open_temporary(output_dir / SAVING) as place:
        yield place
        (made,) = place.iterdir()
        finish(made)
        saved.record_files(made)
        checkpoints.flush_tree(made)
    tell(checkpoints.put_in_place(made, output_dir / made.name, release))
    os.rmdir(place)


def keep_newest(output_dir: Path, limit: int | None, best: str | None, release: checkpoints.Release) -> list[Path]:
    """Removes old checkpoints as transformers does, which keeps the best one, too. Returns the checkpoints that are
    gone."""
    if not limit or limit < 0:
        return []
    stored = [path for _, path in directory.checkpoints(output_dir)]
    kept = set(stored[-limit:])
    if best is not None and (chosen := output_dir / Path(best).name) in stored and chosen not in kept:
        kept = {chosen, *stored[-max(1, limit - 1) :]}
    gone = [path for path in stored if path not in kept]
    for path in gone:
        tell(checkpoints.tried(path, release))
    return gone


def tell(words: list[str]) -> None:
    for line in words:
        LOGGER.warning(line)


def payload(position: Position | None) -> dict[str, Any]:
    """The data that is committed with a step; empty before the first step."""
    return {} if position is None else {"position": json.loads(position.text())}


def check_step(fixed: dict[str, Any], config: Config) -> None:
    """InputError where a step has other micro-batches than before: each process gives its own number of them."""
    before, now, world = (
        fixed.get("gradient_accumulation_steps"),
        config.gradient_accumulation_steps,
        config.ranks.world,
    )
    if before is None or before == now:
        return
    fits = f"start a number of processes that divides {before}"
    if before % world == 0:
        fits = f"give TrainingArguments gradient_accumulation_steps={before // world}"
    each = "" if world == 1 else f", {now // world} of each of {world} processes"
    raise InputError(
        f"gradient_accumulation_steps: the run was started with {before} micro-batches in a step, a resume cannot "
        f"change it to {now}{each}; {fits}"
    )


def check_rows(before: int | None, now: int | None) -> None:
    if before != now:
        raise InputError(
            f"train_dataset: the run was started with {before} rows, and now there are {now}; a resume needs the same "
            "data"
        )


def read_position(checkpoint: Path) -> Position:
    saved.check_files(checkpoint, RUN_STATE)
    path = checkpoint / RUN_STATE
    try:
        return Position.of(read_json(path))
    except (OSError, ValueError) as error:
        raise InputError(f"resume_from_checkpoint: {path} cannot be read: {error}") from None


def read_rows(checkpoint: Path) -> list[Row]:
    """The rows of the log up to a checkpoint; none if they cannot be read, since nothing depends on them. InputError
    if the file is not the saved one."""
    saved.check_files(checkpoint, Path(TRAINER_STATE))
    path = checkpoint / TRAINER_STATE
    try:
        return [row for row in read_json(path)["log_history"] if isinstance(row, dict)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        tell([f"{path} cannot be read: {error!r}; training goes on without the rows of its log"])
        return []
