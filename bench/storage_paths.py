"""Do bandwidths add, and is a path that slows down relieved? Paths of known speeds, through the pool.

    python bench/storage_paths.py BUILD/bench [--rates 400,400,200] [--cuts N] [--streams 16,8]

First every pattern for some seconds: its share of the sum of the limits. Then objects are updated (read, and written to
new places) while the first path is cut to a quarter, and later given back, again and again. A step is every object
written once: its time in units of what the limits allow, from the moment of the cut on. It has settled when five steps
have passed; then the median and the slowest step count. Results: bench/results/storage-paths.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import machine, rates_of, save, wait_for_space
from throttled import Throttled, throttled

VOLUME, FILL = 512, 0.6
EVERY = 0.1
"""Seconds between two looks."""
SETTLING = 5
"""Steps."""


def command(arguments: argparse.Namespace, paths: Throttled, *words: str) -> list[str]:
    for directory in paths.directories:
        (directory / "spillway.volume").unlink(missing_ok=True)  # of a program that was stopped
        wait_for_space(directory, VOLUME + 2)
    program = [*paths.prefix, str(arguments.programs / "storage_pool"), *map(str, paths.directories)]
    return [*program, "--mib-volume", str(VOLUME), "--fill", str(FILL), *words]


def patterns(arguments: argparse.Namespace, paths: Throttled, streams: int) -> dict[str, Any]:
    """Of every pattern the bytes per second of each direction, as shares of the sum of the limits."""
    done = subprocess.run(
        command(arguments, paths, "--seconds", "4", "--streams", str(streams)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, float]] = {}
    name = ""
    for line in done.stdout.splitlines():
        if line.startswith("note"):
            print(line)
            continue
        if line.startswith("layout"):
            found[name]["reads_allowed"] = allowed_reads(line, arguments.rates)
            print(f"{'':8} reads allowed by their layout {found[name]['reads_allowed']:6.1%}", flush=True)
            continue
        name = line.split()[0]
        shares = [rate / 1e6 / sum(arguments.rates) for rate in rates_of(line)]
        found[name] = dict(zip(("read", "write"), shares, strict=True))
        print(f"{name:8} read {shares[0]:6.1%}  write {shares[1]:6.1%} of the sum of the limits", flush=True)
    return found


def allowed_reads(line: str, rates: list[float]) -> float:
    """The part of the sum of the limits at which the path is busy that holds most for its limit; 1 where nothing is
    only read."""
    parts = [float(word) for word in line.split()[1 : 1 + len(rates)]]
    return 1 / max(max(part * sum(rates) / rate for part, rate in zip(parts, rates, strict=True)), 1.0)


def lines_of(words: list[str]) -> Iterator[str]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield from process.stdout
        finally:
            process.terminate()


def phase(
    lines: Iterator[str], steps: int, step_bytes: float, optimum: float, change: Callable[[], None]
) -> list[float]:
    """The next steps after a change: their times in units of the optimum."""
    change()
    written, step_began, now, found = 0.0, 0.0, 0.0, []
    before = time.monotonic()
    for line in lines:
        after = time.monotonic()
        moved = rates_of(line)[1] * EVERY
        while written + moved >= step_bytes:
            end = now + (step_bytes - written) / moved * (after - before)
            found.append((end - step_began) / (step_bytes / optimum))
            step_began, now = end, end
            before += (after - before) * (step_bytes - written) / moved
            moved, written = moved - (step_bytes - written), 0.0
        written, now, before = written + moved, now + after - before, after
        if len(found) >= steps:
            return found[:steps]
    raise SystemExit("storage_pool ended too early")


def cuts(arguments: argparse.Namespace, paths: Throttled, streams: int) -> dict[str, Any]:
    rates = arguments.rates
    object_bytes = 8 << 20
    objects = int(VOLUME * len(rates) * FILL * (1 << 20) / (object_bytes * streams)) * streams
    step_bytes = float(objects * object_bytes)
    words = command(arguments, paths, "--pattern", "update", "--seconds", "1000", "--every", str(EVERY),
                    "--streams", str(streams))  # fmt: skip
    lines = (line for line in lines_of(words) if line.startswith("update"))
    whole, less = sum(rates) * 1e6, (sum(rates) - 0.75 * rates[0]) * 1e6
    found: dict[str, Any] = {"cut": [], "given_back": []}
    next(lines)
    phase(lines, 3, step_bytes, whole, lambda: None)
    for number in range(arguments.cuts):
        for name, rate, optimum in (("cut", rates[0] / 4, less), ("given_back", rates[0], whole)):
            steps = phase(lines, SETTLING + 7, step_bytes, optimum, lambda rate=rate: paths.limit(0, rate))  # type: ignore[misc]
            found[name].append(steps)
            print(f"{name} {number}: step times over the optimum's: {' '.join(f'{x:.2f}' for x in steps)}", flush=True)
    lines.close()
    for name in ("cut", "given_back"):
        settled = list(itertools.chain(*(steps[SETTLING:] for steps in found[name])))
        found[f"{name}_settled"] = {"median": statistics.median(settled), "slowest": max(settled)}
        print(f"{name}, from step {SETTLING + 1} on: median {statistics.median(settled):.3f} of the optimum's time, "
              f"slowest {max(settled):.3f}")  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--rates", type=lambda words: [float(x) for x in words.split(",")], default=[400, 400, 200])
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--streams", type=lambda words: [int(x) for x in words.split(",")], default=[16, 8])
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "limits_mb_per_s": arguments.rates}
    with throttled(arguments.rates, VOLUME + 64) as paths:
        for streams in arguments.streams:
            print(f"{streams} objects of 8 MiB under way", flush=True)
            shares = patterns(arguments, paths, streams)
            found[f"streams_{streams}"] = {"shares": shares, "steps": cuts(arguments, paths, streams)}
    save("storage-paths", found)


if __name__ == "__main__":
    main()
