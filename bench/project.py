"""The weight gradient of a layer in a subspace beside the dense product, in the same run.

    python bench/project.py BUILD/bench/project [--hidden N] [--tokens T] [--nonzeros R]

For a weight of N x N and d = N / 2, one thread: dY^T X whole, against compressing X and dY (`compress` of the program)
and the d x d product of what came of them; and what `project` prints of applying a step's delta. Goals: at most 0.4 of
the dense product; applying at 80 % of reading and writing the weight. Results: bench/results/project.json.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
from figures import machine, save


def milliseconds(work: Callable[[], object], rounds: int = 7) -> float:
    taken = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:]) * 1e3


def figure(printed: str, pattern: str) -> float:
    found = re.search(pattern, printed, re.MULTILINE)
    if found is None:
        raise SystemExit(f"no {pattern} in:\n{printed}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built project")
    for name, default in (("--hidden", 2048), ("--tokens", 1024), ("--nonzeros", 4)):
        parser.add_argument(name, type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    n, tokens, d = arguments.hidden, arguments.tokens, arguments.hidden // 2
    words = [arguments.program, "--hidden", n, "--tokens", tokens, "--nonzeros", arguments.nonzeros]
    printed = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout
    print(printed, end="")
    found: dict[str, Any] = {"machine": machine(), "hidden": n, "tokens": tokens, "nonzeros": arguments.nonzeros}
    for name, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        x, dy = (torch.randn(tokens, n).to(kind) for _ in range(2))
        small = torch.randn(2, d, tokens).to(kind)
        dense, inner = milliseconds(lambda x=x, dy=dy: dy.T @ x), milliseconds(lambda s=small: s[0] @ s[1].T)
        both = 2 * figure(printed, rf"^compress {name}: ([\d.]+) ms")
        found[name] = {"dense_ms": dense, "compress_ms": both, "inner_ms": inner, "ratio": (both + inner) / dense}
        print(f"{name}: dense {dense:.2f} ms, subspace {both:.2f} + {inner:.2f} ms: {(both + inner) / dense:.2f} of it")
    found["apply"] = {
        "ms": figure(printed, r"^apply: ([\d.]+) ms"),
        "share_of_rewrite": figure(printed, r"share (\d+) %") / 100,
        "rewrite_gb_per_s": figure(printed, r"rewrite ([\d.]+) GB/s"),
    }
    save("project", found)


if __name__ == "__main__":
    main()
