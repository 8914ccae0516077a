"""Does the rate of a server add to that of a local drive? Two paths, through the pool: a file system that answers by a
program in user space, as a remote one's client waits for its server (tests/python/support/served.c), and a local drive.

    python bench/storage_remote.py BUILD/bench [--local 100] [--remote 50] [--rounds 3] [--streams 16]

Each round measures every pattern for some seconds: what both moved, as a share of the sum of the two limits. The server
keeps its files in memory. The limits are low, so that a busy CPU keeps up with them.
Results: bench/results/storage-remote.json.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import machine, rates_of, save
from throttled import throttled

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "python" / "support"))

from served import program, served

VOLUME = 512  # MiB of each path


def measured(words: list[str], limit: float) -> dict[str, dict[str, float]]:
    """Of every pattern the shares of the limit that were read and written."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        print(line, flush=True)
        if not line.startswith(("note", "layout")):
            shares = [rate / limit for rate in rates_of(line)]
            found[line.split()[0]] = dict(zip(("read", "write"), shares, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--local", type=float, default=100, help="MB/s in each direction")
    parser.add_argument("--remote", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--streams", type=int, default=16)
    arguments = parser.parse_args()
    limit = 1e6 * (arguments.local + arguments.remote)
    rounds: list[dict[str, dict[str, float]]] = []
    before = machine()
    with (
        throttled([arguments.local], VOLUME + 64) as local,
        tempfile.TemporaryDirectory(prefix="spillway-bench.") as place,
        tempfile.TemporaryDirectory(prefix="spillway-bench.", dir="/dev/shm") as backing,
        served(program(Path(place)), Path(backing), Path(place, "remote")) as server,
    ):
        server.limit(arguments.remote * 1e6)
        paths = [str(server.directory), str(local.directories[0])]
        words = [*local.prefix, str(arguments.programs / "storage_pool"), *paths, "--mib-volume", str(VOLUME),
                 "--seconds", str(arguments.seconds), "--streams", str(arguments.streams)]  # fmt: skip
        for _ in range(arguments.rounds):
            rounds.append(measured(words, limit))
    found: dict[str, Any] = {"machine": before, "mb_per_s": {"local": arguments.local, "remote": arguments.remote}}
    found |= {"streams": arguments.streams, "seconds": arguments.seconds, "rounds": rounds, "median": {}}
    for pattern in rounds[0]:
        both = {way: statistics.median(each[pattern][way] for each in rounds) for way in ("read", "write")}
        found["median"][pattern] = both
        print(f"{pattern:8} read {both['read']:6.1%}  write {both['write']:6.1%} of the sum of the limits")
    save("storage-remote", found)


if __name__ == "__main__":
    main()
