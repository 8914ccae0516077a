"""Libraries that stand between a program and the kernel: files that cannot be made, reads that fail, calls that wait.
Each does nothing until the environment says what; so processes that are forked (warm.py) have all of them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from needs import compiler, shared_library

PLACE = "SPILLWAY_TESTS_ONCE"  # in the environment: a directory of all processes of one session (conftest.py)
BY_ITSELF = {PLACE: "/nowhere"}  # in the environment of a process that takes nothing over from others (once.py)
NAMES = ("full", "held", "unreadable")


@cache
def place() -> Path:
    if given := os.environ.get(PLACE):
        return Path(given)
    made = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def library(name: str, why: str) -> Path:
    """NAME.c, compiled once in a session. Where there is no compiler, it skips; `why`: what is not tried then."""
    to = place() / f"{name}.so"
    if not to.exists():
        draft = to.with_suffix(f".{os.getpid()}")
        source = Path(__file__).with_name(f"{name}.c")
        shared_library(source, draft, f"no C compiler on this machine: {why}").rename(to)
    return to


@cache
def all_of_them() -> tuple[str, ...]:
    """Their files; none where there is no compiler, or one that makes none."""
    try:
        return tuple(str(library(name, "")) for name in NAMES) if compiler() else ()
    except subprocess.CalledProcessError:
        return ()
