"""The headline: what a step of a real shape takes and holds, Spillway beside what a user would pick instead.

    headline.py tune --storage DIR                       DeepSpeed's block size, queue depth and threads on this drive
    headline.py run  --storage DIR [--shape 0.5b 1.5b] [--micro-batches 1 8] [--sides NAME ...] [--rounds 3]
    headline.py show                                     the table, and the sentence of docs/results.md

A round runs every side once, one after the other, each as a process of its own that takes two first steps, which are
not counted, and eight more; of eight micro-batches, one and one more. Every round is kept in
bench/results/headline.json, also those of earlier calls; what is quoted is the median over all of a side's counted
steps. A side that cannot run, or not within the time that it may take, is a row with the reason, and is not tried
again. All sides train the same shape with random weights on the same random tokens, AdamW, gradients clipped at 1.0.

    spillway-dram      everything in DRAM
    spillway-disk      weights, states, gradients and activations on the path, every step durable; -1850mib: under a
                       fifth of what DeepSpeed holds of the 0.5B shape
    plain-TYPE         PyTorch in memory; bf16 with fp32 masters, or fp32; -ckpt: gradient checkpointing
    deepspeed-TYPE     ZeRO-3 on the CPU, its own compiled Adam, its optimizer's states on disk; -pipelined: read and
                       written ahead and behind; -params: parameters on disk, too
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from figures import processor

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "headline.json"
GIB = 1 << 30
SEQUENCE = 1024
STEPS = {1: 10, 8: 2}  # of a process, by micro-batches
SETTLING = {1: 2, 8: 1}  # of them: the first, which are not counted
# Seconds that a process may take at most: with less the slowest side is not heard out, with more a hang costs a day.
PATIENCE = 3 * 3600
BUDGET = {"0.5b": "3GiB", "1.5b": "4GiB"}  # of spillway-disk, where a side has none of its own
SIDES: dict[str, tuple[str, ...]] = {
    "spillway-dram": ("engine_run.py",),
    "spillway-disk": ("engine_run.py", "--placement", "path", "--durability", "step"),
    "spillway-disk-1850mib": (
        "engine_run.py",
        "--placement",
        "path",
        "--durability",
        "step",
        "--dram-budget",
        "1850MiB",
    ),
    "plain-bf16": ("peers.py", "plain", "--no-checkpointing"),
    "plain-bf16-ckpt": ("peers.py", "plain"),
    "plain-fp32": ("peers.py", "plain", "--dtype", "fp32", "--no-checkpointing"),
    "plain-fp32-ckpt": ("peers.py", "plain", "--dtype", "fp32"),
    "deepspeed-bf16": ("peers.py", "deepspeed"),
    "deepspeed-bf16-pipelined": ("peers.py", "deepspeed", "--pipeline", "--buffers", "12"),
    "deepspeed-bf16-params": ("peers.py", "deepspeed", "--params-on-storage"),
    "deepspeed-fp32": ("peers.py", "deepspeed", "--dtype", "fp32"),
    "deepspeed-fp32-pipelined": ("peers.py", "deepspeed", "--dtype", "fp32", "--pipeline", "--buffers", "12"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "run", "show"))
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--shape", nargs="+", choices=(*BUDGET, "tiny"), default=list(BUDGET))
    parser.add_argument("--sequence", type=int, default=SEQUENCE, help="tokens of a micro-batch")
    parser.add_argument("--micro-batches", type=int, nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--sides", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3, help="of each side in all, with those of earlier calls")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that a process may take")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.what == "show":
        print(table(read(arguments.results)))
        print(sentence(read(arguments.results)))
        return
    if arguments.storage is None or not arguments.storage.is_dir():
        raise SystemExit(f"--storage names a directory that exists, not {arguments.storage}")
    if arguments.what == "tune":
        tune(arguments)
    else:
        run(arguments)


def read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {"runs": []}


def keep(file: Path, content: dict[str, Any]) -> None:
    """Whole or not at all: a run of hours is not lost to an interruption."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(file)


