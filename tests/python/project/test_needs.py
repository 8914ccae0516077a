"""What a machine lacks skips a test or fails it, and the end of a run says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import needs
from after_tests import report
from folders import REPOSITORY

CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"


def test_what_is_there_is_tried_and_what_is_lacking_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_REQUIRE", "uring,gpu")
    needs.needs("loop", True, "never said")
    with pytest.raises(pytest.skip.Exception, match="^loop: only root may"):
        needs.needs("loop", False, "only root may")
    with pytest.raises(pytest.skip.Exception, match="^trl: it is an extra"):
        needs.package("trl.no_such_module", "it is an extra")


def test_what_is_required_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_REQUIRE", "uring,loop")
    with pytest.raises(pytest.fail.Exception, match="SPILLWAY_REQUIRE asks for loop: only root may"):
        needs.needs("loop", False, "only root may")


def test_a_slip_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_REQUIRE", "uring,lop")
    with pytest.raises(ValueError, match="SPILLWAY_REQUIRE: lop is none of the capabilities"):
        needs.required()


def test_the_capabilities_are_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", CONTRIBUTING.read_text(), re.MULTILINE))
    assert explained == needs.capabilities() and len(explained) > 20


JUNIT = """<testsuites><testsuite>
<testcase classname="room.Fast" name="room.Fast" time="0.5" status="run"><system-out>fine</system-out></testcase>
<testcase classname="room.Slow" name="room.Slow" time="7.25" status="run"/>
<testcase classname="room.Drive" name="room.Drive" time="0.1" status="notrun">
  <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN ] x
file.cc:5: Skipped
loop: only root may
</system-out></testcase>
<testcase classname="tests.python.test_x" name="test_y" time="0"><skipped message="gpu: none here"/></testcase>
<testcase classname="tests.python.test_x" name="test_z" time="0"><skipped message="nightly: later"/></testcase>
</testsuite></testsuites>"""


def test_the_end_of_a_run_names_the_slowest_and_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "ctest.xml").write_text(JUNIT)
    assert report(tmp_path / "ctest.xml") == [
        "ctest: 2 tests in 8 s; the slowest:",
        "      7.2 s  room.Slow",
        "      0.5 s  room.Fast",
        "ctest: 2 skipped for what this machine lacks (SPILLWAY_REQUIRE=NAME,... fails them)",
        "      1  gpu: none here",
        "      1  loop: only root may",
    ]
