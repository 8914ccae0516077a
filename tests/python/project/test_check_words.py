"""The check of words, fed with trees that have and have not those that were given up; `make` runs it over this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from check_words import KEPT, WORDS, pattern
from folders import REPOSITORY


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "check_words.py", tree]
    return subprocess.run(command, capture_output=True, text=True)


def write(tree: Path, file: str, content: str) -> Path:
    (tree / "spillway").mkdir(exist_ok=True)
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(content)
    return tree


def test_what_keeps_a_word_has_it() -> None:
    for path, word in KEPT:
        text = (REPOSITORY / path).read_text()
        assert not word or pattern(word).search(text), f"{path} no longer has {word!r}: take it from the list"


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("spillway/sys/cpu.h", "/// Of its control groups.", "write cgroup instead of 'control group'"),
        ("spillway/sys/cpu.h", "struct ControlGroup;", "write cgroup"),
        ("tests/sys/cpu_test.cc", "auto all = control_groups();", "write cgroup"),
        ("python/spillway/hf.py", '"""Of a data set."""', "write dataset"),
        ("docs/reference/data.md", "Data sets by name", "write dataset"),
        ("spillway/journal/record.h", "std::uint32_t image_every;", "write chunk snapshot"),
        ("README.md", "equal to the last bit", "write bit for bit"),
    ],
)
def test_refused(tmp_path: Path, file: str, line: str, says: str) -> None:
    result = check(write(tmp_path, file, f"\n{line}\n"))
    assert result.returncode == 1
    assert result.stdout.startswith(f"{file}:2:") and says in result.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("spillway/sys/cpu.h", "/// What controls groups of datasets, and screws in borderlands."),
        ("spillway/device/cuda_module.h", "/// Loads an image."),
        ("python/spillway/report/charts.py", "def ticks(): ..."),
        ("samples/tale.md", "A skeleton was buried at the border."),
    ],
)
def test_allowed(tmp_path: Path, file: str, line: str) -> None:
    result = check(write(tmp_path, file, line + "\n"))
    assert result.returncode == 0, result.stdout


def test_each_word_is_found_as_it_is_told() -> None:
    assert all(pattern(word.gone).search(word.gone) and not pattern(word.gone).search(word.write) for word in WORDS)
