"""The checker of include directions, fed with trees that keep and break its rules."""

import subprocess
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY

CHECKER = REPOSITORY / "scripts" / "check_includes.py"


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, CHECKER, tree], capture_output=True, text=True)


def write(tree: Path, files: dict[str, str]) -> Path:
    (tree / "spillway").mkdir(exist_ok=True)
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    return tree


def test_this_tree_keeps_the_rules() -> None:
    result = check(REPOSITORY)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("spillway/state/layout.cc", '#include "spillway/base/bytes.h"'),
        ("spillway/state/layout.cc", '#include "spillway/state/layout.h"'),
        ("spillway/plan/planner.cc", '#include "spillway/state/layout.h"'),
        ("spillway/plan/planner.cc", '#include "spillway/machine/profile.h"'),
        ("spillway/kernels/norm.cc", '#include "hwy/highway.h"'),
        ("spillway/engine.cc", '#include "spillway/execute/executor.h"'),
        ("tests/plan/planner_test.cc", '#include "spillway/execute/executor.h"'),
        ("research/papers.cc", '#include "research/study/lsp.h"'),
        ("research/study/lsp.cc", '#include "spillway/plan/planner.h"'),
        ("python/bindings/module.cc", "#include <spillway/engine.h>"),
        ("spillway/base/bytes.cc", '// #include "spillway/engine.h" would be wrong here'),
    ],
)
def test_allowed(tmp_path: Path, file: str, line: str) -> None:
    result = check(write(tmp_path, {file: line + "\n"}))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("spillway/base/bytes.cc", '#include "spillway/sys/file.h"', "room base may not include"),
        ("spillway/kernels/norm.cc", "#include <spillway/memory/arena.h>", "room kernels may not include"),
        ("spillway/plan/planner.cc", '#  include "spillway/state/safetensors.h"', "room plan may not include"),
        ("spillway/plan/planner.h", '#include "spillway/execute/lane.h"', "room plan may not include"),
        ("spillway/execute/lane.cc", '#include "spillway/engine.h"', "stands above all rooms"),
        ("spillway/plan/planner.cc", '#include "research/study/lsp.h"', "nothing outside research/"),
        ("tests/plan/planner_test.cc", '#include "research/study/lsp.h"', "nothing outside research/"),
        ("bench/replay.cc", '#include "research/spillway_plan.h"', "nothing outside research/"),
        ("spillway/attic/old.h", '#include "spillway/base/bytes.h"', "attic is no room"),
        ("spillway/state/layout.cc", '#include "../plan/planner.h"', "relative to itself"),
        ("tests/base/bytes_test.cc", '#include "spillway/base/bytes.cc"', "source file"),
        ("python/bindings/module.cc", '#include "spillway/state/layout.cc"', "source file"),
    ],
)
def test_refused(tmp_path: Path, file: str, line: str, says: str) -> None:
    result = check(write(tmp_path, {file: f"#pragma once\n{line}\n"}))
    assert result.returncode == 1
    assert result.stdout.startswith(file + ":")
    assert says in result.stdout
    if "attic" not in file:
        assert f"{file}:2:" in result.stdout


def test_a_header_beside_the_file_is_named_from_the_root(tmp_path: Path) -> None:
    result = check(write(tmp_path, {"spillway/base/bytes.h": "", "spillway/base/bytes.cc": '#include "bytes.h"\n'}))
    assert result.returncode == 1
    assert "write the path from the root" in result.stdout


def test_every_violation_is_printed(tmp_path: Path) -> None:
    lines = '#include "spillway/plan/a.h"\n#include "spillway/state/b.h"\n'
    result = check(write(tmp_path, {"spillway/base/bytes.cc": lines, "spillway/sys/file.cc": lines}))
    assert [line.split(": ")[0] for line in result.stdout.splitlines()[:-1]] == [
        "spillway/base/bytes.cc:1",
        "spillway/base/bytes.cc:2",
        "spillway/sys/file.cc:1",
        "spillway/sys/file.cc:2",
    ]


def test_a_folder_without_the_engine_is_an_error(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 2
