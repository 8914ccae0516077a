"""Describes the host of a GPU: cores, memory nodes, the link, limits, and the update rate of its cores.

    gpu_host.py [--elements N]

Prints one JSON line. `adamw`: parameters a second of the engine's AdamW over exact states, by number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 28)
    return parser


def capture(*words: str) -> str:
    """The output of a command; "" if it is missing or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def read_text(path: str) -> str:
    """The content of a file; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def thread_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in (1, 4, 8, cores - 2) if 1 <= count <= cores})


def measure_adamw(elements: int, threads: int) -> float:
    """Parameters a second of spillway.optim.AdamW, in a process that may use so many cores."""
    script = f"""
import os, time, torch
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{threads}])
import spillway
weight = torch.nn.Parameter(torch.zeros({elements}, dtype=torch.bfloat16))
optimizer = spillway.optim.AdamW([weight], lr=1e-5)
weight.grad = torch.ones_like(weight)
optimizer.step()
best = 1e9
for _ in range(3):
    weight.grad = torch.ones_like(weight)
    began = time.perf_counter()
    optimizer.step()
    best = min(best, time.perf_counter() - began)
print({elements} / best)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-1000:])
    return float(done.stdout.split()[-1])


def main() -> None:
    arguments = parser().parse_args()
    query = "name,driver_version,pcie.link.gen.max,pcie.link.width.max,memory.total,clocks.max.sm,power.limit"
    facts: dict[str, Any] = {
        "cores": capture("lscpu", "-e"),
        "processor": capture("lscpu"),
        "nodes": capture("numactl", "-H"),
        "gpu": capture("nvidia-smi", f"--query-gpu={query}", "--format=csv"),
        "topology": capture("nvidia-smi", "topo", "-m"),
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "huge_pages": read_text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": " ".join(os.uname()),
        "memory": read_text("/proc/meminfo"),
        "disks": capture("lsblk", "-d", "-o", "NAME,SIZE,ROTA,MODEL"),
    }
    import torch

    facts["torch"] = torch.__version__
    facts["cudnn"] = torch.backends.cudnn.version()
    began = time.perf_counter()
    facts["adamw"] = {count: measure_adamw(arguments.elements, count) for count in thread_counts()}
    facts["adamw_seconds"] = time.perf_counter() - began
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
