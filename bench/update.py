"""The fused update beside what a user would run instead: all in one process, over the same gradients, in alternating
rounds.

    python bench/update.py [--params N] [--threads T ...] [--rounds R]

On virtual machines two processes may get memory of different speed, so a rival in a process of its own says little.
`spillway.optim.AdamW` keeps, of a bf16 parameter with a bf16 gradient, a 16-bit remainder and two fp32 moments: 14
bytes with the gradient, 26 moved. torch.optim.AdamW(fused=True) on an fp32 master gives the same bits and moves 28;
from a bf16 gradient and to a bf16 weight it needs two casts (the fp32 gradient is a new one, as `zero_grad()` leaves
none; DeepSpeed keeps its own). With `bf16` and `int8` states 18 and 14 bytes are moved. DeepSpeed's CPU Adam is
measured where it can be imported. The ceiling is a copy (read and write) with as many threads. Rates are medians,
ratios medians of the ratios within a round; the first round of each warms up. Results go to bench/results/update.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import torch

import spillway

Step = Callable[[], object]


class Row(TypedDict):
    params_per_second: float
    spillway_is_faster: dict[str, float]


RESULTS = Path(__file__).parent / "results" / "update.json"
FORMS = ("exact", "bf16", "int8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=256 << 20)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


def timed(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


class Contest:
    """All share one fp32 master, its gradient, and their bf16 copies."""

    def __init__(self, params: int) -> None:
        self.master = torch.nn.Parameter(torch.full((params,), 0.02))
        self.grad16 = torch.full((params,), 1e-3, dtype=torch.bfloat16)
        self.weight16 = self.master.detach().bfloat16()
        self.master.grad = self.grad16.float()

    def steps(self) -> dict[str, Step]:
        out: dict[str, Step] = {f"spillway {name}": self.ours(name) for name in FORMS}
        fused = torch.optim.AdamW([self.master], lr=1e-5, weight_decay=0.01, fused=True)
        out["torch AdamW(fused) alone"] = fused.step
        out["torch AdamW(fused) and casts"] = self.with_casts(fused.step, new=True)
        try:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
        except ImportError:
            print("DeepSpeed is not installed: left out")
        else:
            deepspeed = DeepSpeedCPUAdam([self.master], lr=1e-5, weight_decay=0.01, adamw_mode=True)
            out["DeepSpeedCPUAdam alone"] = deepspeed.step
            out["DeepSpeedCPUAdam and casts"] = self.with_casts(deepspeed.step, new=False)
        return out

    def ours(self, form: str) -> Step:
        weight = torch.nn.Parameter(self.weight16.clone())
        weight.grad = self.grad16
        return spillway.optim.AdamW([weight], lr=1e-5, weight_decay=0.01, format=form).step

    def with_casts(self, step: Step, new: bool) -> Step:
        """From the bf16 gradient, and to the bf16 weight."""

        def cast_step() -> None:
            if new:
                self.master.grad = self.grad16.float()
            else:
                self.master.grad.copy_(self.grad16)
            step()
            with torch.no_grad():
                self.weight16.copy_(self.master)

        return cast_step

    def copy(self) -> float:
        """Bytes per second, read and written, of fp32 to fp32."""
        half = self.master.numel() // 2
        with torch.no_grad():
            seconds = timed(lambda: self.master[:half].copy_(self.master.grad[:half]))
        return 8 * half / seconds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """How much faster ours is: the median of the ratios within a round."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def measure(params: int, threads: int, rounds: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    contest = Contest(params)
    steps = contest.steps()
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    copies = []
    for _ in range(rounds):
        copies.append(contest.copy())
        for name, step in steps.items():
            seconds[name].append(timed(step))
    copied = statistics.median(copies)
    rows: dict[str, Row] = {
        name: {
            "params_per_second": params / statistics.median(taken),
            "spillway_is_faster": {form: median_ratio(seconds[f"spillway {form}"], taken) for form in FORMS},
        }
        for name, taken in seconds.items()
    }
    print(f"{params} parameters, {threads} threads, medians of {rounds} rounds; copy {copied / 1e9:.1f} GB/s")
    for name, row in rows.items():
        ratios = ", ".join(f"{form} {ratio:.2f}" for form, ratio in row["spillway_is_faster"].items())
        print(f"  {name:30} {row['params_per_second'] / 1e9:.2f} G params/s; ours is faster by {ratios}")
    return {"params": params, "threads": threads, "copy_bytes_per_second": copied, "rows": rows}


def main() -> None:
    args = arguments()
    found = [measure(args.params, threads, args.rounds) for threads in args.threads]
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