def run(arguments: argparse.Namespace) -> None:
    content = read(arguments.results)
    for number in range(arguments.rounds):
        for shape in arguments.shape:
            for micro_batches in arguments.micro_batches:
                for side in arguments.sides:
                    before = of(content, shape, micro_batches, side, arguments.sequence)
                    if len(before) > number or any("refused" in each for each in before):
                        continue
                    with tempfile.TemporaryDirectory(dir=arguments.storage) as storage:
                        found = measure(side, shape, micro_batches, Path(storage), arguments, content.get("aio", {}))
                    print(line(found), flush=True)
                    content["runs"].append(found)
                    keep(arguments.results, content)


def of(
    content: dict[str, Any], shape: str, micro_batches: int, side: str, sequence: int = SEQUENCE
) -> list[dict[str, Any]]:
    """What was measured of a side on the CPU that this is."""
    key = {"shape": shape, "micro_batches": micro_batches, "side": side, "sequence": sequence, "processor": where()}
    return [each for each in content["runs"] if key.items() <= each.items()]


def where() -> str:
    """The CPU, its cores and what it has of what decides how fast it multiplies, in words."""
    found = processor()
    return f"{found['cores']} cores of {found['processor']} ({', '.join(found['has'])})"


def measure(
    side: str, shape: str, micro_batches: int, storage: Path, arguments: argparse.Namespace, aio: dict[str, Any]
) -> dict[str, Any]:
    """Runs a side once. `storage`: a directory for its files."""
    program, *words = SIDES[side]
    words += ["--shape", shape, "--sequence", str(arguments.sequence), "--steps", str(STEPS[micro_batches])]
    words += ["--micro-batches", str(micro_batches)]
    if "--placement" in words:
        words += ["--storage", str(storage)]
    if "--placement" in words and "--dram-budget" not in words:
        words += ["--dram-budget", BUDGET.get(shape, "2GiB")]
    if "deepspeed" in words:
        words += ["--storage", str(storage)]
        for name, value in aio.get("best", {}).items():
            words += [f"--{name.replace('_', '-')}", str(value)]
    found: dict[str, Any] = {
        "shape": shape, "micro_batches": micro_batches, "side": side, "sequence": arguments.sequence,
        "processor": where(), "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0],
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, str(HERE / program), *words], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    try:
        out, errors = process.communicate(timeout=arguments.patience)
    except subprocess.TimeoutExpired:
        return found | {"refused": f"more than {arguments.patience / 60:.0f} minutes for {STEPS[micro_batches]} steps"}
    finally:
        stop(process)
    if process.returncode != 0:
        return found | {"refused": reason(process.returncode, errors)}
    said = json.loads(out.strip().splitlines()[-1])
    counted = said["seconds"][SETTLING[micro_batches] :]
    found |= {"seconds": said["seconds"], "counted": counted, "peak_bytes": said["peak_bytes"], "loss": said["loss"]}
    if "plan" in said:
        found["predicted_seconds"] = said["plan"]["predicted_step_seconds"]
        found["written_bytes"] = sum(path["written"] for path in said["plan"].get("path_bytes_per_step", {}).values())
    return found


def stop(process: subprocess.Popen[str]) -> None:
    """The process and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def reason(code: int, errors: str) -> str:
    """Why a side ended without a figure, in a line."""
    if code == -signal.SIGKILL:
        return "killed: out of memory"
    said = [each.strip() for each in errors.splitlines() if each.strip()]
    return f"exit code {code}: {said[-1][:200] if said else 'without a word'}"


def tune(arguments: argparse.Namespace) -> None:
    """Each setting of DeepSpeed's asynchronous I/O once, a gigabyte written and read; the fastest sum is kept."""
    tried = []
    for block in (1 << 20, 8 << 20):
        for depth in (8, 32):
            for threads in (1, 2):
                words = ["--block-size", str(block), "--queue-depth", str(depth), "--io-threads", str(threads)]
                done = subprocess.run(
                    [sys.executable, str(HERE / "peers.py"), "io", "--storage", str(arguments.storage), *words],
                    stdout=subprocess.PIPE, text=True, check=True,
                )  # fmt: skip
                found = json.loads(done.stdout.strip().splitlines()[-1])
                tried.append({"block_size": block, "queue_depth": depth, "io_threads": threads} | found)
                print(tried[-1], flush=True)
    best = min(tried, key=lambda each: each["write_seconds"] + each["read_seconds"])
    names = ("block_size", "queue_depth", "io_threads")
    content = read(arguments.results)
    keep(arguments.results, content | {"aio": {"tried": tried, "best": {name: best[name] for name in names}}})


