"""Training over three memory nodes, in the virtual machine that has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "numa"))

import machine  # noqa: E402
from machine_errors import CannotStart  # noqa: E402

LIMIT = 400  # seconds; QEMU translates every instruction of PyTorch's


def in_the_machine(*command: str) -> machine.Result:
    try:
        return machine.boot(list(command), timeout=LIMIT)
    except CannotStart as error:
        pytest.skip(f"the virtual machine with three memory nodes cannot be started here: {error}")


def test_the_engine_on_three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of a toy lies where its plan says, and what a node cannot hold is refused."""
    monkeypatch.chdir(ROOT)
    programs = sorted(ROOT.glob("build/*/tests/contract_test"), key=lambda path: path.stat().st_mtime)
    if not programs:
        pytest.skip("the C++ tests are not built: cmake --preset dev && cmake --build --preset dev")
    found = in_the_machine(str(programs[-1]), "--gtest_filter=Nodes.Of*:Nodes.That*", "--gtest_brief=1")
    assert found.status == 0, found.output
    assert "SKIPPED" not in found.output, found.output


def test_a_fine_tune_over_three_nodes_has_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = in_the_machine(sys.executable, "tests/numa/train_nodes.py")
    assert found.status == 0, found.output
    assert "three nodes, the same bits" in found.output
