"""Builds the Dockerfile without Docker and tries the image: buildah runs its lines, over a Debian that debootstrap has
made, and what a user does first runs in it (wheels/first_run.sh).

    python scripts/check_image.py dist/spillway-*-cp311-*.whl

Run by `make image-check`, as root. The Python packages come from files that pip has brought beforehand, so that of the
Dockerfile only two things are not tried: that its base image and its index of PyTorch are where it says.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wheels import machine
from wheels.machine import ROOT, Stopped, Unable, run

PIP = "[global]\nno-index = true\nfind-links = /wheelhouse\n"


class Buildah:
    """Images and containers in a folder of their own; chroot is all the isolation that it needs."""

    def __init__(self, folder: Path) -> None:
        self._start = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._start += ["--storage-driver", "vfs"]

    def run(self, verb: str, *words: str | Path) -> None:
        run([*self._start, verb, *words])

    def named(self, verb: str, *words: str) -> str:
        """The last word that it says: an image's or a container's."""
        said = subprocess.run([*self._start, verb, *words], check=True, stdout=subprocess.PIPE, text=True)
        return said.stdout.split()[-1]


def base(buildah: Buildah, bare: Path, folder: Path) -> str:
    """The bare Debian as an image."""
    context = folder / "base"
    context.mkdir()
    run(["tar", "-C", bare, "-cf", context / "debian.tar", "."])
    (context / "Dockerfile").write_text("FROM scratch\nADD debian.tar /\n")
    buildah.run("build", "--quiet", "--tag", "bare", context)
    shutil.rmtree(context)
    return "localhost/bare"


def image(buildah: Buildah, bare: str, wheel: Path, packages: Path, folder: Path) -> None:
    """The Dockerfile's, with this wheel."""
    context = folder / "context"
    (context / "dist").mkdir(parents=True)
    shutil.copy2(wheel, context / "dist")
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy2(ROOT / name, context)
    pip = folder / "pip.conf"
    pip.write_text(PIP)
    mounts = ["--volume", f"{packages}:/wheelhouse:ro", "--volume", f"{pip}:/etc/pip.conf:ro"]
    buildah.run("build", "--isolation", "chroot", "--build-arg", f"BASE={bare}", *mounts, "--tag", "spillway", context)


def tried(buildah: Buildah, folder: Path) -> None:
    machine.lay_out(folder / "try")
    container = buildah.named("from", "--pull-never", "localhost/spillway")
    mount = ["--volume", f"{folder / 'try'}:/try:ro"]
    buildah.run("run", "--isolation", "chroot", *mount, container, "/try/first_run.sh", "/try")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="a wheel for Python 3.11")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheel-check", help="folder on a disk with 8 GiB")
    options = parser.parse_args()
    wheel, work = options.wheel.resolve(), options.work.resolve()
    begun = time.monotonic()
    try:
        machine.refuse_what_is_missing("debootstrap", "buildah")
        bare = machine.bare_debian(work / "debian")
        packages = machine.wheelhouse(work / "wheelhouse", wheel)
        with tempfile.TemporaryDirectory(dir=work) as place:
            buildah = Buildah(Path(place))
            image(buildah, base(buildah, bare, Path(place)), wheel, packages, Path(place))
            machine.timed("the image", begun)
            tried(buildah, Path(place))
    except (Stopped, Unable) as reason:
        return machine.refusal("make image-check", reason)
    machine.timed("the Dockerfile was built and its image fine-tuned a model", begun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
