"""What a machine lacks skips a test or fails it, and the end of a run says so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import needs
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


LAST_RUN = """
1/3 Testing: room.Fast
Test time =   0.50 sec
2/3 Testing: room.Slow/0  # GetParam() = 4
Test time =   7.25 sec
3/3 Testing: room.Drive
file.cc:5: Skipped
loop: only root may
Test time =   0.10 sec
file.cc:9: Skipped
nightly: later
SKIPPED: qemu: no kernel
"""


def test_the_end_of_a_run_names_the_slowest_and_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "LastTest.log").write_text(LAST_RUN)
    command = ["make", "-s", "--no-print-directory", "-C", REPOSITORY, "tell-cpp", f"LAST_RUN={tmp_path}/LastTest.log"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() == [
        "ctest: the slowest tests, in seconds:",
        "  7.25 room.Slow/0",
        "  0.50 room.Fast",
        "  0.10 room.Drive",
        "ctest: skipped for what this machine lacks (SPILLWAY_REQUIRE=NAME,... fails them):",
        "      1 loop: only root may",
        "      1 qemu: no kernel",
    ]
