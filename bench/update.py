"""The fused update beside what a user would run instead, on the same machine, in alternating rounds.

    python bench/update.py BUILD/bench/kernels_update [--params N] [--threads T] [--rounds R]

Per parameter Spillway keeps a bf16 weight, a 16-bit residual and two fp32 moments, and reads a bf16 gradient: 14 bytes.
torch.optim.AdamW(fused=True) on an fp32 master gives the same bits; from a bf16 gradient and to a bf16 weight it needs
two casts, and with both copies 20 bytes. DeepSpeed's CPU Adam is measured where it can be imported. Medians; the first
round of each warms up.
"""

import argparse
import re
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

Step = Callable[[], object]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the built kernels_update")
    parser.add_argument("--params", type=int, default=128 << 20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def spillway_rate(args: argparse.Namespace) -> float:
    """Parameters per second of adamw_exact: the median of three steps in a process of its own."""
    command = [args.program, "--params", str(args.params), "--threads", str(args.threads), "--rounds", "3"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^{args.threads} threads?: update ([\d.]+) G params/s", printed, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{args.program} did not print a rate for {args.threads} threads:\n{printed}")
    return float(found[1]) * 1e9


def timed(step: Step, params: int) -> float:
    step()
    begin = time.perf_counter()
    step()
    return params / (time.perf_counter() - begin)


def with_casts(step: Step, master: torch.Tensor, grad16: torch.Tensor, weight16: torch.Tensor) -> Step:
    def cast_step() -> None:
        assert master.grad is not None
        master.grad.copy_(grad16)
        step()
        weight16.copy_(master.detach())

    return cast_step


def torch_steps(params: int) -> dict[str, Step]:
    """The rivals. All share one master, its gradient and its bf16 copies."""
    torch.manual_seed(0)
    master = torch.nn.Parameter(torch.empty(params).normal_(std=0.02))
    grad16 = torch.empty(params, dtype=torch.bfloat16).normal_(std=1e-3)
    weight16 = master.detach().bfloat16()
    master.grad = grad16.float()
    fused = torch.optim.AdamW([master], lr=1e-5, weight_decay=0.01, fused=True)
    steps: dict[str, Step] = {
        "torch AdamW(fused) alone": fused.step,
        "torch AdamW(fused) and casts": with_casts(fused.step, master, grad16, weight16),
    }
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        print("DeepSpeed is not installed: left out")
        return steps
    deepspeed = DeepSpeedCPUAdam([master], lr=1e-5, weight_decay=0.01, adamw_mode=True)
    steps["DeepSpeedCPUAdam alone"] = deepspeed.step
    steps["DeepSpeedCPUAdam and casts"] = with_casts(deepspeed.step, master, grad16, weight16)
    return steps


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    steps = torch_steps(args.params)
    rates: dict[str, list[float]] = {"spillway adamw_exact": [], **{name: [] for name in steps}}
    for _ in range(args.rounds):
        rates["spillway adamw_exact"].append(spillway_rate(args))
        for name, step in steps.items():
            rates[name].append(timed(step, args.params))
    print(f"{args.params} parameters, {args.threads} threads, medians of {args.rounds} alternating rounds, warm")
    ours = rates["spillway adamw_exact"]
    for name, theirs in rates.items():
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"{name:30} {statistics.median(theirs) / 1e9:.3f} G params/s   spillway is {ratio:.2f}x")


if __name__ == "__main__":
    main()
