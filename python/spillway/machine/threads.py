"""How many threads compute and how many update: from the machine, and said at start.

Compute threads are part of what decides the bits of a run, so they follow from the machine and the environment alone,
never from a budget or a placement. A number that a person gives is kept, also under a launcher.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spillway.base.counts import counted

KEY = "OMP_NUM_THREADS"
PROCESSES = Path("/proc")
MAPS = PROCESSES / "self/maps"
OPENMP, OMP_PAUSE_SOFT = ("libgomp", "libomp", "libiomp"), 1  # files of the libraries; <omp.h>
# variables that a launcher sets for its processes; accelerate launch may start torchrun
LAUNCHERS = {
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "TORCHELASTIC_RUN_ID": "torchrun",
    "RAY_RAYLET_PID": "Ray",
}
OPTION = "--num_cpu_threads_per_process"  # option of accelerate launch


@dataclass(frozen=True)
class Threads:
    compute: int
    update_cores: int  # that only updates use; 0: updates share the cores of compute
    words: str  # one line for a person


def choose(cores: int, default: int, environment: Mapping[str, str], processes: int = 1, launcher: str = "") -> Threads:
    """`cores`: that the process may run on; `default`: threads PyTorch would take; `processes`: of the run on this
    machine, which share the cores; `launcher`: as `find_launcher_default` names it."""
    if processes > 1:
        return divide(cores, default, environment, processes, launcher)
    compute, why = choose_compute_threads(cores, default, environment, launcher)
    spare = max(0, cores - compute)
    words = f"Threads: {compute} for compute on {counted(cores, 'core')}"
    words += f", {why}; " if why else "; "
    words += f"updates have {counted(spare, 'core')} of their own." if spare else "updates share these cores."
    return Threads(compute, spare, words)


def divide(cores: int, default: int, environment: Mapping[str, str], processes: int, launcher: str = "") -> Threads:
    """The threads of one of several processes: an equal part of the cores, or a person's own number."""
    setting, part, why = environment.get(KEY, ""), max(1, cores // processes), ""
    if setting and not is_default(setting, launcher):
        part, why = default, f", as {KEY}={setting} asks"
    words = f"Threads: {part} for compute in each of {processes} processes on {counted(cores, 'core')}{why}"
    return Threads(part, 0, f"{words}; updates share these cores.")


def choose_compute_threads(
    cores: int, default: int, environment: Mapping[str, str], launcher: str = ""
) -> tuple[int, str]:
    """The number of threads, and a note about its origin."""
    setting = environment.get(KEY, "")
    if is_default(setting, launcher) and cores > 1:
        return cores, f"not 1 as {launcher} asks with {KEY}=1 for several processes a machine: here is one"
    if default > cores:
        return cores, f"not {default} as PyTorch would take: affinity or the cgroup allows no more"
    if setting and default < cores:
        return default, f"kept as {KEY}={setting} asks (unset it to use all)"
    return default, ""


def is_default(setting: str, launcher: str) -> bool:
    """True if a launcher has set its default number."""
    return setting == "1" and bool(launcher)


def find_launcher_default(environment: Mapping[str, str], parent: int | None = None) -> str:
    """The name of the launcher that has set OMP_NUM_THREADS; empty if a person or nobody has set it.

    torchrun sets it for several processes on a machine, accelerate launch always, each only where it was started
    without it. `parent`: the process that has started this one, by default the real one."""
    mark = next((mark for mark in LAUNCHERS if mark in environment), None)
    if mark is None or KEY not in environment:
        return ""
    if LAUNCHERS[mark] == "torchrun" and environment.get("LOCAL_WORLD_SIZE") == "1":
        return ""
    process = os.getppid() if parent is None else parent
    while (started := read_environment(process)) is not None and mark in started:
        process = read_parent(process)
    given = started is not None and (KEY in started or has_option(process))
    return "" if given else LAUNCHERS[mark]


def read_environment(process: int) -> Collection[str] | None:
    """The names of the variables that a process was started with; None if they cannot be read."""
    try:
        content = (PROCESSES / str(process) / "environ").read_bytes()
    except OSError:
        return None
    return {entry.partition(b"=")[0].decode(errors="replace") for entry in content.split(b"\0")}


def read_parent(process: int) -> int:
    """The process's parent; 0 if the process has ended."""
    try:
        status = (PROCESSES / str(process) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def has_option(process: int) -> bool:
    """True if a process was started with accelerate's option for the number of threads."""
    try:
        words = (PROCESSES / str(process) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    given = (word.decode(errors="replace").partition("=")[0].replace("-", "_") for word in words)
    return OPTION.replace("-", "_") in given


def settle(processes: int = 1) -> Threads:
    """Chooses, and tells PyTorch. `processes`: of the run on this machine."""
    import torch

    from spillway import _engine

    launcher = find_launcher_default(os.environ)
    threads = choose(_engine.cores(), torch.get_num_threads(), os.environ, processes, launcher)
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
