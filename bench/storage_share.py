"""Do processes that use one device at once get the whole of it, and fair parts? On a device of known speed.

    python bench/storage_share.py BUILD/bench [--limit 400] [--rounds N]

One, two and four processes, each with a path of its own on one device, through the engine and its share of the device:
all with the same depth, and where every other one would have four times as much in flight; that again without shares.
Says what all got of the limit, and the part that is furthest from an equal one. Fair is only who asks for its part: a
depth below the budget (16 MiB) by the number of processes gets less. Results: bench/results/storage-share.json.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

from figures import machine, save
from throttled import Throttled, throttled

LINE = re.compile(r"(\d+) processes +(\w+) +(\w+) +sum +([\d.]+) MB/s +parts (.*)")


def run(arguments: argparse.Namespace, paths: Throttled, depths: str, *words: str) -> dict[str, tuple[float, float]]:
    """By processes, pattern and direction: MB/s of all, and the part furthest from an equal one, in units of that."""
    command = [*paths.prefix, str(arguments.programs / "storage_share"), str(paths.directories[0]), "--depths", depths]
    command += ["--mib-volume", "128", "--seconds", str(arguments.seconds), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        if match := LINE.match(line):
            parts = [float(part) / 100 * int(match[1]) for part in re.findall(r"[\d.]+", match[5])]
            worst = max(parts, key=lambda part: abs(part - 1))
            found[f"{match[1]} processes, {match[2]}, {match[3]}"] = (float(match[4]), worst)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--limit", type=float, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "limit_mb_per_s": arguments.limit}
    with throttled([arguments.limit], 1024) as paths:
        for name, depths, rounds, words in (
            ("share, equal depths", "16", arguments.rounds, ()),
            ("share, depths 64 and 16", "64,16", arguments.rounds, ()),
            ("no share, depths 64 and 16", "64,16", 1, ("--no-share", "--processes", "2,4")),
        ):
            print(name, flush=True)
            measured = [run(arguments, paths, depths, *words) for _ in range(rounds)]
            found[name] = {key: of_rounds([it[key] for it in measured], key, arguments.limit) for key in measured[0]}
    save("storage-share", found)


def of_rounds(rounds: list[tuple[float, float]], key: str, limit: float) -> dict[str, Any]:
    worst = max((part for _, part in rounds), key=lambda part: abs(part - 1))
    median = statistics.median(rate for rate, _ in rounds)
    print(f"  {key:32} {median:6.1f} MB/s, {median / limit:6.1%} of the limit; worst part {worst:.3f} of an equal one")
    return {"mb_per_s": [rate for rate, _ in rounds], "of_limit": median / limit, "worst_part": worst}


if __name__ == "__main__":
    main()
