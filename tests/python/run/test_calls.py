"""Every system call of a command on the run's files fails, one after the other, or is the command's last: it ends well
or with one clear line, and the run goes on to the reference's bits.

The engine's own calls are failed one by one in tests/calls, which is cheaper; here it is the command's, of which each
kind of call on each kind of file has a representative.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import real_runs
import seeds
import warm
from folders import REPOSITORY
from real_runs import on_path, result, words

LIMIT = 600  # seconds that a process of its own may take at most, on a machine that others use, too
LIBRARY = REPOSITORY / "build" / "wheel" / "tests" / "fail_call.so"
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "EMFILE": errno.EMFILE, "kill": -1}
FLUSHES = ("fsync", "fdatasync")
KEYS = ["--max_steps", "4", "--save_steps", "2", "--save_total_limit", "1", "--resume_from_checkpoint", "auto"]
COMMAND = """
import ctypes, os, sys
library, under, number, error, report, log = sys.argv[1:7]
ctypes.CDLL(library).spillway_fail_call(
    under.encode(), ctypes.c_ulonglong(int(number)), int(error), 0, 0, 300, report.encode(), int(log)
)
"""
HERE = COMMAND + "from spillway.cli import main\nsys.exit(main(sys.argv[7:]))\n"
INSTALLED = COMMAND + f"os.execv({str(Path(sys.executable).with_name('spillway'))!r}, ['spillway', *sys.argv[7:]])\n"
HALF_A_ROW = """
import sys
from spillway.output import records
add, rows = records.Metrics.add, []

