"""Agreement of a run's processes before they open it (`run.run`): the lock of its directory, and the keys that rank 0
resolves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from spillway import __version__
from spillway.config import Config
from spillway.machine import auto
from spillway.model.source import hub
from spillway.output import directory, known_runs, state
from spillway.output.directory_lock import PATIENCE, RESUME_PATIENCE, DirectoryLock
from spillway.output.identity import Identity
from spillway.run.alike import same
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
