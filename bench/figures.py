"""What the benchmarks of storage have in common: a program that measures when asked, fio, medians, results in files."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")

Prefix = tuple[str, ...]
"""Words before a command, such as those that put it under limits."""


class Asked:
    """A program with --ask: measures once for every line that it is given."""

    def __init__(self, *words: str, prefix: Prefix = (), ready: str = "ready") -> None:
        command = [*prefix, *words, "--ask"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line(ready)

    def line(self, start: str) -> str:
        """The next that it prints that starts so; notes are passed on."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.strip()
            print(line.strip(), flush=True)
        raise SystemExit(f"{self.process.args!r} ended with {self.process.wait()}")

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line(word)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def asked(*words: str, prefix: Prefix = (), ready: str = "ready") -> Iterator[Asked]:
    program = Asked(*words, prefix=prefix, ready=ready)
    try:
        yield program
    finally:
        program.close()


def wait_for_space(directory: Path, mib: int) -> None:
    """The kernel frees a program's files a moment after its end, when it has let go of its rings."""
    for _ in range(100):
        there = os.statvfs(directory)
        if there.f_bavail * there.f_frsize >= mib << 20:
            return
        time.sleep(0.1)
    raise SystemExit(f"{directory} needs {mib} MiB")


def rates_of(line: str) -> tuple[float, float]:
    """Bytes per second, read and written, of a line that a program has printed."""
    read, write = (re.search(rf"{word} +([\d.]+) GB/s", line) for word in ("read", "write"))
    if read is None or write is None:
        raise SystemExit(f"no rates in: {line}")
    return float(read[1]) * 1e9, float(write[1]) * 1e9


def fio(
    target: Path,
    pattern: str,
    mib: int,
    seconds: float,
    *,
    offset: int = 0,
    warm: bool,
    huge: bool = False,
    prefix: Prefix = (),
) -> float:
    """Bytes per second, both directions together: io_uring, O_DIRECT, 1 MiB, 16 in flight, registered buffers and file.

    On `mib` of the file from `offset` (MiB) on; `warm`: all of it is written right before. `huge`: on huge pages, 32 of
    which must be reserved, else as fio comes: large requests are served faster from them, and the engine's memory is on
    them, too.
    """
    memory = "mmaphuge" if huge else "malloc"
    words = [*prefix, "fio", "--name=x", f"--filename={target}", f"--offset={offset}M", f"--size={mib}M",
             "--bs=1M", "--iodepth=16",
             "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1", f"--iomem={memory}",
             "--overwrite=1", "--output-format=json"]  # fmt: skip
    if warm or not target.exists():
        subprocess.run([*words, "--rw=write"], stdout=subprocess.DEVNULL, check=True)
    kind = "--rw=rw" if pattern == "mixed" else f"--rw={pattern}"
    command = [*words, kind, "--time_based", f"--runtime={seconds}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return float(job["read"]["bw_bytes"] + job["write"]["bw_bytes"])


Side = Callable[[], float]


def pairs(count: int, ours: Side, theirs: Side, *, say: str = "", unit: float = 1e9) -> dict[str, Any]:
    """Both sides in turn, first one then the other first; what each measured, medians, and the median of the ratios."""
    found: dict[str, Any] = {"spillway": [], "other": []}
    for number in range(count):
        order = [("spillway", ours), ("other", theirs)]
        for name, side in order if number % 2 == 0 else reversed(order):
            found[name].append(side())
        print(f"{say:24} {found['spillway'][-1] / unit:8.3f} {found['other'][-1] / unit:8.3f}", flush=True)
    ratios = [a / b for a, b in zip(found["spillway"], found["other"], strict=True)]
    found["medians"] = {name: statistics.median(found[name]) for name in ("spillway", "other")}
    found["ratio"] = statistics.median(ratios)
    found["ratio_from_to"] = [min(ratios), max(ratios)]
    return found


def processor() -> dict[str, Any]:
    """Which one it is, how many cores there are, and what it has of what decides how fast it multiplies."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = named.get("flags", "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return {"processor": named.get("model name", platform.processor()), "cores": os.cpu_count(), "has": wide}


def machine() -> dict[str, Any]:
    """What else a reader should know of a measurement."""
    return {
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "utc": time.strftime("%F %H:%M", time.gmtime()),
    }


def save(name: str, found: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rounded(found), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Six digits of every number."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
