"""What a test may find missing on a machine: there it is skipped, with the reason, or fails where SPILLWAY_REQUIRE,
names between commas, has the capability. The names are those of tests/needs.h."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from folders import REPOSITORY

HEADER = REPOSITORY / "tests" / "needs.h"


def capabilities() -> set[str]:
    return set(re.findall(r"^  X\((\w+)\)", HEADER.read_text(), re.MULTILINE))


def required() -> set[str]:
    """The names in SPILLWAY_REQUIRE. ValueError where one is no capability: a slip would ask for nothing."""
    names = {name for name in os.environ.get("SPILLWAY_REQUIRE", "").split(",") if name}
    if unknown := names - capabilities():
        raise ValueError(f"SPILLWAY_REQUIRE: {', '.join(sorted(unknown))} is none of the capabilities in tests/needs.h")
    return names


def lacks(capability: str, why: str) -> NoReturn:
    """Leaves the test, or the whole module where it is called outside of one."""
    assert capability in capabilities(), capability
    if capability in required():
        pytest.fail(f"SPILLWAY_REQUIRE asks for {capability}: {why}")
    pytest.skip(f"{capability}: {why}", allow_module_level=True)


def needs(capability: str, there: object, why: str) -> None:
    if not there:
        lacks(capability, why)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def shared_library(source: Path, to: Path, why: str) -> Path:
    """A library that is loaded before others, from C. `why`: what is not tried without a compiler."""
    found = compiler()
    if found is None:
        lacks("compiler", why)
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-o", str(to), str(source), "-ldl"], check=True)
    return to


def package(name: str, why: str) -> Any:
    """The module of an extra, which is a capability of its own."""
    try:
        return importlib.import_module(name)
    except ImportError:
        lacks(name.partition(".")[0], why)
