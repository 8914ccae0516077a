"""What the host of a GPU is: cores and their pairs, memory nodes, the link, limits, and how fast its cores update.

    gpu_host.py [--device cuda:0] [--elements N]

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
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--elements", type=int, default=1 << 28)
    return parser


def said(*words: str) -> str:
    """What a command says; "" where it is not there or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def threads_to_try() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in (1, 4, 8, cores - 2) if 1 <= count <= cores})


def adamw(elements: int, threads: int) -> float:
    """Parameters a second: the optimizer that Spillway's users give PyTorch's tensors to, with a process of its own."""
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
    found: dict[str, Any] = {
        "cores": said("lscpu", "-e"), "processor": said("lscpu"), "nodes": said("numactl", "-H"),
        "gpu": said("nvidia-smi", f"--query-gpu={query}", "--format=csv"), "topology": said("nvidia-smi", "topo", "-m"),
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled"), "kernel": " ".join(os.uname()),
        "memory": text("/proc/meminfo"), "disks": said("lsblk", "-d", "-o", "NAME,SIZE,ROTA,MODEL"),
    }  # fmt: skip
    import torch

    found["torch"] = torch.__version__
    found["cudnn"] = torch.backends.cudnn.version()
    began = time.perf_counter()
    found["adamw"] = {count: adamw(arguments.elements, count) for count in threads_to_try()}
    found["adamw_seconds"] = time.perf_counter() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
