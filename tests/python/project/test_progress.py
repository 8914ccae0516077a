"""What `make install` shows of a build."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

import progress

NINJA = [f"  [{step}/25] Building CXX object spillway/a/file{step}.cc.o\n" for step in range(1, 26)]


def test_a_file_gets_a_line_for_each_tenth() -> None:
    screen, log = io.StringIO(), io.StringIO()
    lines = progress.follow(["Collecting x\n", *NINJA], progress.Progress(screen, None), log)
    shown = screen.getvalue().splitlines()
    assert [line.split()[0] for line in shown] == "12 20 32 40 52 60 72 80 92 100".split()
    assert log.getvalue() == "".join(lines) == "Collecting x\n" + "".join(NINJA)


def test_a_terminal_has_one_line_that_changes() -> None:
    screen = io.StringIO()
    progress.follow(NINJA, progress.Progress(screen, 40), io.StringIO())
    parts = screen.getvalue().split("\r")
    assert parts[0] == ""
    assert parts[1].startswith("    4 %, 1 of 25 steps") and "file1.cc" in parts[1]
    assert all(len(part.removesuffix("\n").removesuffix("\x1b[K")) < 40 for part in parts)
    assert screen.getvalue().endswith("\n")


def test_nothing_built_shows_nothing() -> None:
    screen = io.StringIO()
    progress.follow(["ninja: no work to do.\n"], progress.Progress(screen, 40), io.StringIO())
    assert screen.getvalue() == ""


def test_a_failure_begins_where_the_first_step_failed() -> None:
    lines = [*NINJA, "  FAILED: a.o\n", "  a.cc:1: error: no\n", "FAILED: b.o\n"]
    assert progress.failure(lines)[0] == "  FAILED: a.o\n"
    assert progress.failure(["one\n"] * 100) == ["one\n"] * progress.SHOWN_OF_A_FAILURE


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_command_s(tmp_path: Path, code: int) -> None:
    log = tmp_path / "build" / "install.log"
    script = f"import sys; print('[1/1] Building a.o'); print('why', file=sys.stderr); sys.exit({code})"
    words = [sys.executable, progress.__file__, str(log), sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code
    assert ("why" in done.stdout) == (code != 0)
    assert "why" in log.read_text()
