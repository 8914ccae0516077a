"""Tries a wheel on a bare machine: a Debian that debootstrap has just made, with Python and no compiler, no headers, no
network and no right of root inside, in which `samples/` are fine-tuned to a checkpoint (wheels/bare_machine.sh).

    python scripts/check_wheel.py dist/spillway-*-cp311-*.whl

Run by `make wheel-check`, as root, since debootstrap and chroot ask for it. pip brings the packages beforehand, from
where it is set up to find them; a build of PyTorch without CUDA is found by PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS. Some
4 GiB of disk are taken; the bare Debian and the packages stay for the next time, and what was done in it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from wheels import machine
from wheels.machine import ROOT, Stopped, Unable, run

USER = 1000
QEMU = "qemu-x86_64-static"  # plays other CPUs; of Debian's package qemu-user-static
# Inside, in a namespace of mounts, processes and networks of its own: what every Debian has, and what is tried.
ENTER = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --bind -o ro "$WHEELHOUSE" "$root/try/wheelhouse"
exec chroot --userspec="$USER_NUMBER:$USER_NUMBER" "$root" \\
  /usr/bin/env -i HOME=/home/guest PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
"""


@contextlib.contextmanager
def alone(bare: Path, folder: Path, wheel: Path) -> Iterator[Path]:
    """A copy of the bare Debian with a user, in which /try holds what is tried; removed again."""
    shutil.rmtree(folder, ignore_errors=True)
    run(["cp", "-a", "--reflink=auto", bare, folder])
    try:
        run(["chroot", folder, "useradd", "--uid", str(USER), "--create-home", "--home-dir", "/home/guest", "guest"])
        machine.lay_out(folder / "try")
        for file in (wheel, str(shutil.which(QEMU))):
            shutil.copy2(file, folder / "try")
        (folder / "try" / "wheelhouse").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tried(root: Path, wheel: Path, packages: Path) -> None:
    inside = ["/try/bare_machine.sh", f"/try/{wheel.name}", "/try/wheelhouse", "/try"]
    apart = ["unshare", "--mount", "--pid", "--net", "--fork"]
    settings = {"WHEELHOUSE": str(packages), "USER_NUMBER": str(USER)}
    run([*apart, "/bin/bash", "-c", ENTER, "enter", root, *inside], env={**os.environ, **settings})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help=f"a wheel for Python {machine.PYTHON}")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheel-check", help="folder on a disk with 4 GiB")
    options = parser.parse_args()
    wheel, work = options.wheel.resolve(), options.work.resolve()
    begun = time.monotonic()
    try:
        machine.refuse_what_is_missing("debootstrap", QEMU)
        bare = machine.bare_debian(work / "debian")
        packages = machine.wheelhouse(work / "wheelhouse", wheel)
        with alone(bare, work / "machine", wheel) as root:
            tried(root, wheel, packages)
    except (Stopped, Unable) as reason:
        return machine.refusal("make wheel-check", reason)
    machine.timed(f"{wheel.name} was installed on a bare machine and fine-tuned a model there", begun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
