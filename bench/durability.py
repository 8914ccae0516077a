"""What durable steps cost and what they give, at a real size: 0.5B shape, 6 GB of state, random weights.

    durability.py --storage DIR [recovery] [checkpoint] [steps] [resident]

recovery    killed with SIGKILL in the middle of a step and resumed, with everything on a path (3 GiB of DRAM) and with
            everything in DRAM: seconds from opening the volumes to "recovered", and where they went
checkpoint  the manifest of a run whose state lies on a path, against copying as many bytes to the same disk (dd,
            direct, with fsync), and against a state that stands alone
steps       everything on a path, durability none, checkpoint and step in turn, each in a process of its own: medians
            over all steps but each process's first two
resident    the same with everything in DRAM, durability none and step

Results go to bench/results/durability.json; what is there of other questions stays.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "durability.json"
GB = 1e9
ON_PATH = ("--placement", "path", "--dram-budget", "3GiB")
IN_DRAM = ("--placement", "dram", "--dram-budget", "14GiB")
WARM = 2  # steps of a process that do not count
NOTHING = {"read": 0, "written": 0, "syncs": 0, "sync_seconds": 0}  # of a path that is not there


@contextmanager
def running(directories: tuple[Path, Path], *words: str) -> Iterator[subprocess.Popen[str]]:
    storage, scratch = directories
    command = [sys.executable, str(HERE / "durability_run.py"), "--storage", str(storage), "--directory", str(scratch)]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def whole(directories: tuple[Path, Path], *words: str) -> list[dict[str, Any]]:
    with running(directories, *words) as process:
        found = list(lines(process))
        if process.wait() != 0 or "end" not in found[-1]:
            raise SystemExit(f"durability_run.py ended with {process.returncode}")
    return found


def killed(directories: tuple[Path, Path], steps: int, part: float, *words: str) -> dict[str, Any]:
    """SIGKILL when `part` of the step after `steps` is over."""
    with running(directories, "--steps", str(steps + 2), *words) as process:
        for line in lines(process):
            if line.get("step") == steps:
                time.sleep(part * line["seconds"])
                process.kill()
                return {"last_step": steps, "part": part, "step_seconds": line["seconds"]}
    raise SystemExit("durability_run.py did not get that far")


def recovery(directories: tuple[Path, Path], rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, placement, steps in (("path", ON_PATH, 3), ("dram", IN_DRAM, 11)):
        words = (*placement, "--sequence", "256")
        out[name] = []
        for number in range(rounds):
            kill = killed(directories, steps, (0.3, 0.7, 0.5)[number % 3], *words)
            found = whole(directories, *words, "--resume", "--steps", "0")[0]
            out[name].append({"kill": kill, "load": os.getloadavg()[0], **found["recovery"]})
            say_recovery(name, out[name][-1])
            clear(directories[0])
    return out


def say_recovery(name: str, found: dict[str, Any]) -> None:
    split = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in found["phases"].items())
    replayed = f"{found['replayed']} of {found['chunks']} chunks replayed, up to {found['replayed_steps']} times"
    print(f"recovery, {name}: step {found['step']} after {found['seconds']:.2f} s ({split}); {replayed}", flush=True)


def checkpoint(directories: tuple[Path, Path], rounds: int) -> list[dict[str, Any]]:
    out = []
    for _ in range(rounds):
        found = whole(directories, *ON_PATH, "--sequence", "256", "--steps", "3", "--checkpoint")[-1]["checkpoint"]
        found["copy_bytes"] = state_bytes = found["alone_bytes"]
        found["copy_seconds"] = copied(directories[0], state_bytes)
        found["ratio"] = found["seconds"] / found["copy_seconds"]
        found["ratio_with_updates"] = (found["settle_seconds"] + found["seconds"]) / found["copy_seconds"]
        found["load"] = os.getloadavg()[0]
        say_checkpoint(found)
        out.append(found)
        clear(directories[0])
    return out


def say_checkpoint(found: dict[str, Any]) -> None:
    copying = f"copying {found['copy_bytes'] / GB:.1f} GB {found['copy_seconds']:.1f} s"
    print(f"checkpoint: {found['seconds']:.3f} s, after {found['settle_seconds']:.2f} s of updates; {copying} "
          f"(ratio {found['ratio']:.4f}); standing alone {found['alone_seconds']:.1f} s", flush=True)  # fmt: skip


def copied(storage: Path, count: int) -> float:
    """Seconds to copy so many bytes of the volume to another file of the same disk, past the page cache, which is
    faster here."""
    block = 4 << 20
    target = storage / "copy"
    words = ["dd", f"if={storage / 'spillway.volume'}", f"of={target}", f"bs={block}", f"count={count // block}",
             "iflag=direct", "oflag=direct", "conv=fsync", "status=none"]  # fmt: skip
    began = time.perf_counter()
    try:
        subprocess.run(words, check=True)
        return time.perf_counter() - began
    finally:
        target.unlink(missing_ok=True)


def steps(directories: tuple[Path, Path], rounds: int) -> dict[str, Any]:
    return compared(directories, rounds, ON_PATH, ("none", "checkpoint", "step"))


def resident(directories: tuple[Path, Path], rounds: int) -> dict[str, Any]:
    return compared(directories, rounds, IN_DRAM, ("none", "step"))


def compared(
    directories: tuple[Path, Path], rounds: int, placement: tuple[str, ...], kinds: tuple[str, ...]
) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            found = whole(directories, *placement, "--sequence", "128", "--steps", "5", "--durability", kind)
            clear(directories[0])
            plan = found[0]["plan"]
            runs[kind].append({
                "steps": [line for line in found if "step" in line][WARM:],
                "predicted_seconds": plan["predicted_step_seconds"],
                "predicted_written": plan["path_bytes_per_step"].get("path:0", NOTHING)["written"],
                "durability_per_step": plan.get("durability_per_step"),
                "peak_bytes": found[-1]["peak_bytes"],
                "load": os.getloadavg()[0],
            })  # fmt: skip
            say_steps(kind, summary(runs[kind][-1:]))
    return {kind: {"runs": found, **summary(found)} for kind, found in runs.items()}


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    rows = [row for run in runs for row in run["steps"]]
    moved = [row["paths"].get("path:0", NOTHING) for row in rows]
    of_path = {key: statistics.median(row[key] for row in moved) for key in NOTHING}
    seconds = {key: statistics.median(row[key] for row in rows) for key in ("seconds", "commit_seconds")}
    predicted = {key: statistics.median(run[key] for run in runs) for key in ("predicted_seconds", "predicted_written")}
    return seconds | of_path | predicted | {"fastest_seconds": min(row["seconds"] for row in rows)}


def say_steps(kind: str, found: dict[str, float]) -> None:
    print(f"durability {kind:10} {found['seconds']:6.2f} s a step (predicted {found['predicted_seconds']:.2f}), "
          f"written {found['written'] / GB:.2f} GB (predicted {found['predicted_written'] / GB:.2f}), "
          f"{found['syncs']:.0f} flushes, {found['sync_seconds']:.2f} s of them", flush=True)  # fmt: skip


def clear(storage: Path) -> None:
    (storage / "spillway.volume").unlink(missing_ok=True)


def main() -> None:
    questions = {"recovery": recovery, "checkpoint": checkpoint, "steps": steps, "resident": resident}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="question", help=", ".join(questions))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for question in arguments.questions or questions:
        with tempfile.TemporaryDirectory(dir=arguments.storage) as storage, tempfile.TemporaryDirectory() as scratch:
            results[question] = questions[question]((Path(storage), Path(scratch)), arguments.rounds)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
