"""Experts in memory that change within a run: fewer bytes, and the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from spillway.cli import main
from spillway.data.order import Order
from spillway.run import engine_spec
from test_expert_loading import ON_DEMAND, SHORT, read_bytes, write_inputs
from test_quantised import adapters

STEPS, SEED = 48, 3
WORDS = [*SHORT, "--load_in_4bit", *ON_DEMAND, "--max_steps", str(STEPS), "--data_seed", str(SEED)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of one kind for the first half of the steps, and of another kind for the second half."""
    directory = write_inputs(tmp_path_factory.mktemp("hot"))
    rows = [""] * STEPS
    for step, row in enumerate(Order(STEPS, 1, 1, SEED).permutation(0)):
        rows[row] = " ".join(["the" if step < STEPS // 2 else "of"] * 12)
    tiny.jsonl(directory / "train.jsonl", [{"text": row} for row in rows])
    return directory


def place(directory: Path) -> list[str]:
    return [*real_runs.storage_in(directory), "--placement", "weight=40%"]


def read_met(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "summary.json").read_text())["experts_met"])


def test_experts_that_take_the_places_of_others_are_read_less(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_runs.here(given, tmp_path / "moving", *WORDS, *place(tmp_path / "moving-path")) == 0
    words = " ".join("".join(capsys.readouterr()).split())
    make = engine_spec.engine_settings

    def keep_still(*positional: Any, **named: Any) -> Any:
        settings = make(*positional, **named)
        settings.piece_period = 0
        return settings

    monkeypatch.setattr(engine_spec, "engine_settings", keep_still)
    assert real_runs.here(given, tmp_path / "still", *WORDS, *place(tmp_path / "still-path")) == 0
    assert adapters(tmp_path / "moving") == adapters(tmp_path / "still")
    assert real_runs.metrics(tmp_path / "moving") == real_runs.metrics(tmp_path / "still")

    moving, still = read_met(tmp_path / "moving"), read_met(tmp_path / "still")
    assert still["swaps"] == 0 and still["resident"] == still["resident_unswapped"]
    assert moving["swaps"] > 0 and moving["resident"] > moving["resident_unswapped"] == still["resident"]
    assert read_bytes(tmp_path / "moving") < read_bytes(tmp_path / "still")

    plan = json.loads((tmp_path / "moving" / "plan.json").read_text())
    assert plan["experts_met"]["period"] == 16
    assert 0 < plan["pieces"]["in_memory"] < plan["pieces"]["pieces"] == 2 * 2 * 16
    assert f"Experts: {plan['pieces']['in_memory']} of 64 matrices stay in memory; every 16 steps" in words
    assert f"without the {moving['swaps']} swaps of places" in words


@pytest.mark.parametrize("step", [18, 40])  # experts are chosen before the 17th and the 33rd
def test_killed_after_a_swap_and_resumed_they_end_as_in_memory(given: Path, tmp_path: Path, step: int) -> None:
    assert real_runs.here(given, tmp_path / "whole", *WORDS) == 0
    words = [*WORDS, *place(tmp_path / "path"), "--save_steps", "20", "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("step", real_runs.words(given, tmp_path / "out", *words), calls=step)
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert adapters(tmp_path / "out") == adapters(tmp_path / "whole")
