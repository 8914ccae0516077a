"""The checker of import directions, fed with trees that keep and break its rules."""

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from check_imports import PACKAGES
from folders import REPOSITORY

CHECKER = REPOSITORY / "scripts" / "check_imports.py"


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, CHECKER, tree], capture_output=True, text=True)


def write(tree: Path, file: str, content: str) -> Path:
    path = tree / "python" / "spillway" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return tree


def test_this_tree_keeps_the_rules() -> None:
    result = check(REPOSITORY)
    assert result.returncode == 0, result.stdout


def test_the_arrows_make_no_circle() -> None:
    assert list(TopologicalSorter(PACKAGES).static_order())


def test_architecture_has_the_same_arrows() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text().split("## The Python packages")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {row[0].strip("` "): set(row[-1].strip(" -").split(", ")) - {""} for row in rows}
    assert told == {name: may for name, may in PACKAGES.items() if name != "errors"}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run/loop.py", "from spillway.output import records"),
        ("run/loop.py", "from spillway.run.protocol import StepResult"),
        ("base/calls.py", "from spillway import _engine, __version__"),
        ("base/calls.py", "from spillway.errors import InputError"),
        ("model/layer.py", "import torch"),
        ("__init__.py", "from spillway.run.train import train"),
        ("model/layer.py", '"""Not an import: from spillway.run import loop."""'),
    ],
)
def test_allowed(tmp_path: Path, file: str, content: str) -> None:
    result = check(write(tmp_path, file, content + "\n"))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("model/layer.py", "from spillway.run.session import Session", "package model may not import"),
        ("model/layer.py", "from spillway import run", "package model may not import"),
        ("model/layer.py", "import spillway.run.session", "package model may not import"),
        ("model/layer.py", "def late():\n    from spillway.run import loop", "package model may not import"),
        ("model/layer.py", "if TYPE_CHECKING:\n    from spillway.run import loop", "package model may not import"),
        ("model/layer.py", 'import_module("spillway.run.session")', "package model may not import"),
        ("run/loop.py", "from spillway.hf import load", "package run may not import"),
        ("run/loop.py", "from spillway import train", "of the facade"),
        ("run/loop.py", "from .protocol import StepResult", "relative to itself"),
        ("attic/old.py", "import torch", "attic is no package"),
    ],
)
def test_refused(tmp_path: Path, file: str, content: str, says: str) -> None:
    result = check(write(tmp_path, file, content + "\n"))
    assert result.returncode == 1
    line = len(content.splitlines())
    assert result.stdout.startswith(f"python/spillway/{file}:{line}:") and says in result.stdout


def test_a_folder_without_the_package_is_an_error(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 2
