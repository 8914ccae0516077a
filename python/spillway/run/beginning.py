"""How a run begins or goes on, whoever asks for it (`spillway train`, a Session, a Trainer): what its processes agree
on before the model is planned, and what its directory says of it before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from spillway import __version__
from spillway.base.files import replace_text, write_json
from spillway.config import Config
from spillway.machine import auto
from spillway.model.source import hub
from spillway.output import checkpoints, directory, identity, known_runs, state
from spillway.output.base_files import BASE, read_fingerprint
from spillway.output.directory import Start
from spillway.output.directory_lock import PATIENCE, RESUME_PATIENCE, DirectoryLock
from spillway.output.identity import Identity
from spillway.output.records import METRICS, move_damaged_lines
from spillway.output.state import RunState
from spillway.run.alike import same
from spillway.run.lines import Lines, volumes_of
from spillway.run.protocol import Recovery, SessionProtocol
from spillway.run.world import World


def load_existing_run(config: Config, world: World) -> tuple[Config, Identity | None, list[str]]:
    """The configuration as a launcher means it, the identity of the run in `output_dir`, and further places of its
    volumes. Rank 0 reads them for all processes."""
    known, also = world.agreed(lambda: known_runs.load_existing_run(config.output_dir, config.overwrite, config.paths))
    return (resume_restarted(config) if world.again and known else config), known, also


def resume_restarted(config: Config) -> Config:
    """A launcher that starts processes again, such as torchrun with --max_restarts, means them to go on."""
    return config.replaced(resume_from_checkpoint="auto", overwrite=False)


def lock_directory(lock: DirectoryLock, config: Config, world: World, tell: hub.Tell) -> None:
    """Takes the lock of `output_dir` for this run, until `lock` is released. InputError if another run has it."""
    patience = RESUME_PATIENCE if config.resume_from_checkpoint and not config.overwrite else PATIENCE

    def take() -> None:
        directory.check_place(Path(config.output_dir))
        lock.take(patience, tell)

    world.agreed(take)


@contextmanager
def hold_directory(config: Config, world: World, tell: hub.Tell) -> Iterator[None]:
    """Holds the lock of `output_dir` to the end of the block."""
    lock = DirectoryLock(Path(config.output_dir))
    lock_directory(lock, config, world, tell)
    try:
        yield
    finally:
        lock.release()


def restrict_to_one_process(config: Config, known: Identity | None, world: World) -> Config:
    """The configuration of one of a world's processes. InputError where another has been given something else."""
    config = restore_virtual_ranks(config, known)
    if world.ranks.world == 1:
        return config
    config = config.over(world.ranks)
    same(world, {"spillway": __version__, "torch": import_module("torch").__version__} | config.values())
    return config


def restore_virtual_ranks(config: Config, known: Identity | None) -> Config:
    """The configuration with the number of virtual ranks of the stored run. Applies where the user sets none and each
    has as many micro-batches as in the stored run. Another number of processes then continues the same run."""
    fixed = known.fixed if known and config.resume_from_checkpoint and config.any_ranks else {}
    ranks = int(fixed.get("virtual_ranks") or 0)
    same = config.gradient_accumulation_steps * ranks == fixed.get("gradient_accumulation_steps")
    return config.parted(ranks) if ranks and same else config


def open_run(config: Config, world: World) -> tuple[Config, Start | None, Identity, RunState | None, list[str]]:
    """The run in `output_dir` and on the paths of all processes: `config` with the keys that a resume keeps, the start
    (None without an `output_dir`), the identity, the last state, and further places of its volumes. InputError for a
    contradiction. The caller holds the directory's lock."""
    known, also = world.agreed(lambda: known_runs.load_existing_run(config.output_dir, config.overwrite, config.paths))
    there, others = volumes_of(config.paths, known, also, world)
    start, run, saved = world.agreed(lambda: find_start(config, there, others))
    if start is None:
        return config.replaced(durability="none", output_dir=None), None, run, None, also
    if saved:
        config = state.same_revisions(saved.fixed, state.same_products(saved.fixed, config))
        state.converted(saved, config, start.stands_alone)
        state.check_keys(saved.fixed, config)
        config = state.same_durability(run.durability, config)
    return config, start, run, saved, also


