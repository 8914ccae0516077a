"""The engine's input for a plan: budgets, placement, storage and rates, from the configuration and the dry run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spillway._engine import EngineSettings, PassSeconds, PathSettings, PlacementSettings
from spillway.errors import InputError
from spillway.machine import device, memory_files, process_memory
from spillway.machine.place import HOST, Place
from spillway.machine.profile import profile
from spillway.output import volumes
from spillway.run.protocol import Keeping

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.config.values import StoragePath
    from spillway.model.measure.dry_run import DryRun

MARGIN = 0.1  # of what is free, left alone when no budget is given
EXACT_BYTES = 12  # of a parameter, weight included
GROUPS = ("weight", "state", "grad", "activation")
ASIDE = ("grad", "activation")  # that may be placed on one tier of host memory
TIERS = ("numa:", "file:")


def engine_settings(
    config: Config,
    dry_run: DryRun,
    keeping: Keeping,
    learning: int,
    update_cores: int = 0,
    place: Place = HOST,
    processes: int = 1,
) -> EngineSettings:
    """The engine's settings for a plan. `learning`: parameters that do. `update_cores`: cores that compute leaves to
    updates. `place`: where layers compute. `processes`: of the run on this machine."""
    dram_budget = memory_budget(config, processes)
    spare = measured_in(dram_budget, learning)
    rule = update_rule(config)
    made = path_settings(config, keeping, processes)
    made.dram_budget = dram_budget
    made.process_bytes, made.work_bytes = dry_run.process_bytes, dry_run.work_bytes
    made.profile = profile(config.profile, [path.place for path in config.paths], rule, spare)
    made.device = device.settings(config, dram_budget, made.profile, place, dry_run.device_bytes, rule)
    made.seconds = PassSeconds(**dry_run.seconds)
    made.update_schedule = config.update_schedule
    made.speculative_updates = config.speculative_updates
    made.clipping = config.max_grad_norm > 0
    made.update_cores = update_cores
    made.overwrite, made.erase = config.overwrite, config.erase
    return made


def measured_in(dram_budget: int, learning: int) -> int:
    """Bytes that rates of the machine are measured in: that must not be the run's peak, so less than its states take,
    or than its budget leaves for them."""
    return min(EXACT_BYTES * learning, max(0, dram_budget - process_memory.resident()) // 4)


def reading_settings(config: Config, run: str) -> EngineSettings:
    """To open a run's volumes without training: nothing is measured or profiled, and memory is one tier."""
    made = path_settings(config, Keeping(run, keep=True))
    placement = made.placement
    for group in ASIDE:
        if isinstance(getattr(placement, group), str):
            setattr(placement, group, 1.0)
    made.placement = placement
    made.dram_budget = config.dram_budget or default_budget()
    made.process_bytes = process_memory.resident()
    return made


def path_settings(config: Config, keeping: Keeping, processes: int = 1) -> EngineSettings:
    """The contents of each path, and the part of them that is kept."""
    return EngineSettings(
        durability=config.durability,
        placement=placement_shares(config.placement),
        window=config.window or 0,
        storage=storage(config.paths, processes),
        threads=torch.get_num_threads(),
        run=keeping.run,
        checkpoints=keeping.checkpoints,
        keep=keeping.keep,
        resumes=keeping.resumes,
    )


def memory_budget(config: Config, processes: int = 1) -> int:
    """Bytes for the process, but for what it has in files. InputError, DoesNotFit where these cannot be had."""
    taken = memory_files.taken(config.files)
    return config.dram_budget or default_budget(processes) - taken


def default_budget(processes: int = 1) -> int:
    """The default budget of a process: the memory that it holds and the free memory, less a margin. Where `processes`
    of a run share the machine, each gets its part of that."""
    from spillway import _engine

    return int((process_memory.resident() + _engine.dram_available() // processes) * (1 - MARGIN))


def placement_shares(text: str) -> PlacementSettings:
    """Share of each field group in DRAM, or the tier of host memory that all of it lies on; None: the planner decides.

    `auto`, `dram`, `path`, or per group `weight=dram,state=path,grad=50%,activation=numa:2`.
    """
    places = {"auto": None, "dram": 1.0, "path": 0.0}
    made = PlacementSettings()
    if text in places:
        for group in GROUPS:
            setattr(made, group, places[text])
        return made
    for part in text.split(","):
        group, _, place = (piece.strip() for piece in part.partition("="))
        if group not in GROUPS:
            raise InputError(f"placement: {group!r} is not a group of fields; there are {', '.join(GROUPS)}")
        named = group in ASIDE and place.startswith(TIERS)
        setattr(made, group, places[place] if place in places else place if named else percentage(place, text))
    return made


def percentage(place: str, text: str) -> float:
    try:
        share = float(place.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not place.endswith("%") or not 0 <= share <= 1:
        raise InputError(f"placement: {place!r} in {text!r} is neither dram, path, auto nor a share such as 50%")
    return share


def storage(paths: Sequence[StoragePath], processes: int = 1) -> list[PathSettings]:
    """Directories and block devices, their bytes and what they are rated for. Directories of one file system that name
    no capacity share what the others leave there, less a margin; the volumes that they hold already count as free. They
    may be on the file systems of the `processes` of a run on this machine, too."""
    plain = [path for path in paths if not Path(path.place).is_block_device()]
    devices = [look_at(path.place) for path in plain]
    shares = {path.place: share_of(path, device, plain, devices) for path, device in zip(plain, devices, strict=True)}
    settings = []
    for path in paths:
        made = PathSettings(endurance=path.endurance or None)
        if path.place in shares:
            made.directory, made.capacity = path.place, path.capacity or shares[path.place] // processes
        else:
            made.device, made.capacity = path.place, path.capacity or device_bytes(path.place)
        settings.append(made)
    return settings


def share_of(
    path: StoragePath, device: tuple[int, int], paths: Sequence[StoragePath], devices: Sequence[tuple[int, int]]
) -> int:
    """Bytes for a path that names no capacity; at least what its volume has already."""
    beside = [other for other, each in zip(paths, devices, strict=True) if each[0] == device[0]]
    free = device[1] + sum(volumes.held(other) for other in beside)
    taken = sum(other.capacity * other.sharers for other in beside if other.capacity is not None)
    sharers = sum(other.capacity is None for other in beside)
    return max(max(0, int(free * (1 - MARGIN)) - taken) // max(1, sharers), volumes.held(path))


def look_at(directory: str) -> tuple[int, int]:
    """The file system a directory is on, and bytes free there."""
    try:
        return os.stat(directory).st_dev, shutil.disk_usage(directory).free
    except OSError as error:
        raise InputError(f"storage: {directory}: {error.strerror}; it must be a directory that exists") from error


def device_bytes(device: str) -> int:
    """The bytes of a block device."""
    try:
        with open(device, "rb", buffering=0) as stream:
            return stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise InputError(f"storage_device: {device}: {error.strerror}") from error


def update_rule(config: Config) -> dict[str, str]:
    """The parts of an update, as the engine names them."""
    return {"weight_dtype": config.weight_dtype, "optimizer": config.optim, "state_format": config.state_format}
