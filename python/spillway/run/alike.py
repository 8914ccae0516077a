"""What several processes plan with: the same numbers, of those that they have found the ones that suit all of them. So
each makes the same plan, for the process that has least."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from spillway.errors import InputError
from spillway.run import shared_locks
from spillway.run.world import World

MORE = ("process_bytes", "work_bytes", "seconds", "token_bytes", "latency")  # ends of names whose largest value counts
NAMED = ("id", "node", "near")  # numbers that name something; each process has its own
OWN = ("file_systems", "saving", "threads")  # of settings; nothing that is placed depends on them


def alike(world: World, settings: dict[str, Any]) -> dict[str, Any]:
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
        return max(every) if name.endswith(MORE) else min(every)
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


def places(world: World, given: Sequence[str]) -> None:
    """InputError where two processes of one machine have the same storage path, or two machines one whose locks they do
    not see of each other."""
    if world.ranks.world == 1:
        return
    owners: dict[tuple[str, str], int] = {}
    own = (socket.gethostname(), [os.path.realpath(place) for place in given])
    for rank, (where, paths) in enumerate(world.gather(own)):
        for path in paths:
            first = owners.setdefault((where, path), rank)
            if first != rank:
                raise InputError(
                    f"storage: ranks {first} and {rank} ({where}) have the same directory {path}; name {{local_rank}} "
                    "or {rank} in it, such as /mnt/nvme/spillway-{local_rank}, and make one for each process"
                )
    shared_locks.check(world, given)