def find_start(config: Config, there: list[Path], others: list[Path]) -> tuple[Start | None, Identity, RunState | None]:
    """`there`: the volumes of all processes; `others`: of another number of them."""
    if config.output_dir is None:
        return None, identity.new(Path.cwd()), None
    start = directory.decide(config, there, others)
    known = known_runs.load_identity(start.output_dir, config.overwrite, config.paths) or identity.new(start.output_dir)
    saved = RunState.load(start.resume) if start.resume else None
    if start.durable and known.fixed:
        saved = saved or RunState(fixed=known.fixed)
    return start, known, saved


def same_device(config: Config) -> Config:
    """`config` on the CPUs where the run that it goes on with was begun there, unless it says so itself: a GPU adds in
    another order."""
    if config.any_device and config.resume_from_checkpoint and config.output_dir is not None:
        before = known_runs.read_previous_config(Path(config.output_dir))
        if before is not None and before.device == "cpu":
            return config.computing_on("cpu", "the CPUs, as the run was begun")
    return config


def resolve_auto_keys(config: Config, world: World, tell: hub.Tell, only: Iterable[str] = hub.SETTLED) -> Config:
    """`config` with the commits (`hub.resolve_commits`), the device and the compute type that rank 0 chose."""
    leading = world.agreed(lambda: hub.resolve_commits(auto.settled(same_device(config)), tell, only))
    if world.leads:
        return leading
    revisions = {f"{key}_revision": state.revision_of(leading, key) for key in state.NAMED}
    config = config.replaced(**revisions).computing(leading.compute_dtype, leading.chosen)
    return hub.resolve_commits(config.computing_on(leading.device, leading.device_why), only=only)


@dataclass(frozen=True)
class OpenRun:
    """A run whose directory is held and whose start is decided, up to its first step. The writes of each beginning are
    here: nothing that was durable is removed before what replaces it is."""

    config: Config
    start: Start
    identity: Identity
    lines: Lines
    world: World

    def restore(self, session: SessionProtocol, tell: hub.Tell | None = None) -> Recovery | None:
        """Starts the session at the last durable step, at a checkpoint, or with the model's weights. None: no step was
        recovered from the storage paths."""
        hub.fetch_weights(self.config, tell)
        self._record_base()
        return self.lines.start(session, self.start)

    def goes_on(self, recovery: Recovery | None) -> bool:
        """True if the run has made steps before."""
        return recovery is not None or self.start.resume is not None

    def write_files(self, session: SessionProtocol, recovery: Recovery | None, tell: hub.Tell) -> None:
        """Writes the files of the run, by its first process."""
        if not self.world.leads:
            return
        for removed in directory.prepare(self.start, fresh=not self.goes_on(recovery)):
            tell(f"removed {removed}")
        for damaged in move_damaged_lines(self.start.output_dir / METRICS):
            tell(damaged)
        write(self.start.output_dir, self.config, session, self.identity)

    def commit_start(
        self, session: SessionProtocol, recovery: Recovery | None, step: int, state: dict[str, Any], tell: hub.Tell
    ) -> None:
        """Commits `state`, which the run begins with, unless it was recovered. Removes what the run made after
        `step`."""
        goes_on = self.goes_on(recovery)
        self.lines.commit_start(
            session, None if recovery else state, goes_on, anew=self.config.overwrite and not goes_on
        )
        if goes_on:
            for removed in self.world.agreed(lambda: checkpoints.go_back(self.start.output_dir, step, session.release)):
                tell(f"removed {removed}")

    def _record_base(self) -> None:
        """Adds the fingerprint of the model's weights to the run's `fixed` values, unless they have one."""
        fixed = self.identity.fixed
        if self.config.init == "pretrained" and BASE not in fixed:
            fixed[BASE] = self.world.agreed(lambda: read_fingerprint(hub.model_directory(self.config)))


def write(output_dir: Path, config: Config, session: SessionProtocol, run: Identity) -> None:
    """Writes the files that describe a run before its first step. The identity comes last, since it flushes the
    directories."""
    (output_dir / identity.FOLDER).mkdir(exist_ok=True)
    replace_text(output_dir / identity.DESCRIPTION, session.description.to_json() + "\n")
    write_json(output_dir / identity.SETTINGS, session.settings)
    replace_text(output_dir / "config.yaml", config.text())
    write_json(output_dir / "plan.json", session.plan)
    run.save(output_dir)
