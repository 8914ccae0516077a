"""The check of a gradient for infinity and NaN: the engine's one pass beside PyTorch's four.

    python bench/overflow.py BUILD/bench/overflow [--elements N] [--rounds N]

ZeRO-Infinity checks each gradient by `isinf(x).any()` and `isnan(x).any()`, which are four passes and a temporary of
one byte an element (MemAscend, section 3). The engine finds both in the sum of squares that clipping needs, while it
copies the gradient. One thread on each side, the sides in turn. `extra_ms` is the time beyond a plain copy, with the
norm. `temporary_bytes` is what PyTorch allocates beside the gradient. Results: bench/results/overflow.json.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from typing import Any

import torch
from figures import machine, save

LINE = re.compile(r"^(\w+): copy ([\d.]+) ms, copy with norm and check ([\d.]+) ms, finite 1$", re.MULTILINE)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def time_checks(gradient: torch.Tensor, rounds: int) -> float:
    """Median milliseconds of PyTorch's two checks."""
    seconds = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        overflow = bool(torch.isinf(gradient).any()) or bool(torch.isnan(gradient).any())
        seconds.append(time.perf_counter() - begin)
        if overflow:
            raise SystemExit("a gradient of ones is not finite")
    return statistics.median(seconds[1:]) * 1e3


def run_engine(program: str, elements: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a copy, and of a copy with norm and check, by type."""
    words = [program, "--elements", str(elements), "--rounds", str(rounds)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    print(printed, end="")
    return {name: (float(copy), float(check)) for name, copy, check in LINE.findall(printed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built overflow")
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checks: dict[str, Any] = {}
    passes = run_engine(arguments.program, arguments.elements, arguments.rounds)
    for name, kind in TYPES.items():
        torch_ms = time_checks(torch.ones(arguments.elements, dtype=kind), arguments.rounds)
        copy, check = passes[name]
        checks[name] = {
            "copy_ms": copy, "copy_norm_ms": check, "extra_ms": check - copy, "torch_ms": torch_ms,
            "share_of_torch": max(0.0, check - copy) / torch_ms, "whole_share_of_torch": check / torch_ms,
            "temporary_bytes": arguments.elements,
        }  # fmt: skip
        print(f"{name}: PyTorch's checks {torch_ms:.2f} ms; one pass {check:.2f}, {check - copy:.2f} above a copy")
    save("overflow", {"machine": machine(), "elements": arguments.elements, "threads": 1, **checks})


if __name__ == "__main__":
    main()
