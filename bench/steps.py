"""Step time and memory of whole training steps, engine and peer in turn, with the machine's ceilings beside them.

    steps.py dram    0.5B shape, sequence 1024, everything in DRAM, against a plain PyTorch loop
    steps.py path    the same with everything on a path and 3 GiB, against max(compute, bytes / fio's mixed rate)
    steps.py large   1.5B shape, sequence 512, everything on a path, against DeepSpeed with its optimizer on disk

A round runs each side once, in its own process, and then the other; the figure is the median over all steps but each
process's first, and the ratio is that of the round's medians. Results go to bench/results/steps-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GIB = 1 << 30


def run(program: str, *words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(HERE / program), *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    found["median"] = statistics.median(found["seconds"][1:])
    return found


def fio_mixed(directory: Path, seconds: int = 5) -> float:
    """Bytes per second, reads and writes summed, half and half: io_uring, O_DIRECT, 1 MiB, 16 in flight."""
    target = directory / "fio.data"
    words = ["fio", "--name=mixed", f"--filename={target}", "--size=4G", "--direct=1", "--ioengine=io_uring", "--bs=1M",
             "--iodepth=16", "--rw=rw", "--time_based", f"--runtime={seconds}", "--output-format=json"]  # fmt: skip
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        return float(job["read"]["bw_bytes"] + job["write"]["bw_bytes"])
    finally:
        target.unlink(missing_ok=True)


def engine(arguments: argparse.Namespace, shape: str, sequence: int, *more: str) -> dict[str, Any]:
    return run("engine_run.py", "--shape", shape, "--sequence", str(sequence), "--steps", str(arguments.steps), *more)


def peer(arguments: argparse.Namespace, name: str, shape: str, sequence: int, *more: str) -> dict[str, Any]:
    return run("peers.py", name, "--shape", shape, "--sequence", str(sequence), "--steps", str(arguments.steps), *more)


def on_path(arguments: argparse.Namespace, budget: str) -> list[str]:
    return ["--placement", "path", "--storage", str(arguments.storage), "--dram-budget", budget]


def dram(arguments: argparse.Namespace) -> dict[str, Any]:
    ours = engine(arguments, "0.5b", 1024)
    theirs = peer(arguments, "plain", "0.5b", 1024)
    return {"spillway": ours, "plain": theirs, "ratio": ours["median"] / theirs["median"]}


def path(arguments: argparse.Namespace) -> dict[str, Any]:
    before = fio_mixed(arguments.storage)
    ours = engine(arguments, "0.5b", 1024, *on_path(arguments, "3GiB"))
    after = fio_mixed(arguments.storage)
    in_dram = engine(arguments, "0.5b", 1024)
    moved = sum(ours["plan"]["path_bytes_per_step"]["path:0"].values())
    transfer = moved / statistics.mean((before, after))
    return {
        "spillway": ours, "spillway_in_dram": in_dram, "fio_mixed": [before, after], "bytes_per_step": moved,
        "transfer_seconds": transfer, "compute_seconds": in_dram["median"],
        "ratio": ours["median"] / max(transfer, in_dram["median"]),
    }  # fmt: skip


def large(arguments: argparse.Namespace) -> dict[str, Any]:
    ours = engine(arguments, "1.5b", 512, *on_path(arguments, "4GiB"))
    theirs = peer(arguments, "deepspeed", "1.5b", 512, "--storage", str(arguments.storage))
    return {"spillway": ours, "deepspeed": theirs, "ratio": ours["median"] / theirs["median"],
            "memory_ratio": ours["peak_bytes"] / theirs["peak_bytes"]}  # fmt: skip


def say(found: dict[str, Any]) -> None:
    for side in ("spillway", "spillway_in_dram", "plain", "deepspeed"):
        if side in found:
            it = found[side]
            text = f"{side:17} {it['median']:6.2f} s a step, peak {it['peak_bytes'] / GIB:.2f} GiB"
            if "plan" in it:
                planned = it["plan"]["tiers"][0]["planned_peak"] / GIB
                text += f" (planned {planned:.2f}), predicted {it['plan']['predicted_step_seconds']:.2f} s"
            print(text, flush=True)
    if "fio_mixed" in found:
        rates = " and ".join(f"{rate / 1e9:.2f}" for rate in found["fio_mixed"])
        moved = found["bytes_per_step"] / 1e9
        print(f"fio mixed {rates} GB/s, {moved:.1f} GB a step: {found['transfer_seconds']:.2f} s")
    print(f"ratio {found['ratio']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("dram", "path", "large"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--storage", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append({"dram": dram, "path": path, "large": large}[arguments.question](arguments))
        say(rounds[-1])
    median = statistics.median(found["ratio"] for found in rounds)
    print(f"median ratio over {len(rounds)} rounds: {median:.3f}")
    results = HERE / "results" / f"steps-{arguments.question}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps({"median_ratio": median, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
