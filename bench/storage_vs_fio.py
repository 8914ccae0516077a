"""The path engine beside fio on the same file system, in alternating pairs.

    python bench/storage_vs_fio.py BUILD/bench [--storage DIR] [--limits 400,1600] [--pairs N] [--mib N]

fio: io_uring, O_DIRECT, 1 MiB blocks, 16 in flight, registered buffers and file, no checksums. Spillway: 8 MiB
transfers, 16 pieces of 1 MiB in flight, checksums on. Both have files of the same size. On paths of known speeds (MB/s,
each direction), and with --storage on a real drive; there both write their whole file right before each figure, so that
caches below the file system are equally warm. The update is Spillway's own (each chunk is read, updated and written,
12 bytes per parameter), beside fio's mixed pattern. Large requests are served faster from huge pages, which Spillway's
buffers are on; fio's are, too, where 32 are reserved (echo 64 > /proc/sys/vm/nr_hugepages). Results:
bench/results/storage-fio.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from figures import HUGE_PAGES, Asked, Prefix, asked, fio, machine, pairs, rates_of, save, wait_for_space
from throttled import throttled


class Sides:
    """Both programs on one directory."""

    def __init__(
        self, arguments: argparse.Namespace, directory: Path, mib: int, *, drive: bool, prefix: Prefix
    ) -> None:
        self.arguments, self.directory, self.mib, self.drive, self.prefix = arguments, directory, mib, drive, prefix

    def path_rate(self, program: Asked, pattern: str) -> float:
        if self.drive:
            program.ask("fill")
        return sum(rates_of(program.ask(pattern)))

    def fio_rate(self, pattern: str) -> float:
        return fio(self.directory, pattern, self.mib, self.arguments.seconds, warm=self.drive, prefix=self.prefix)

    def compare(self, name: str) -> dict[str, Any]:
        found = {}
        words = [str(self.arguments.programs / "storage_path"), str(self.directory), "--mib-volume", str(self.mib)]
        words += ["--mib", "8", "--seconds", str(self.arguments.seconds)]
        with asked(*words, prefix=self.prefix, ready="first write") as program:
            for pattern in ("read", "write", "mixed"):
                found[pattern] = pairs(
                    self.arguments.pairs,
                    lambda pattern=pattern: self.path_rate(program, pattern),  # type: ignore[misc]
                    lambda pattern=pattern: self.fio_rate(pattern),  # type: ignore[misc]
                    say=f"{name}, {pattern}",
                )
        params = self.mib * 3 // 4 * (1 << 20) // 12
        words = [str(self.arguments.programs / "storage_update"), str(self.directory), "--params", str(params)]
        words += ["--chunk", str(1 << 19), "--window", "16", "--no-gradients"]
        wait_for_space(self.directory, self.mib)
        with asked(*words, prefix=self.prefix) as program:
            found["update"] = pairs(
                self.arguments.pairs,
                lambda: sum(rates_of(program.ask("update"))),
                lambda: self.fio_rate("mixed"),
                say=f"{name}, update",
            )
        (self.directory / "fio.data").unlink()
        for pattern, it in found.items():
            print(
                f"{name}, {pattern}: {it['ratio']:.3f} of fio ({it['medians']['spillway'] / 1e9:.3f} GB/s)", flush=True
            )
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
            found[f"limit_{limit:.0f}"] = sides.compare(f"{limit:.0f} MB/s")
    if arguments.storage:
        with tempfile.TemporaryDirectory(dir=arguments.storage) as work:
            found["drive"] = Sides(arguments, Path(work), arguments.mib, drive=True, prefix=()).compare("drive")
    save("storage-fio", found)


if __name__ == "__main__":
    main()
