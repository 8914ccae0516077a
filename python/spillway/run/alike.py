"""Numbers that several processes plan with. All plan with the same numbers: those that suit every process, of the ones
that the processes have found. So each makes the same plan, for the process that has least."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from spillway.config import Config
from spillway.errors import InputError
from spillway.machine import device
from spillway.run import shared_locks
from spillway.run.world import World

MORE = ("process_bytes", "work_bytes", "seconds", "token_bytes", "latency")  # ends of names whose largest value counts
WORK = "work"  # so does that of what PyTorch takes of a GPU
NAMED = ("id", "node", "near", "stream")  # numbers that name something; each process has its own
OWN = ("file_systems", "saving", "threads")  # of settings; nothing that is placed depends on them


def agree_settings(world: World, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` of this process, with the numbers of all. InputError where they have not the same paths."""
    if world.ranks.world == 1:
        return settings
    shared = {name: value for name, value in settings.items() if name not in OWN}
    every = world.gather(shared)
    counts = [len(each["storage"]) for each in every]
    if len(set(counts)) > 1:
        raise InputError(f"storage: the processes have {counts} paths, by rank; each needs as many as the others")
    return settings | merged("", shared, every)


def merged(name: str, own: Any, every: Sequence[Any]) -> Any:
    """`own` with, for each number in it, the least of every process's, or the largest."""
    if isinstance(own, dict) and all(isinstance(each, dict) for each in every):
        return {
            key: merged(key if not name.endswith(MORE) else name, value, [each[key] for each in every])
            for key, value in own.items()
            if all(key in each for each in every)
        }
    if isinstance(own, list) and all(isinstance(each, list) and len(each) == len(own) for each in every):
        return [merged(name, value, [each[at] for each in every]) for at, value in enumerate(own)]
    if name not in NAMED and all(isinstance(each, int | float) and not isinstance(each, bool) for each in every):
        return max(every) if name == WORK or name.endswith(MORE) else min(every)
    return own


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
