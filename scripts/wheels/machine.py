"""A bare Debian, and what is brought to it to try a wheel there: packages, samples, the scripts that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE, PYTHON = "bookworm", "3.11"  # Debian 12 has this Python
SKIPPED = 77  # exit code


class Stopped(Exception):
    """It failed."""


class Unable(Exception):
    """It cannot be tried on this machine."""


def refuse_what_is_missing(*commands: str) -> None:
    if os.geteuid() != 0:
        raise Unable("a machine inside this one asks for root; inside, the wheel is tried by an ordinary user")
    if missing := [command for command in commands if shutil.which(command) is None]:
        raise Unable(f"not installed: {', '.join(missing)} (make wheel-check-packages)")


def refusal(what: str, reason: Exception) -> int:
    """The exit code, 77 where nothing was tried."""
    print(f"{what}: {reason}", file=sys.stderr)
    return SKIPPED if isinstance(reason, Unable) else 1


def run(command: Sequence[str | Path], **more: object) -> None:
    words = [str(word) for word in command]
    if subprocess.run(words, **more).returncode != 0:  # type: ignore[call-overload]
        raise Stopped(f"{' '.join(words[:6])} ... failed")


def timed(what: str, begun: float) -> None:
    print(f"{what}: {time.monotonic() - begun:.0f} s", flush=True)


def bare_debian(folder: Path) -> Path:
    """Made once: the smallest Debian, Python and what Python makes virtual environments with."""
    if (folder / "complete").exists():
        return folder / "root"
    begun = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    command = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", SUITE, folder / "root", mirror]
    with (folder / "debootstrap.log").open("w") as log:
        run(command, stdout=log, stderr=log)
    (folder / "complete").touch()
    timed("a bare Debian by debootstrap", begun)
    return folder / "root"


def wheelhouse(folder: Path, wheel: Path) -> Path:
    """What pip would install beside the wheel, as files."""
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--dest", folder]
    only = ["--only-binary=:all:", "--python-version", PYTHON, "-c", ROOT / "constraints.txt", "--find-links", folder]
    said = subprocess.run([str(word) for word in (*pip, *only, "torch", wheel)], capture_output=True, text=True)
    if said.returncode != 0:
        raise Stopped(f"pip download failed:\n{said.stderr}")
    if cuda := sorted(file.name for file in folder.glob("nvidia_*")):
        print(f"note: pip took the PyTorch with CUDA ({len(cuda)} more packages); PIP_EXTRA_INDEX_URL names another")
    timed("packages by pip download", begun)
    return folder


def lay_out(folder: Path) -> None:
    """What the scripts that try a wheel need of the checkout, and nothing else of it."""
    shutil.copytree(ROOT / "samples", folder / "samples")
    for name in ("bare_machine.sh", "first_run.sh", "processors.py", "steps.sh"):
        shutil.copy2(ROOT / "scripts" / "wheels" / name, folder)
