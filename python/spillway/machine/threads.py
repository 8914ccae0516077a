"""How many threads compute and how many update: from the machine, and said at start.

Compute threads are part of what decides the bits of a run, so they follow from the machine and the environment alone,
never from a budget or a placement.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spillway.base.counts import counted

KEY = "OMP_NUM_THREADS"
MAPS = Path("/proc/self/maps")
OPENMP, OMP_PAUSE_SOFT = ("libgomp", "libomp", "libiomp"), 1  # files of the libraries; <omp.h>
# what a launcher leaves in the environment of the processes that it starts
LAUNCHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "ACCELERATE_MIXED_PRECISION": "accelerate launch"}


@dataclass(frozen=True)
class Threads:
    compute: int
    update_cores: int  # that only updates use; 0: updates share the cores of compute
    words: str  # one line for a person


def choose(cores: int, default: int, environment: Mapping[str, str], processes: int = 1) -> Threads:
    """`cores`: that the process may run on; `default`: threads PyTorch would take; `processes`: of the run on this
    machine, which share the cores."""
    if processes > 1:
        return shared(cores, default, environment, processes)
    compute, why = compute_threads(cores, default, environment)
    spare = max(0, cores - compute)
    words = f"Threads: {compute} for compute on {counted(cores, 'core')}"
    words += f", {why}; " if why else "; "
    words += f"updates have {counted(spare, 'core')} of their own." if spare else "updates share these cores."
    return Threads(compute, spare, words)


def shared(cores: int, default: int, environment: Mapping[str, str], processes: int) -> Threads:
    """Each process's part of the cores, unless the environment says otherwise. 1 is what launchers say when nobody
    did."""
    given = environment.get(KEY, "1")
    part, why = (max(1, cores // processes), "") if given in ("", "1") else (default, f", as {KEY}={given} asks")
    words = f"Threads: {part} for compute in each of {processes} processes on {counted(cores, 'core')}{why}"
    return Threads(part, 0, f"{words}; updates share these cores.")


def compute_threads(cores: int, default: int, environment: Mapping[str, str]) -> tuple[int, str]:
    """The number, and what is not plain about it."""
    given = environment.get(KEY, "")
    launcher = next((name for mark, name in LAUNCHERS.items() if mark in environment), "")
    if given == "1" and launcher and cores > 1:
        return cores, f"not 1 as {launcher} asks with {KEY}=1 for several processes a machine: here is one"
    if default > cores:
        return cores, f"not {default} as PyTorch would take: affinity or the cgroup allows no more"
    if given and default < cores:
        return default, f"kept as {KEY}={given} asks (unset it to use all)"
    return default, ""


def settle(processes: int = 1) -> Threads:
    """Chooses, and tells PyTorch. `processes`: of the run on this machine."""
    import torch

    from spillway import _engine

    threads = choose(_engine.cores(), torch.get_num_threads(), os.environ, processes)
    if threads.compute != torch.get_num_threads():
        torch.set_num_threads(threads.compute)
    return threads


def rest() -> None:
    """Ends the threads that wait for what this one computes next, which starts others then. Before another thread
    computes meanwhile: where there are more of them than cores, GNU's OpenMP lets those of that thread sleep after each
    operation, of which a small one takes twice as long (libgomp's throttled spin count)."""
    mapped = {line[line.index("/") :] for line in MAPS.read_text().splitlines() if "/" in line}
    for file in mapped:
        if Path(file).name.startswith(OPENMP):
            with suppress(OSError, AttributeError):
                ctypes.CDLL(file).omp_pause_resource_all(OMP_PAUSE_SOFT)
