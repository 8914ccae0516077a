"""The check of dimensions: the words that name one, and ceilings by file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_dimensions
from folders import REPOSITORY

THREE = "bool device;\nint path;\nint node;\n"


def make_tree(place: Path, text: str, ceilings: str = "") -> Path:
    for name, content in {"spillway/execute/a.cc": text, check_dimensions.CHECK.file: ceilings}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    return place


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("plan.placement.device", ["device"]),
        ("has_device_copy()", ["device"]),
        ("make<DeviceUpdates>()", ["device"]),
        ("budget.own_weights && layout", ["own weights"]),
        ("description.is_shared()", ["ranks"]),
        ("graph.computes_on_host(pass)", ["device"]),
        ("description.computes() != weight.keeps_own()", ["compute type", "own weights"]),
        ("pass[Operand::gathered_rows], traits(role).is_gathered", ["tied tables"]),
        ("keeps_early_update(chunk)", ["early updates"]),
        ("std::exchange(open, std::random_device()())", []),
        ("deviceless, pathology, nodes_of", ["NUMA node"]),
        ("// of the device", []),
        ('"the device"', []),
        ('#include "spillway/device/device.h"', []),
        ("chunk.reduced.any() || is_trainable(chunk)", ["frozen", "reduced"]),
    ],
)
def test_line_names_these_dimensions(line: str, names: list[str]) -> None:
    assert sorted(check_dimensions.find_dimensions(line)) == sorted(names)


def test_a_fourth_dimension_fails_and_is_listed(tmp_path: Path) -> None:
    assert not list(check_dimensions.CHECK.violations(make_tree(tmp_path, THREE)))
    command = [sys.executable, REPOSITORY / "scripts" / "check_dimensions.py"]
    done = subprocess.run([*command, make_tree(tmp_path, THREE + "Bytes redo;\n")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "spillway/execute/a.cc:4: dimensions: durability: redo" in done.stdout and "the ceiling is 0" in done.stdout


def test_ceilings_of_files_fall_and_never_rise(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, THREE + "Bytes redo;\n", '["spillway/execute/a.cc"]\ndimensions = 2\n')
    check_dimensions.CHECK.lower(tree)
    assert "dimensions = 1" in (tree / check_dimensions.CHECK.file).read_text()
    make_tree(tmp_path, THREE + "Bytes redo;\nbool early;\n", (tree / check_dimensions.CHECK.file).read_text())
    check_dimensions.CHECK.lower(tree)
    assert "dimensions = 1" in (tree / check_dimensions.CHECK.file).read_text()


def test_this_tree_keeps_its_ceilings() -> None:
    assert not list(check_dimensions.CHECK.violations(REPOSITORY))
