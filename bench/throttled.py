"""Storage paths of known speeds on any machine: loop devices over memory or a disk (`back`), with ext4, and a limit on
bytes per second.

    with throttled([400, 400, 200], mib=512) as paths:
        subprocess.run([*paths.prefix, "program", *paths.directories])
        paths.limit(0, 100)

The limits (MB/s, 1e6) are those of a blkio group of cgroup v1, each direction for itself, and hold for what is started
with `prefix`. Requests may be up to 1 MiB from huge pages; from small ones, or longer, the block layer splits them, and
counts them twice. Needs root, losetup, mkfs.ext4 and that much memory; leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


class Throttled:
    def __init__(self, group: Path, directories: list[Path], loops: list[str]) -> None:
        self.group, self.directories, self.loops = group, directories, loops
        self.rates: dict[int, float] = {}  # MB/s, by path
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        self.prefix = ("sh", "-c", enter, str(group))

    def limit(self, path: int, megabytes: float) -> None:
        self.rates[path] = megabytes
        self._write(path, megabytes)

    def release(self) -> None:
        for path in self.rates:
            self._write(path, 1e6)

    def restore(self) -> None:
        for path, megabytes in self.rates.items():
            self._write(path, megabytes)

    def to_words(self) -> str:
        """For a process that is to release and restore them."""
        return json.dumps([str(self.group), [str(path) for path in self.directories], self.loops, self.rates])

    @classmethod
    def from_words(cls, words: str) -> Throttled:
        group, directories, loops, rates = json.loads(words)
        out = cls(Path(group), [Path(path) for path in directories], loops)
        out.rates = {int(path): rate for path, rate in rates.items()}
        return out

    def _write(self, path: int, megabytes: float) -> None:
        device = Path(f"/sys/block/{Path(self.loops[path]).name}/dev").read_text().strip()
        for direction in ("read", "write"):
            limit = self.group / f"blkio.throttle.{direction}_bps_device"
            limit.write_text(f"{device} {int(megabytes * 1e6)}")


def run(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def make_group() -> Path:
    if os.geteuid() != 0:
        raise SystemExit("paths of known speeds need root")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "blkio" in options.split(","):
            own = next(x.split(":")[2] for x in Path("/proc/self/cgroup").read_text().split() if ":blkio:" in x)
            group = Path(mount + own) / f"spillway-bench.{os.getpid()}"
            group.mkdir()
            return group
    raise SystemExit("no blkio controller of cgroup v1 is mounted")


def format_device(device: str, directory: Path) -> None:
    """Makes a file system on the device, and mounts it in a new directory."""
    run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", device)
    directory.mkdir()
    run("mount", "-o", "noatime", device, str(directory))


def unmount(directory: Path) -> None:
    """The kernel lets go of a program's rings a moment after its end."""
    for _ in range(100):
        if subprocess.run(["umount", str(directory)], stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.1)
    print(f"cannot unmount {directory}")


@contextlib.contextmanager
def throttled(
    rates: Sequence[float], mib: int | Sequence[int], back: Path = Path("/dev/shm"), raw: bool = False
) -> Iterator[Throttled]:
    """Paths of so many MB/s and MiB, the same for all or one each. `raw`: devices without a file system."""
    sizes = [mib] * len(rates) if isinstance(mib, int) else mib
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is taken down
    with contextlib.ExitStack() as stack:
        group = make_group()
        stack.callback(group.rmdir)
        images = Path(tempfile.mkdtemp(prefix="spillway-bench.", dir=back))
        stack.callback(shutil.rmtree, images)
        work = Path(tempfile.mkdtemp(prefix="spillway-bench."))
        stack.callback(shutil.rmtree, work)
        paths = Throttled(group, [], [])
        for number, (rate, size) in enumerate(zip(rates, sizes, strict=True)):
            image, directory = images / str(number), work / str(number)
            run("fallocate", "-l", f"{size}M", str(image))
            paths.loops.append(run("losetup", "--find", "--show", "--direct-io=on", str(image)))
            stack.callback(run, "losetup", "-d", paths.loops[-1])
            if not raw:
                format_device(paths.loops[-1], directory)
                stack.callback(unmount, directory)
                paths.directories.append(directory)
            paths.limit(number, rate)
        yield paths
