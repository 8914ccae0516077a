"""Does a second path shorten a training step? Whole steps whose state exceeds memory, on paths of known speeds.

    python bench/paths_steps.py [--only CASE ...] [--steps 10] [--scale 1] [--deepspeed PYTHON] [--note WORDS]

The shape has few tokens, so that the drives bound the step. A path is a loop device over memory with a limit in each
direction (throttled.py). The remote path is a file system whose server has a limit (tests/python/support/served.c).

    dram                  all state in memory: compute without a drive
    one, two, three       400; 400 and 400; 400, 400 and 200 MB/s
    two-fixed             400 and 400 MB/s with MLP-Offload's fixed split: a third of the state on the second path
    remote, remote-fixed  a local path of 200 MB/s and a remote one of 100; the same with the fixed split
    slow, slow-fixed      a local path of 200 MB/s and a remote one of 50; the same with the fixed split
    raw                   400 MB/s: the block device itself (`storage_device`), not a file on it as in `one`
    two-processes-CASE    two processes of `spillway train` on the paths of one, two or three
    deepspeed             ZeRO-3 with its optimizer on one path of 400 MB/s, plain and pipelined (--deepspeed: a Python
                          that has the package)

The fixed split is stated by the capacity of the paths: each has room for its part and little more. `least_seconds` is
the larger of the bytes read and the bytes written in a step, over the sum of the limits. Bytes are counted: by the
engine, and by the block layer for two processes. Each call replaces its cases in bench/results/paths-steps.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from figures import RESULTS, machine, processor, save
from network import model, steps_of
from ranks import start_ranks, wait_ranks
from throttled import Throttled, throttled

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "python" / "support"))

from served import program, served

HERE = Path(__file__).parent
NAME = "paths-steps"
SHAPE, SEQUENCE, BUDGET = "wide", 64, "1GiB"
VOLUMES = 5200  # MiB, of all paths together
RESERVE = 400  # MiB of each path, for its file system and the least volume
FIXED = (2 / 3, 1 / 3)  # of the state, on the local and on the remote path
ROOM = 1.05  # of a path with a fixed part, beside it
SECTOR = 512
PORT = 29547
LOOK = 0.005  # seconds between two looks at the metrics


class Case(NamedTuple):
    local: tuple[float, ...] = ()  # MB/s in each direction
    remote: float = 0
    fixed: bool = False
    raw: bool = False
    processes: int = 1


CASES = {
    "dram": Case(),
    "one": Case((400,)),
    "two": Case((400, 400)),
    "three": Case((400, 400, 200)),
    "two-fixed": Case((400, 400), fixed=True),
    "remote": Case((200,), remote=100),
    "remote-fixed": Case((200,), remote=100, fixed=True),
    "slow": Case((200,), remote=50),
    "slow-fixed": Case((200,), remote=50, fixed=True),
    "raw": Case((400,), raw=True),
    "two-processes-one": Case((400,), processes=2),
    "two-processes-two": Case((400, 400), processes=2),
    "two-processes-three": Case((400, 400, 200), processes=2),
}
DEEPSPEED = {"deepspeed": (), "deepspeed-pipelined": ("--pipeline", "--buffers", "12")}


class Places(NamedTuple):
    paths: Throttled  # the local ones
    words: tuple[str, ...]  # `storage` of each path


def scaled(case: Case, scale: float) -> Case:
    return case._replace(local=tuple(scale * rate for rate in case.local), remote=scale * case.remote)


@contextlib.contextmanager
def places(case: Case) -> Iterator[Places]:
    rates = [*case.local, *([case.remote] if case.remote else [])]
    sizes = [RESERVE + round(VOLUMES * rate / sum(rates)) for rate in case.local]
    with contextlib.ExitStack() as stack:
        paths = stack.enter_context(throttled(case.local, sizes, raw=case.raw))
        words = [str(path) for path in paths.directories] or paths.loops
        if case.remote:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench.")))
            backing = stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench.", dir="/dev/shm"))
            server = stack.enter_context(served(program(work), Path(backing), work / "remote"))
            server.limit(case.remote * 1e6)
            words.append(str(server.directory))
        if case.fixed:
            whole = recorded("one")["volume_bytes"]
            words = [f"{word},capacity={round(ROOM * part * whole)}" for word, part in zip(words, FIXED, strict=True)]
        yield Places(paths, tuple(words))


def recorded(case: str) -> dict[str, Any]:
    file = RESULTS / f"{NAME}.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    if case not in runs:
        raise SystemExit(f"this case needs the result of the case {case}: run that first")
    return dict(runs[case])


def run_engine(case: Case, at: Places, steps: int) -> dict[str, Any]:
    words = [sys.executable, str(HERE / "engine_run.py"), "--shape", SHAPE, "--sequence", str(SEQUENCE),
             "--steps", str(steps)]  # fmt: skip
    if at.words:
        words += ["--placement", "path", "--dram-budget", BUDGET]
    if case.raw:
        words += [word for device in at.words for word in ("--set", f"storage_device={device}")]
        words += ["--set", "erase=true"]
    elif at.words:
        words += ["--storage", *at.words]
    prefix = at.paths.prefix if at.words else ()
    done = subprocess.run([*prefix, *words], stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    plan, stalls = told["plan"], told["stalls"][1:]
    volumes = [tier["planned_peak"] for tier in plan["tiers"] if tier["name"].startswith("path:")]
    return {
        "seconds": told["seconds"],
        "path_bytes": list(told["path_bytes"].values()),  # of the last step
        "waiting_seconds": statistics.median(sum(step.values()) for step in stalls),
        "waiting": {cause: statistics.median(step[cause] for step in stalls) for cause in stalls[0]} if stalls else {},
        "predicted_seconds": plan["predicted_step_seconds"],
        "bottleneck": plan["bottleneck"],
        "volume_bytes": sum(volumes),
        "peak_bytes": told["peak_bytes"],
    }  # fmt: skip


def moved_by(paths: Throttled) -> list[dict[str, int]]:
    """Bytes that the block layer has moved so far, by path."""
    out = []
    for loop in paths.loops:
        fields = Path(f"/sys/block/{Path(loop).name}/stat").read_text().split()
        out.append({"read": int(fields[2]) * SECTOR, "written": int(fields[6]) * SECTOR})
    return out


def run_processes(case: Case, at: Places, steps: int) -> dict[str, Any]:
    """`spillway train` in several processes, whose steps the first process reports."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model(folder, SHAPE, None)
        out = folder / "out"
        words = [sys.executable, "-m", "spillway", "train", "--model", str(folder / "model"), "--tokenizer",
                 str(folder / "tokenizer"), "--init", "random", "--dataset", str(folder / "text.txt"), "--packing",
                 "--max_length", str(SEQUENCE), "--per_device_train_batch_size", "1", "--max_steps", str(steps),
                 "--gradient_accumulation_steps", "1", "--output_dir", str(out), "--save_only_model", "true",
                 "--placement", "path", "--dram_budget", BUDGET]  # fmt: skip
        words += [word for path in at.words for word in ("--storage", path)]
        running = stack.enter_context(start_ranks([*at.paths.prefix, *words], case.processes, folder, PORT))
        counts = watch_steps(out, running, at.paths, steps)
        wait_ranks(running, folder)
        plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
        seconds = steps_of(out)
    counted = len(counts) - 2  # of the steps from the second on but the last, whose checkpoint is written as well
    path_bytes = [
        {way: (last[way] - first[way]) / counted for way in first}
        for first, last in zip(counts[0], counts[-2], strict=True)
    ]
    return {
        "seconds": seconds[:-1],
        "path_bytes": path_bytes,  # of a step, the mean
        "predicted_seconds": plan["predicted_step_seconds"],
        "bottleneck": plan["bottleneck"],
    }


