"""A run from its opening to its end. `spillway train`, a Session, a Trainer and TRL's trainers open a `Run`, begin it,
save in it and close it.

A Trainer without durable steps and a Session without an `output_dir` open a run that keeps no record
(`open_unrecorded_run`). It has nothing to begin in a directory: its session starts, and ends with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillway import report
from spillway.base.files import replace_text, write_json
from spillway.config import Config
from spillway.errors import InputError
from spillway.model.source import hub
from spillway.output import checkpoints, directory, identity, known_runs, state, unsaved, volumes
from spillway.output.base_files import BASE, read_fingerprint
from spillway.output.directory import Start
from spillway.output.displaced import VolumeDisplaced
from spillway.output.identity import Identity
from spillway.output.records import METRICS, Metrics, NoMetrics, move_damaged_lines
from spillway.output.so_far import SoFar
from spillway.output.state import RunState
from spillway.report.plot import plot_apart
from spillway.run.lines import Lines, checkpoints_alone, volumes_of
from spillway.run.protocol import Keeping, Recovery, Saving, SessionProtocol, StartPoint
from spillway.run.trackers import Trackers
from spillway.run.world import OneProcess, World


@dataclass
class Run:
    """A run whose directory is held and whose start is decided. Its first process writes the files in `output_dir`, and
    removes nothing that was durable before what replaces it is there."""

    config: Config
    start: Start
    identity: Identity
    world: World = field(default_factory=OneProcess)
    note: Callable[[str], object] = str  # gets notices for a person
    ready: Callable[[Path], object] = str  # gets `output_dir` when the files of the beginning are there
    also: Sequence[str] = ()  # further places of its volumes
    metrics: Metrics | NoMetrics = field(default_factory=NoMetrics)
    records: bool = False  # True from `open_metrics` on
    start_point: StartPoint | None = None  # of a run that keeps no record; None: `start` and the paths say it

    def __post_init__(self) -> None:
        self.lines = Lines(self.identity, self.output_dir, self.config.paths, self.world, self.also)
        self.so_far = SoFar(self.output_dir)

    @property
    def output_dir(self) -> Path:
        return self.start.output_dir

    @property
    def alone(self) -> bool:
        """True if checkpoints stand alone."""
        return checkpoints_alone(self.config.ranks.world, self.identity.shared)

    def manifests(self) -> list[tuple[int, Path]]:
        """The checkpoints whose state lies on the storage paths, unless the run begins by removing them."""
        return self.world.agreed(lambda: [] if self.start.clear else directory.manifests(self.output_dir))

    def load_state(self) -> RunState | None:
        """The state that a resume goes on from, or what it must not change where that state lies on the paths. `config`
        gets the keys that a resume keeps. InputError for a contradiction."""
        saved = self.world.agreed(self._read_state)
        if saved:
            config = state.same_revisions(saved.fixed, state.same_products(saved.fixed, self.config))
            state.converted(saved, config, self.start.stands_alone)
            state.check_keys(saved.fixed, config)
            self.config = state.same_durability(self.identity.durability, config)
        return saved

    def _read_state(self) -> RunState | None:
        if self.start.resume:
            return RunState.load(self.start.resume)
        return RunState(fixed=self.identity.fixed) if self.start.durable and self.identity.fixed else None

    def keep(self, most: int, saving: Saving | None) -> Keeping:
        """`most`: checkpoints that hold places on the storage paths at once, unless checkpoints stand alone."""
        name, durability = self.identity.run, self.config.durability
        if durability == "none":
            return Keeping(name, resumes=self.start.from_paths, saving=saving)
        most = int(durability == "checkpoint") if self.alone else most
        return Keeping(name, most, keep=True, resumes=self.start.from_paths, alone=self.alone, saving=saving)

    def open_trackers(self) -> None:
        """InputError where a tracker is not here: before anything is planned."""
        tracked = self.config if self.world.leads else self.config.replaced(report_to=[])
        self.trackers = Trackers(tracked, self.output_dir)

    def restore(self, session: SessionProtocol, tell: hub.Tell | None = None) -> Recovery | None:
        """Starts the session at the last durable step, at a checkpoint, or with the model's weights. None: no step was
        recovered from the storage paths."""
        if self.start_point is not None:
            return session.start(self.start_point)
        self.identity.durability, self.identity.stands_alone = session.planned.durability, False
        hub.fetch_weights(self.config, tell)
        fixed = self.identity.fixed
        if self.config.init == "pretrained" and BASE not in fixed:
            fixed[BASE] = self.world.agreed(lambda: read_fingerprint(hub.model_directory(self.config)))
        were_there, sets = bool(volumes.present(self.config.paths)), self._list_sets()
        recovery = self.lines.start(session, self.start)
        if recovery is None and self.start.resume is not None and self.identity.durability != "none":
            self._give_up_checkpoints(are_new=not were_there or not self._list_sets() <= sets)
        return recovery

    def _list_sets(self) -> set[int]:
        return volumes.list_sets(self.config.paths, self.identity.run)

    def _give_up_checkpoints(self, are_new: bool) -> None:
        """Leaves models of the checkpoints whose state lay on volumes that are not there, when the run's volumes
        `are_new`. The checkpoint that the run goes on from has been loaded by then."""
        if any(self.world.gather(are_new)):
            for words in self.world.agreed(lambda: checkpoints.give_up_all(self.output_dir)):
                self.note(words)

    def goes_on(self, recovery: Recovery | None) -> bool:
        """True if the run has made steps before."""
        return recovery is not None or self.start.resume is not None

    def begin(self, session: SessionProtocol, recovery: Recovery | None, step: int, state: dict[str, Any]) -> None:
        """Writes the files of the run, and commits `state`, which the run begins with, unless it was recovered. Removes
        what the run made after `step`."""
        goes_on = self.goes_on(recovery)
        if self.world.leads:
            for removed in directory.prepare(self.start, fresh=not goes_on):
                self.note(f"removed {removed}")
            for damaged in move_damaged_lines(self.output_dir / METRICS):
                self.note(damaged)
            self.write_description(session)
            self.ready(self.output_dir)
        anew = self.config.overwrite and not goes_on
        self.lines.commit_start(session, None if recovery else state, goes_on, anew=anew)
        if goes_on:
            for removed in self.world.agreed(lambda: checkpoints.go_back(self.output_dir, step, session.release)):
                self.note(f"removed {removed}")

    def write_description(self, session: SessionProtocol) -> None:
        """Writes the files that describe a run before its first step. The identity comes last, since it flushes the
        directories."""
        (self.output_dir / identity.FOLDER).mkdir(parents=True, exist_ok=True)
        replace_text(self.output_dir / identity.DESCRIPTION, session.description.to_json() + "\n")
        replace_text(self.output_dir / identity.SETTINGS, session.settings.to_json() + "\n")
        replace_text(self.output_dir / "config.yaml", self.config.text())
        write_json(self.output_dir / "plan.json", session.plan)
        self.identity.save(self.output_dir)

    def open_metrics(self) -> None:
        self.records = True
        if self.world.leads:
            self.metrics = Metrics(self.output_dir / METRICS)

    def log(self, row: dict[str, Any], sync: bool = False) -> None:
        """Adds a row to metrics.jsonl, and gives it to trackers. `sync`: the row is on the disk before its step is
        durable, so that a resume after the step finds it."""
        self.metrics.add(row)
        if sync:
            self.metrics.sync()
        self.trackers.log(row)

    def close_records(self) -> None:
        self.metrics.close()
        self.trackers.stop()

    def tell_so_far(self, session: SessionProtocol, steps: int, summary: Callable[[], dict[str, Any]]) -> None:
        """`steps`: of this process."""
        if self.world.leads:
            self.so_far.tell(session, steps, summary)

    def require_volumes(self, session: SessionProtocol, save: Callable[[], object]) -> None:
        """VolumeDisplaced if a volume of a durable run lost its file, after a `save` that needs no volume."""
        volumes = session.displaced_volumes()
        if not volumes:
            return
        alone = self.world.ranks.world == 1
        if alone:
            session.stand_alone()
            save()
        raise VolumeDisplaced(volumes, alone)

    def leave_state(self, session: SessionProtocol, state: dict[str, Any]) -> str:
        """Leaves a state that could not be saved on the storage paths, with what `spillway export` finds it by. Returns
        words that say where it is and what to do."""
        if self.start_point is not None:
            if not volumes.present(self.config.paths):
                raise InputError("nothing of this run lies on a storage path")
            known = identity.load(self.output_dir)
            if known is not None and known.durability != "none":
                raise InputError(f"output_dir: {self.output_dir} is that of another run")
            self.write_description(session)
        return unsaved.leave(session, self.config, self.output_dir, state)

    def write_checkpoint(self, session: SessionProtocol, step: int, fill: Callable[[Path], None]) -> Path:
        """Writes checkpoint-STEP, which `fill` makes of an empty directory. Returns its place."""
        if self.world.leads:
            session.record_experts(self.output_dir)
        return checkpoints.write(self.output_dir, step, fill, session.release, self.note)

    def keep_newest(self, session: SessionProtocol) -> None:
        """Removes checkpoints beyond `save_total_limit`."""
        limit, keeps_whole = self.config.save_total_limit, self.config.save_whole_steps is not None
        for words in checkpoints.keep_newest(self.output_dir, limit, session.release, keeps_whole):
            self.note(words)

    def write_model(self, fill: Callable[[Path], None]) -> None:
        """Writes files to the root of `output_dir`, which `fill` makes of an empty directory."""
        temporary = self.output_dir / ".tmp-model"
        directory.remove(temporary)
        try:
            checkpoints.write_directory(temporary, fill)
            checkpoints.publish(temporary, self.output_dir)
        finally:
            directory.remove(temporary)

    def write_summary(self, session: SessionProtocol, summary: dict[str, Any]) -> None:
        """Writes the files of a run that has ended."""
        if self.world.leads:
            write_json(self.output_dir / "summary.json", summary)
            session.record_experts(self.output_dir)
            session.write_timeline(self.output_dir / "timeline.json.gz")
            self.so_far.ended()

    def give_up_volumes(self, session: SessionProtocol) -> bool:
        """Gives up the volumes of a run that has ended, unless a checkpoint needs them. True if they are given up."""
        needed = self.world.agreed(lambda: directory.manifests(self.output_dir))
        if not needed:
            self.identity.stands_alone = True
            self.world.agreed(lambda: self.identity.save(self.output_dir))
            session.give_up_volumes()
        return not needed

    def write_report(self) -> Path | None:
        """Draws the loss curve and writes the page, when the session has closed: both take memory that was the
        session's. None where there is no page; a missing one is no reason to fail a run."""
        place = self.output_dir
        if reason := plot_apart(place / METRICS, place / "loss.png", f"Training loss: {place.name}"):
            self.note(f"no loss.png: {reason}")
        try:
            return report.write(place)
        except Exception as error:
            self.note(f"no report: {error}; `spillway report {place}` tries again")
            return None


def open_run(config: Config, world: World, note: Callable[[str], object], ready: Callable[[Path], object] = str) -> Run:
    """The run in `output_dir` and on the paths of all processes. The caller holds the directory's lock."""
    known, also = world.agreed(lambda: known_runs.load_existing_run(config.output_dir, config.overwrite, config.paths))
    there, others = volumes_of(config.paths, known, also, world)
    start, run = world.agreed(lambda: find_start(config, there, others))
    return Run(config, start, run, world, note, ready, also)


def find_start(config: Config, there: list[Path], others: list[Path]) -> tuple[Start, Identity]:
    """`there`: the volumes of all processes; `others`: of another number of them."""
    start = directory.decide(config, there, others)
    known = known_runs.load_identity(start.output_dir, config.overwrite, config.paths)
    return start, known or identity.new(start.output_dir)


def open_unrecorded_run(config: Config, world: World, start_point: StartPoint) -> Run:
    """A run that keeps no record and ends with its process. `output_dir` gets what its caller saves, and other runs may
    have saved there."""
    output_dir = Path(config.output_dir or Path.cwd())
    start = Start(output_dir, start_point.checkpoint, paths=config.paths)
    return Run(config, start, world.agreed(lambda: identity.new(output_dir)), world, start_point=start_point)
