"""Do disk, compute and update overlap? The byte trace of a step, replayed beside a plain PyTorch loop.

    overlap.py REPLAY DIRECTORY [--shape 0.5b] [--sequence 1024] [--steps 4] [--gib 2]

REPLAY is the built replay: everything on a path in DIRECTORY, 30 bytes per parameter and step, with every update. Each
runs alone, then both at once; printed is what each costs the other. If nothing were shared, a step of both would take
as long as the slower of the two. Results go to bench/results/overlap.json.
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
ENDLESS = 1_000_000  # steps; the replay beside a loop is ended with it


def loop(arguments: argparse.Namespace) -> subprocess.Popen[str]:
    words = ["--shape", arguments.shape, "--sequence", str(arguments.sequence), "--steps", str(arguments.steps)]
    return subprocess.Popen(
        [sys.executable, str(HERE / "peers.py"), "plain", *words], stdout=subprocess.PIPE, text=True
    )


def replay(arguments: argparse.Namespace, steps: int) -> subprocess.Popen[str]:
    words = [str(arguments.replay), str(arguments.directory), arguments.shape, str(arguments.gib), str(steps)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def loop_seconds(process: subprocess.Popen[str]) -> float:
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit("the plain loop failed")
    seconds: list[float] = json.loads(text.strip().splitlines()[-1])["seconds"]
    return statistics.median(seconds[1:])


def replay_seconds(text: str) -> float:
    """Of lines such as "step 1: 5.42 s, ..."."""
    return statistics.median(float(line.split()[2]) for line in text.splitlines() if line.startswith("step "))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    alone = loop_seconds(loop(arguments))
    text, _ = replay(arguments, arguments.steps).communicate()
    replayed = replay_seconds(text)
    beside = replay(arguments, ENDLESS)
    try:
        together = loop_seconds(loop(arguments))
    finally:
        beside.terminate()
    replay_beside = replay_seconds(beside.communicate()[0])
    return {
        "loop_seconds": alone, "replay_seconds": replayed,
        "loop_seconds_beside": together, "replay_seconds_beside": replay_beside,
        "loop_slowed": together / alone, "replay_slowed": replay_beside / replayed,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replay", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--gib", type=float, default=2)
    arguments = parser.parse_args()
    found = measure(arguments)
    for name in ("loop", "replay"):
        alone, beside = found[f"{name}_seconds"], found[f"{name}_seconds_beside"]
        print(f"{name:7} {alone:.2f} s a step alone, {beside:.2f} s beside the other: {beside / alone:.2f} times")
    (HERE / "results" / "overlap.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