def watch_steps(
    out: Path, running: list[subprocess.Popen[bytes]], paths: Throttled, steps: int
) -> list[list[dict[str, int]]]:
    """Bytes that the paths have moved by the end of each step."""
    counts: list[list[dict[str, int]]] = []
    while len(counts) < steps and all(process.poll() is None for process in running):
        if len(steps_of(out)) > len(counts):
            counts.append(moved_by(paths))
        time.sleep(LOOK)
    return counts


def run_deepspeed(case: Case, python: str, words: tuple[str, ...], steps: int) -> dict[str, Any]:
    with places(case) as at:
        command = [python, str(HERE / "peers.py"), "deepspeed", "--shape", SHAPE, "--sequence", str(SEQUENCE),
                   "--steps", str(steps), "--storage", at.words[0], *words]  # fmt: skip
        before = moved_by(at.paths)  # a loop device counts on from its earlier use
        done = subprocess.run([*at.paths.prefix, *command], stdout=subprocess.PIPE, text=True, check=True)
        after = moved_by(at.paths)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "seconds": told["seconds"],
        "path_bytes_of_run": [
            {way: now[way] - then[way] for way in now} for then, now in zip(before, after, strict=True)
        ],
        "peak_bytes": told["peak_bytes"],
        "its_own_adam": told["its_own_adam"],
    }


