"""The check of comments and names: each rule on sources that keep and break it, and ceilings that only fall."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_names
from folders import REPOSITORY


def make_tree(place: Path, files: dict[str, str], ceilings: str = "") -> Path:
    for name, text in {"spillway/base/empty.h": "", **files, check_names.CHECK.file: ceilings}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "check_names.py", tree]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("/// Of a block all chunks.", ["opener"]),
        ("/// All chunks of a block.\n/// Of those the first.", []),
        ("int bytes = 0;  ///< What it takes.", ["opener"]),
        ("int bytes = 0;  // Within a page.", []),
        ("const auto found = search();", ["found"]),
        ("const auto& found : plans", ["found"]),
        ("if (found == end) return;", []),
        ("  [[nodiscard]] Bytes told() const;", ["participle"]),
        ("std::string known_run(const Path& path);", ["participle"]),
        ("std::string name_run(const Path& path);", []),
        ("  return found(it);", []),
    ],
)
def test_header_breaks_these_rules(line: str, rules: list[str]) -> None:
    assert [it.rule for it in check_names.find_in_cpp("spillway/plan/a.h", line)] == rules


def test_functions_are_named_in_headers_alone() -> None:
    assert not list(check_names.find_in_cpp("spillway/plan/a.cc", "Bytes told() {"))


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('def told(run):\n    """What it says."""\n', ["opener", "participle"]),
        ('def tell(run):\n    """The words."""\n', []),
        ("found = 1\n", ["found"]),
        ("for found in runs:\n    pass\n", ["found"]),
        ("print(found)\n", []),
        ("size = 1  # of what\nrate = 2  # Of what\n", ["opener"]),
        ('"""Where bytes lie."""\n', ["opener"]),
        ("def _as_parted(x): ...\n", ["participle"]),
    ],
)
def test_python_breaks_these_rules(source: str, rules: list[str]) -> None:
    assert sorted(it.rule for it in check_names.find_in_python("python/spillway/a.py", source)) == rules


def test_count_over_the_ceiling_fails_and_lists_the_lines(tmp_path: Path) -> None:
    files = {"spillway/plan/a.h": "/// What it takes.\nint a = 0;\n", "python/spillway/run/b.py": "found = 1\n"}
    tree = make_tree(tmp_path, files, '["spillway/plan"]\nopener = 0\n["python/spillway/run"]\nfound = 1\n')
    done = check(tree)
    assert done.returncode == 1
    assert "spillway/plan/a.h:1: opener: What it takes." in done.stdout
    assert "the ceiling is 0" in done.stdout and "b.py" not in done.stdout


def test_ceilings_fall_and_never_rise(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"spillway/plan/a.h": "// What.\n"}, '["spillway/plan"]\nopener = 3\nfound = 0\n')
    done = check(tree)
    assert done.returncode == 0 and "run scripts/check_names.py --lower" in done.stdout
    check_names.CHECK.lower(tree)
    assert "opener = 1\nfound = 0" in (tree / check_names.CHECK.file).read_text()
    (tree / "spillway/plan/a.h").write_text("// What.\n\n// Of.\n")
    check_names.CHECK.lower(tree)
    assert "opener = 1" in (tree / check_names.CHECK.file).read_text()


def test_this_tree_keeps_its_ceilings() -> None:
    assert not list(check_names.CHECK.violations(REPOSITORY))
