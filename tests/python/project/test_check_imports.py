"""Directions of imports, as import-linter holds them: the contracts cover all packages, and a breach is named."""

import configparser
import os
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from folders import REPOSITORY

PACKAGE = REPOSITORY / "python" / "spillway"
ANYWHERE = {"errors"}  # may be imported by all


def names_in(folder: Path) -> set[str]:
    """Packages and modules of a folder, but private ones."""
    entries = {entry.stem for entry in folder.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    return {name for name in entries if not name.startswith("_")}


def read_contracts() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / ".importlinter")
    return config


def arrows() -> dict[str, set[str]]:
    """The packages that each may import, by the contracts."""
    out = {}
    config, packages = read_contracts(), names_in(PACKAGE)
    for name in packages:
        forbidden = {
            line.removeprefix("spillway.")
            for line in config[f"importlinter:contract:{name}"]["forbidden_modules"].split()
        }
        assert forbidden <= packages, forbidden - packages
        out[name] = packages - forbidden - {name} - ANYWHERE
    return out


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "python"), "COLUMNS": "200"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, out / "python" / "spillway", ignore=shutil.ignore_patterns("__pycache__", "samples"))
    shutil.copy(REPOSITORY / ".importlinter", out)
    return out


def test_this_tree_keeps_the_contracts(tree: Path) -> None:
    result = lint(tree)
    assert result.returncode == 0, result.stdout


def test_the_arrows_make_no_circle() -> None:
    assert list(TopologicalSorter(arrows()).static_order())


def test_every_package_has_a_contract() -> None:
    sections = {name.removeprefix("importlinter:contract:") for name in read_contracts().sections()[1:]}
    assert sections == names_in(PACKAGE) | {"rooms-of-model"}


def test_architecture_has_the_same_arrows() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text().split("## The Python packages")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {row[0].strip("` "): set(row[-1].strip(" -").split(", ")) - {""} for row in rows}
    assert told == {name: may for name, may in arrows().items() if name not in ANYWHERE}


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("model/layers/kernels.py", "from spillway.run.session import Session", "spillway.run.session"),
        ("model/layers/kernels.py", "def late():\n    from spillway.run import loop", "spillway.run.loop"),
        ("base/calls.py", "import spillway.config.keys", "spillway.config.keys"),
        ("run/loop.py", "from spillway.hf import load", "spillway.hf"),
        ("model/layers/kernels.py", "from spillway.model.stream import stream", "spillway.model.stream.stream"),
        ("model/source/hub.py", "from spillway.model.batches import batch", "spillway.model.batches.batch"),
    ],
)
def test_breaches_are_named(tree: Path, file: str, content: str, says: str) -> None:
    path = tree / "python" / "spillway" / file
    text = path.read_text()
    path.write_text(f"{text}\n{content}\n")
    result = lint(tree)
    path.write_text(text)
    module = f"spillway.{file.removesuffix('.py').replace('/', '.')}"
    assert result.returncode == 1 and f"{module} -> {says}" in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("line", "rule"), [("from spillway import train", "TID251"), ("from .protocol import StepResult", "TID252")]
)
def test_the_facade_and_relative_names_are_refused(line: str, rule: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", "python/spillway/run/loop.py", "-"]
    result = subprocess.run(ruff, input=f"{line}\n", cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 1 and rule in result.stdout, result.stdout + result.stderr
