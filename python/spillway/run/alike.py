"""Numbers that several processes plan with. All plan with the same numbers: those that suit every process, of the ones
that the processes have found. So each makes the same plan, for the process that has least."""

from __future__ import annotations

import os
import socket
from typing import Any

from spillway._engine import EngineSettings
from spillway.base.calls import translated
from spillway.config import Config
from spillway.errors import InputError
from spillway.machine import device
from spillway.run import shared_locks
from spillway.run.world import World


def agree_settings(world: World, settings: EngineSettings) -> EngineSettings:
    """`settings` of this process, with the numbers of all. InputError where they have not the same paths."""
    if world.ranks.world == 1:
        return settings
    with translated():
        return settings.agree(world.gather(settings))


def same(world: World, what: dict[str, Any]) -> None:
    """InputError naming the first entry that another process has otherwise than rank 0."""
    if world.ranks.world == 1:
        return
    every = world.gather(what)
    for name, value in every[0].items():
        for rank, each in enumerate(every):
            if each.get(name) != value:
                raise InputError(
                    f"{name}: rank 0 has {value}, rank {rank} has {each.get(name)}; all processes of a run are given "
                    "the same configuration, versions and data"
                )


SHARED = {  # by key: what two processes of a machine may not both have, and how each gets its own
    "storage": "directory {0}, though its name has {{local_rank}} or {{rank}}; give one directory without them, which "
    "serves all processes, or make one for each",
    "storage_device": "block device {0}; name {{local_rank}} or {{rank}} in it, such as /dev/nvme{{local_rank}}n1",
    "device": "GPU {0}; --device cuda is that of each one's LOCAL_RANK",
}


def places(world: World, config: Config) -> None:
    """InputError where two processes of one machine have the same storage path, block device or GPU, or two machines
    one path whose locks they do not see of each other."""
    if world.ranks.world == 1:
        return
    owners: dict[tuple[str, str, str, str], int] = {}
    for rank, (where, own) in enumerate(world.gather((socket.gethostname(), list_places(config)))):
        for key, place, beside in own:
            first = owners.setdefault((where, key, place, beside), rank)
            if first != rank:
                raise InputError(f"{key}: ranks {first} and {rank} ({where}) have the same {SHARED[key].format(place)}")
    shared_locks.check(world, [path.place for path in config.directories])


def list_places(config: Config) -> list[tuple[str, str, str]]:
    """The places that this process alone may use, by key; a GPU also by what its number counts."""
    places = [("storage", os.path.realpath(path.place), "") for path in config.directories if path.sharers == 1]
    places += [("storage_device", os.path.realpath(path.place), "") for path in config.devices]
    if config.device.startswith("cuda"):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        places.append(("device", f"cuda:{device.number(config)}", visible))
    return places
