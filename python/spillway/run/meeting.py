"""How the processes that a launcher has started find each other.

torchrun keeps its store when it starts processes again (pytorch/pytorch#135712). A key that an earlier attempt has left
there would be taken for one of this attempt, the address of a process that is gone among them, and those that wait for
it wait for ever. The processes that are alive therefore agree on a name first, which all their keys begin with.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from spillway.errors import InputError, first_line

MEETING = timedelta(minutes=5)  # that processes wait for each other at the start
LOOKS = 0.01  # seconds between two looks of rank 0 at who is there


def meet() -> Any:
    """The store of the processes that are alive now, which a process group of torch is begun with unless there is one.
    All processes call it, and each call has a store of its own. InputError where they do not find each other."""
    begins = not dist.is_initialized()
    try:
        if begins:
            store, rank, world = next(rendezvous("env://", timeout=MEETING))
        else:
            store, rank, world = distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(f"spillway/{_name(store, rank, world)}", store)
        if begins:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=MEETING)
    except (ValueError, RuntimeError, OSError) as error:  # of whatever kind the store's are
        where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise InputError(
            f"WORLD_SIZE: {os.environ.get('WORLD_SIZE')} processes were to meet at {where}, and this one, rank "
            f"{os.environ.get('RANK')} on {socket.gethostname()}, did not find the others: {first_line(error)}. "
            "Launchers such as torchrun say to each process where (MASTER_ADDR, MASTER_PORT)"
        ) from error
    return store


def group(store: Any, name: str, patience: timedelta, backend: str = "gloo") -> Any:
    """A process group of all whose keys are in that store."""
    world, default = distributed_c10d._world, dist.group.WORLD
    kept = world.pg_map[default]
    world.pg_map[default] = (kept[0], store)
    try:
        return dist.new_group(backend=backend, timeout=patience, group_desc=f"spillway {name}")
    finally:
        world.pg_map[default] = kept


def _name(store: Any, rank: int, world: int) -> str:
    """Rank 0 draws it. Each other process leaves a number that it has drawn, and takes what is answered to that number:
    an answer to a process of an earlier attempt is not taken for its own."""
    drawn = uuid.uuid4().hex
    if rank > 0:
        store.set(f"spillway/here/{rank}", drawn)
        name = str(store.get(f"spillway/answer/{drawn}").decode())
        store.set(f"spillway/heard/{name}/{rank}", "")
        return name
    answered: dict[int, bytes] = {}
    missing, until = set(range(1, world)), time.monotonic() + MEETING.total_seconds()
    while missing:
        for other in sorted(missing):
            if not store.check([f"spillway/here/{other}"]):
                continue
            number = store.get(f"spillway/here/{other}")
            if answered.get(other) != number:
                store.set(f"spillway/answer/{number.decode()}", drawn)
                answered[other] = number
            if store.check([f"spillway/heard/{drawn}/{other}"]):
                missing.discard(other)
        if time.monotonic() > until:
            raise RuntimeError(f"of rank {', '.join(map(str, sorted(missing)))} there is no sign")
        time.sleep(LOOKS)
    return drawn