def finish(case: Case, told: dict[str, Any]) -> dict[str, Any]:
    """Adds what the bytes allow."""
    told["median_seconds"] = statistics.median(told["seconds"][1:])
    limits = [1e6 * rate for rate in (*case.local, *([case.remote] if case.remote else []))]
    told["limits_mb_per_s"] = [limit / 1e6 for limit in limits]
    if not limits or "path_bytes" not in told:
        return told
    sums = {way: sum(moved[way] for moved in told["path_bytes"]) for way in ("read", "written")}
    told["least_seconds"] = max(sums.values()) / sum(limits)
    told["beside_least"] = told["median_seconds"] / told["least_seconds"]
    told["fastest_beside_least"] = min(told["seconds"][1:]) / told["least_seconds"]
    # the path that its own bytes bind most: with a fixed split this is what bounds the step
    told["path_seconds"] = [
        max(moved.values()) / limit for moved, limit in zip(told["path_bytes"], limits, strict=True)
    ]
    return told


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    case = scaled(CASES["one" if name in DEEPSPEED else name], arguments.scale)
    if name in DEEPSPEED:
        return finish(case, run_deepspeed(case, arguments.deepspeed, DEEPSPEED[name], arguments.steps))
    with places(case) if case.local else contextlib.nullcontext(Places(Throttled(Path(), [], []), ())) as at:
        run = run_engine if case.processes == 1 else run_processes
        return finish(case, run(case, at, arguments.steps))


def keep(name: str, told: dict[str, Any]) -> None:
    file = RESULTS / f"{NAME}.json"
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    save(NAME, {"shape": SHAPE, "sequence": SEQUENCE, "dram_budget": BUDGET, "cases": cases | {name: told}})


def say(name: str, told: dict[str, Any]) -> None:
    words = [f"{name:20} {told['median_seconds']:6.2f} s a step"]
    if "least_seconds" in told:
        shares = " ".join(f"{seconds:.2f}" for seconds in told["path_seconds"])
        words.append(f"{told['beside_least']:.3f} of the bytes' {told['least_seconds']:.2f} s (by path: {shares})")
    if "predicted_seconds" in told:
        words.append(f"predicted {told['predicted_seconds']:.2f}")
    print(", ".join(words), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*CASES, *DEEPSPEED), default=list(CASES), metavar="CASE")
    parser.add_argument("--steps", type=int, default=10, help="of each case; the first does not count")
    parser.add_argument("--scale", type=float, default=1, help="of all limits: less for a machine with other work")
    parser.add_argument("--deepspeed", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--note", default="", help="on the machine, for readers of the results")
    arguments = parser.parse_args()
    for name in arguments.only:
        beside = machine() | processor() | {"note": arguments.note}
        told = measure(name, arguments) | {"machine": beside}
        say(name, told)
        keep(name, told)


if __name__ == "__main__":
    main()
