"""The path engine beside fio on the same file system, in alternating pairs.

    python bench/storage_vs_fio.py BUILD/bench [--storage DIR] [--limits 400,1600] [--pairs N] [--mib N]

fio: io_uring, O_DIRECT, 1 MiB blocks, 16 in flight, registered buffers and file, no checksums. Spillway: 8 MiB
transfers, 16 pieces of 1 MiB in flight, checksums on. Both use one and the same file, the path's volume (two files on
one virtual drive differ by up to 1.45 in rate). On paths of known speeds (MB/s, each direction), and with --storage on
a real drive; there both write the whole file right before each figure, so that caches below the file system are equally
warm. The update is Spillway's own (each chunk is read, updated and written, 12 bytes per parameter), beside fio's mixed
pattern on a file of its own. On the drive also: Spillway without checksums, and fio beside a program that does nothing
but read memory at the rate of the drive, as checksums must: what the machine takes for that. Large requests are served
faster from huge pages, which Spillway's buffers are on. fio is measured as it comes, and on the drive once more on huge
pages where 32 are reserved (echo 64 > /proc/sys/vm/nr_hugepages). Results: bench/results/storage-fio.json.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from figures import HUGE_PAGES, Asked, Prefix, asked, fio, machine, pairs, rates_of, save, wait_for_space
from throttled import throttled

PATTERNS = ("read", "write", "mixed")


class Sides:
    """Both programs on one directory."""

    def __init__(
        self, arguments: argparse.Namespace, directory: Path, mib: int, *, drive: bool, prefix: Prefix = ()
    ) -> None:
        self.arguments, self.directory, self.mib, self.drive, self.prefix = arguments, directory, mib, drive, prefix
        self.huge = False  # pages for fio

    def path_rate(self, program: Asked, pattern: str) -> float:
        if self.drive or pattern != "write":
            program.ask("fill")  # fio has written over it
        return sum(rates_of(program.ask(pattern)))

    def fio_rate(self, pattern: str) -> float:
        """Where the volume's data lie."""
        volume = self.directory / "spillway.volume"
        how: dict[str, Any] = {"warm": self.drive, "huge": self.huge, "prefix": self.prefix}
        return fio(volume, pattern, self.mib, self.arguments.seconds, offset=1, **how)

    def fio_rate_beside_reader(self, pattern: str, rate: float) -> float:
        reader = subprocess.Popen([self.arguments.programs / "memory_read", str(rate)], stdin=subprocess.PIPE)
        try:
            return self.fio_rate(pattern)
        finally:
            reader.communicate()

    def path(self, name: str, *more: str) -> dict[str, Any]:
        found = {}
        words = [str(self.arguments.programs / "storage_path"), str(self.directory), "--mib-volume", str(self.mib)]
        words += ["--mib", "8", "--seconds", str(self.arguments.seconds), *more]
        with asked(*words, prefix=self.prefix, ready="first write") as program:
            for pattern in PATTERNS:
                found[pattern] = pairs(
                    self.arguments.pairs,
                    lambda pattern=pattern: self.path_rate(program, pattern),  # type: ignore[misc]
                    lambda pattern=pattern: self.fio_rate(pattern),  # type: ignore[misc]
                    say=f"{name}, {pattern}",
                )
        return self.told(name, found)

    def reader(self, name: str, rates: dict[str, float]) -> dict[str, Any]:
        """fio beside a reader of memory, beside fio alone."""
        found = {}
        words = [str(self.arguments.programs / "storage_path"), str(self.directory), "--mib-volume", str(self.mib)]
        with asked(*words, "--mib", "8", prefix=self.prefix, ready="first write"):
            for pattern in PATTERNS:
                found[pattern] = pairs(
                    self.arguments.pairs,
                    lambda pattern=pattern: self.fio_rate_beside_reader(pattern, rates[pattern]),  # type: ignore[misc]
                    lambda pattern=pattern: self.fio_rate(pattern),  # type: ignore[misc]
                    say=f"{name}, {pattern}",
                )
        return self.told(name, found)

    def update(self, name: str) -> dict[str, Any]:
        params = self.mib * 3 // 4 * (1 << 20) // 12
        words = [str(self.arguments.programs / "storage_update"), str(self.directory), "--params", str(params)]
        words += ["--chunk", str(1 << 19), "--window", "16", "--no-gradients"]
        own = self.directory / "fio.data"
        wait_for_space(self.directory, self.mib)
        with asked(*words, prefix=self.prefix) as program:
            found = pairs(
                self.arguments.pairs,
                lambda: sum(rates_of(program.ask("update"))),
                lambda: fio(
                    own,
                    "mixed",
                    self.mib,
                    self.arguments.seconds,
                    warm=self.drive,
                    huge=self.huge,
                    prefix=self.prefix,
                ),  # fmt: skip
                say=f"{name}, update",
            )
        own.unlink()
        return self.told(name, {"update": found})

    @staticmethod
    def told(name: str, found: dict[str, Any]) -> dict[str, Any]:
        for pattern, it in found.items():
            rate = it["medians"]["spillway"] / 1e9
            print(f"{name}, {pattern}: {it['ratio']:.3f} of fio ({rate:.3f} GB/s)", flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--limits", type=lambda words: [float(x) for x in words.split(",") if x], default=[400, 1600])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--mib", type=int, default=4096, help="of both files on a drive; 768 on a path over memory")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "huge_pages": int(HUGE_PAGES.read_text())}
    for limit in arguments.limits:
        with throttled([limit], 2 * 768 + 192) as paths:
            sides = Sides(arguments, paths.directories[0], 768, drive=False, prefix=paths.prefix)
            name = f"{limit:.0f} MB/s"
            found[f"limit_{limit:.0f}"] = sides.path(name) | sides.update(name)
    if arguments.storage:
        with tempfile.TemporaryDirectory(dir=arguments.storage) as work:
            sides = Sides(arguments, Path(work), arguments.mib, drive=True)
            found["drive"] = sides.path("drive") | sides.update("drive")
            sides.huge = int(HUGE_PAGES.read_text()) >= 32
            if sides.huge:
                found["drive_huge_pages"] = sides.path("fio on huge pages") | sides.update("fio on huge pages")
            found["without_checksums"] = sides.path("no checksums", "--no-checksums")
            rates = {pattern: found["drive"][pattern]["medians"]["other"] for pattern in PATTERNS}
            found["fio_beside_a_reader"] = sides.reader("fio, reader", rates)
    save("storage-fio", found)


if __name__ == "__main__":
    main()