# What the measurements say


def counted(runs: Iterable[dict[str, Any]]) -> list[float]:
    """Seconds of all steps but each process's first."""
    return [seconds for each in runs for seconds in each.get("counted", [])]


def line(found: dict[str, Any]) -> str:
    name = f"{found['shape']}, {found['micro_batches']} micro-batches, {found['side']}"
    if "refused" in found:
        return f"{name}: {found['refused']}"
    seconds = " ".join(f"{each:.1f}" for each in found["seconds"])
    return f"{name}: {seconds} s, {found['peak_bytes'] / GIB:.1f} GiB, load before {found['load']:.1f}"


def settings(content: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Processor, shape and micro-batches of what was measured."""
    return sorted({(each["processor"], each["shape"], each["micro_batches"]) for each in content["runs"]})


def rows(content: dict[str, Any], machine: str, shape: str, micro_batches: int) -> dict[str, list[dict[str, Any]]]:
    key = {"processor": machine, "shape": shape, "micro_batches": micro_batches}
    runs = [each for each in content["runs"] if key.items() <= each.items()]
    found = {side: [each for each in runs if each["side"] == side] for side in SIDES}
    return {side: each for side, each in found.items() if each}


def table(content: dict[str, Any]) -> str:
    """Markdown: a table for each setting."""
    parts = []
    for machine, shape, micro_batches in settings(content):
        parts += [
            f"Qwen2.5-{shape.upper()}'s shape, {SEQUENCE} tokens, {micro_batches} micro-batch"
            f"{'es' if micro_batches > 1 else ''} a step, {machine}",
            "",
            "| | s a step | all steps | predicted | tokens/s | peak GiB | written GB a step |",
            "|---|---|---|---|---|---|---|",
        ]
        for side, runs in rows(content, machine, shape, micro_batches).items():
            steps = counted(runs)
            if not steps:
                parts.append(f"| {side} | {runs[-1]['refused']} | | | | | |")
                continue
            median = statistics.median(steps)
            predicted = [each["predicted_seconds"] for each in runs if "predicted_seconds" in each]
            written = [each["written_bytes"] for each in runs if each.get("written_bytes")]
            cells = (
                side, f"{median:.1f}", ", ".join(f"{each:.1f}" for each in steps),
                ", ".join(f"{each:.1f}" for each in predicted), f"{SEQUENCE * micro_batches / median:.0f}",
                f"{max(each.get('peak_bytes', 0) for each in runs) / GIB:.1f}",
                f"{statistics.median(written) / 1e9:.1f}" if written else "",
            )  # fmt: skip
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def sentence(content: dict[str, Any]) -> str:
    """The setting measured last: Spillway beside the fastest other, also where Spillway is slower."""
    if not content["runs"]:
        return "Nothing was measured yet."
    last = content["runs"][-1]
    machine, shape, micro_batches = last["processor"], last["shape"], last["micro_batches"]
    found = {
        side: (statistics.median(counted(runs)), max(each.get("peak_bytes", 0) for each in runs))
        for side, runs in rows(content, machine, shape, micro_batches).items()
        if counted(runs)
    }
    others = {side: each for side, each in found.items() if not side.startswith("spillway")}
    parts = [f"Qwen2.5-{shape.upper()}'s shape, {SEQUENCE} tokens a micro-batch, {micro_batches} a step, {machine}:"]
    for side, what in (("spillway-dram", "all in DRAM"), ("spillway-disk", "all on disk, every step durable")):
        if side not in found:
            continue
        seconds, peak = found[side]
        parts.append(f"Spillway {what} takes {seconds:.1f} s a step and {peak / GIB:.1f} GiB,")
        if others:
            name, (best, memory) = min(others.items(), key=lambda item: item[1][0])
            word = "faster" if seconds < best else "slower"
            ratio = max(seconds, best) / min(seconds, best)
            other = f"{name}: {best:.1f} s, {memory / GIB:.1f} GiB"
            parts.append(f"{ratio:.2f} times {word} than the fastest other ({other});")
    return " ".join(parts).rstrip(",;") + "."


if __name__ == "__main__":
    main()