class Full:
    def __init__(self, stream):
        self._stream, self.fileno, self.truncate = stream, stream.fileno, stream.truncate
    def write(self, line):
        self._stream.write(line[: len(line) // 2])
        raise OSError(28, "No space left on device")

def counted(metrics, row):
    stream = metrics._stream
    rows.append(row)
    if len(rows) == 2:
        metrics._stream = Full(stream)
    try:
        add(metrics, row)
    finally:
        metrics._stream = stream

records.Metrics.add = counted
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""  # the file system is full in the middle of the second row

pytestmark = pytest.mark.needs("tools", LIBRARY.exists(), f"{LIBRARY} is not there; make test-cpp builds it")


@dataclass(frozen=True)
class Ended:
    code: int
    said: str  # to standard error
    told: str  # to standard output
    report: list[str]

    @property
    def at(self) -> str:
        """The call that failed and its file; empty: there were fewer."""
        return next((line.removeprefix("at ") for line in self.report if line.startswith("at ")), "")

    @property
    def calls(self) -> list[tuple[str, str]]:
        rows = (line.split(" ", 2) for line in self.report if line.startswith("call "))
        return [(row[1], row[2]) for row in rows]


@dataclass(frozen=True)
class Scene:
    """A directory with a run's files, and a command on them."""

    place: Path
    given: Path

    @property
    def out(self) -> Path:
        return self.place / "run"

    def train(self, *more: str) -> list[str]:
        self.place.mkdir(exist_ok=True)
        return words(self.given, self.out, *KEYS, *on_path(self.place / "disk"), *more)

    def disturbed(self, command: list[str], number: int = 0, error: int = 0, installed: bool = False) -> Ended:
        report = self.place.with_name(f"{self.place.name}.report")
        script = INSTALLED if installed else HERE
        log = int(number == 0)
        process = real_runs.apart(
            *("-c", script, LIBRARY, self.place, number, error, report, log, *command),
            cold=installed,
            forked=not installed,
        )
        told, said = process.communicate(timeout=LIMIT)
        return Ended(process.returncode, said, told, report.read_text().splitlines())

    def quietly(self, command: list[str]) -> Ended:
        process = real_runs.apart("-m", "spillway", *command, forked=True)
        told, said = process.communicate(timeout=LIMIT)
        return Ended(process.returncode, said, told, [])


def kind(call: tuple[str, str], place: Path) -> str:
    """Calls of one kind differ in numbers and drawn names."""
    name, path = call
    relative = path.removeprefix(str(place))
    return f"{name} {re.sub(r'[0-9]+|(?<=-)[0-9a-z_]{8}', 'N', relative)}"


def representatives(calls: list[tuple[str, str]], place: Path, test: str) -> list[int]:
    """Of each kind one, at random."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, call in enumerate(calls, 1):
        kinds[kind(call, place)].append(number)
    random = seeds.instants(test)
    return [random.choice(numbers) for numbers in kinds.values()]


def expect_clear(ended: Ended, error: str) -> None:
    """It ended well, or said in one line why not."""
    if error == "kill" and ended.at:
        assert ended.code == 137
        return
    assert ended.code in (0, 1, 2, 3), ended.said
    assert "Traceback" not in ended.said, ended.said
    assert "terminate called" not in ended.said, ended.said
    lines = [line for line in ended.said.splitlines() if line.startswith("spillway: ")]
    assert ended.code == 0 or len(lines) == 1, ended.said
    if ended.at.startswith(FLUSHES) and error in ("EIO", "ENOSPC"):
        spoken_of = os.strerror(ERRORS[error]) in ended.told + ended.said  # what no run depends on is told in a note
        assert ended.code != 0 or spoken_of, f"{ended.at} failed, and the command ended well"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def undisturbed(given: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, Ended, Any]:
    scene = Scene(tmp_path_factory.mktemp("calls-whole") / "stage", given)
    ended = scene.disturbed(scene.train())
    assert ended.code == 0, ended.said
    return scene, ended, result(scene.out)


def expect_whole(scene: Scene, ended: Ended, wanted: Any) -> None:
    """What it left goes on to the bits of the undisturbed run, and is those where it said that all is well."""
    if ended.code != 0:
        again = scene.quietly(scene.train())
        assert again.code == 0, again.said
    assert result(scene.out) == wanted


def train(scene: Scene, number: int, error: str, wanted: Any, installed: bool = False) -> None:
    ended = scene.disturbed(scene.train(), number, ERRORS[error], installed)
    try:
        expect_clear(ended, error)
        expect_whole(scene, ended, wanted)
    except Exception as wrong:  # files that are missing, too
        raise AssertionError(f"train, call {number} ({ended.at}) is {error}: {ended.code}: {ended.said}") from wrong
    finally:
        shutil.rmtree(scene.place)


def cases(undisturbed: tuple[Scene, Ended, Any], test: str) -> Iterator[tuple[int, str]]:
    scene, ended, _ = undisturbed
    for number in representatives(ended.calls, scene.place, test):
        for error in ERRORS:
            yield number, error


def test_each_kind_of_call_of_training_fails(
    undisturbed: tuple[Scene, Ended, Any], given: Path, tmp_path: Path
) -> None:
    """A few of them, at random; at night in the installed command."""
    chosen = seeds.instants("calls of training").sample([*cases(undisturbed, "training")], 3)
    for number, error in chosen:
        train(Scene(tmp_path / "stage", given), number, error, undisturbed[2], installed=warm.NIGHTLY)


def test_a_row_that_cannot_be_written_is_in_no_other_rows_loss(
    undisturbed: tuple[Scene, Ended, Any], given: Path, tmp_path: Path
) -> None:
    """The step that it is of is made again, with its row."""
    scene = Scene(tmp_path / "stage", given)
    process = real_runs.apart("-c", HALF_A_ROW, *scene.train(), forked=True)
    told, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and f"{scene.out}/metrics.jsonl: No space left on device" in said, said
    assert [row["step"] for row in real_runs.metrics(scene.out)] == [1]
    assert (scene.out / "metrics.jsonl").read_bytes().endswith(b"\n")
    expect_whole(scene, Ended(process.returncode, said, told, []), undisturbed[2])


@pytest.mark.nightly
def test_every_kind_of_call_of_training_fails(
    undisturbed: tuple[Scene, Ended, Any], given: Path, tmp_path: Path
) -> None:
    wrong = []
    for number, error in cases(undisturbed, "training"):
        try:
            train(Scene(tmp_path / "stage", given), number, error, undisturbed[2])
        except AssertionError as failure:
            wrong.append(f"{failure}\n  {failure.__cause__}")
    assert not wrong, "\n".join(wrong)
