"""A kernel and a QEMU from Debian's archive, unpacked into a cache and never installed.

Which archive is apt's own choice: the mirror that this system is set to is asked for the release's packages and its
backports, with a state of apt's that is kept apart from the system's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from machine_errors import CannotStart

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spillway-numa"
WAIT = 300  # seconds that apt gets for one thing


def output_of(*words: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, cwd=cwd, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"{words[0]}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CannotStart(f"{' '.join(words[:2])} failed: {''.join(last)}")
    return done.stdout


def codename() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    if not found or not shutil.which("apt-get"):
        raise CannotStart("this is no Debian system, so there is no kernel to fetch; name one: SPILLWAY_NUMA_KERNEL")
    return found[1]


class Archive:
    """apt with a state of its own, which knows the release and its backports."""

    def __init__(self) -> None:
        self.release = codename()
        directory = CACHE / "apt"
        (directory / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (directory / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        targets = output_of("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)").splitlines()
        of_release = [uri for name, _, uri in (line.partition(" ") for line in targets) if name == self.release]
        mirrors = [uri for uri in of_release if "debian" in uri]
        if not mirrors:
            raise CannotStart(f"apt has no Debian archive for {self.release} (apt-get update)")
        suites = (self.release, f"{self.release}-backports")
        (directory / "sources.list").write_text("".join(f"deb {mirrors[0]} {suite} main\n" for suite in suites))
        settings = {
            "Dir::Etc::sourcelist": directory / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::Lists": directory / "lists",
            "Dir::Cache": directory,
            "APT::Sandbox::User": "root",
        }
        self.options = ["-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
        output_of("apt-get", *self.options, "update")

    def unpack(self, packages: list[str], to: Path, suite: str | None = None) -> None:
        """All of them into one directory, which appears when it is complete."""
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            draft = Path(work) / "draft"
            for package in packages:
                chosen = ["-t", suite] if suite else []
                output_of("apt-get", *self.options, *chosen, "download", package, cwd=Path(work))
            for archive in Path(work).glob("*.deb"):
                output_of("dpkg-deb", "-x", str(archive), str(draft))
            draft.rename(to)

    def kernel_package(self) -> str:
        """The package that the newest linux-image of the archive stands for."""
        shown = output_of("apt-cache", *self.options, "show", f"linux-image-{architecture()}")
        found = re.findall(r"^Version: (\S+)$.*?^Depends: (linux-image-\S+)", shown, re.MULTILINE | re.DOTALL)
        if not found:
            raise CannotStart("the archive has no kernel")
        backports = [package for version, package in found if "bpo" in version]
        return (backports or [found[0][1]])[0]


def architecture() -> str:
    name = output_of("dpkg", "--print-architecture").strip()
    if name != "amd64":
        raise CannotStart(f"the virtual machine is made for amd64, and this is {name}")
    return name


def kernel() -> Path:
    """A directory with boot/vmlinuz-* and lib/modules."""
    if named := os.environ.get("SPILLWAY_NUMA_KERNEL"):
        return Path(named)
    there = CACHE / "kernel"
    if not there.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        archive = Archive()
        archive.unpack([archive.kernel_package()], there)
    return there


QEMU = "qemu-system-x86_64"


def has_volatile_cxl(qemu: str) -> bool:
    shown = subprocess.run([qemu, "-device", "cxl-type3,help"], capture_output=True, text=True, check=False)
    return "volatile-memdev" in shown.stdout


def qemu(cxl: bool) -> list[str]:
    """The command, with where its own files lie. CXL memory that forgets needs version 8.1."""
    installed = shutil.which(QEMU)
    if not installed:
        raise CannotStart(f"{QEMU} is missing (apt-get install qemu-system-x86)")
    if not cxl or has_volatile_cxl(installed):
        return [installed]
    there = CACHE / "qemu"
    if not there.is_dir():
        archive = Archive()
        archive.unpack(["qemu-system-x86", "qemu-system-data", "seabios"], there, f"{archive.release}-backports")
    command = str(there / "usr/bin" / QEMU)
    if not has_volatile_cxl(command):
        raise CannotStart("the QEMU of the archive's backports cannot emulate volatile CXL memory")
    return [command, "-L", str(there / "usr/share/qemu"), "-L", str(there / "usr/share/seabios")]


def busybox() -> Path:
    found = shutil.which("busybox")
    if not found:
        raise CannotStart("busybox is missing (apt-get install busybox-static)")
    if (
        "statically" not in output_of("sh", "-c", f"ldd {found} 2>&1 || echo statically")
        and b"ld-linux" in Path(found).read_bytes()
    ):
        raise CannotStart(f"{found} needs libraries; apt-get install busybox-static")
    return Path(found)
