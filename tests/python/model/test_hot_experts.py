"""Experts in memory that change within a run: fewer bytes, and the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import spillway
import tiny
from spillway.cli import main
from spillway.data.order import Order
from spillway.run import engine_spec
from test_expert_loading import ON_DEMAND, SHORT, read_bytes, write_inputs
from test_quantised import adapters

STEPS, SEED = 48, 3
WORDS = [*SHORT, "--load_in_4bit", *ON_DEMAND, "--max_steps", str(STEPS), "--data_seed", str(SEED)]
SAVED = 20  # steps between two checkpoints
SWAPPED = 36  # steps of a Session


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


def write_models(out: Path, to: Path) -> dict[str, bytes]:
    """The tensors that `merge` and `export` write of a run, and of its first checkpoint."""
    first = ["--checkpoint", str(out / f"checkpoint-{SAVED}")]
    to.mkdir()
    for verb, name, more in [
        ("merge", "merged", []), ("merge", "merged-first", first),
        ("export", "exported", []), ("export", "exported-first", first),
    ]:  # fmt: skip
        assert main([verb, str(out), "--to", str(to / name), *more]) == 0
    return {str(file.relative_to(to)): file.read_bytes() for file in to.rglob("*.safetensors")}


def test_experts_that_take_the_places_of_others_are_read_less(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saving = [*WORDS, "--save_steps", str(SAVED)]
    assert real_runs.here(given, tmp_path / "moving", *saving, *place(tmp_path / "moving-path")) == 0
    words = " ".join("".join(capsys.readouterr()).split())
    make = engine_spec.engine_settings

    def keep_still(*positional: Any, **named: Any) -> Any:
        settings = make(*positional, **named)
        settings.piece_period = 0
        return settings

    monkeypatch.setattr(engine_spec, "engine_settings", keep_still)
    assert real_runs.here(given, tmp_path / "still", *saving, *place(tmp_path / "still-path")) == 0
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

    models = write_models(tmp_path / "moving", tmp_path / "models")
    assert models == write_models(tmp_path / "still", tmp_path / "still-models")
    assert {file.split("/")[0] for file in models} == {"merged", "merged-first", "exported", "exported-first"}


def test_model_after_swaps_has_the_bytes_of_experts_that_stay(given: Path, tmp_path: Path) -> None:
    """The adapters that a Session saves, and the whole model in memory with the experts that have swapped."""

    def train(name: str, **places: str) -> tuple[dict[str, torch.Tensor], int]:
        values = {"model": given / "model", "profile": given / "profile.json", "max_length": 8, "lora_r": 4,
                  "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "method": "lora",
                  "lora_target_modules": "all-linear", "load_in_4bit": True, "expert_loading": "on_demand",
                  "learning_rate": 1e-3, "max_steps": SWAPPED}  # fmt: skip
        with spillway.Session({key: str(value) for key, value in values.items()}, **places) as session:
            for step in range(SWAPPED):
                ids = torch.full((1, 8), 5 + 2 * step // SWAPPED)
                session.step({"input_ids": ids, "labels": ids})
            session.save(tmp_path / name)
            with session._engine.hold_whole_model() as model:
                tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            return tensors, session._engine.measured()["experts_met"]["swaps"]

    still, none = train("still", placement="dram")
    (tmp_path / "path").mkdir()
    storage = f"{tmp_path / 'path'},capacity=512MiB"
    moving, swaps = train("moving", placement="weight=40%", storage=storage)
    assert swaps > none == 0
    assert adapters(tmp_path / "moving") == adapters(tmp_path / "still")
    assert any("experts" in name for name in still) and still.keys() == moving.keys()
    assert all(torch.equal(moving[name], tensor) for name, tensor in still.items())


@pytest.mark.parametrize("step", [18, 40])  # experts are chosen before the 17th and the 33rd
def test_killed_after_a_swap_and_resumed_they_end_as_in_memory(given: Path, tmp_path: Path, step: int) -> None:
    assert real_runs.here(given, tmp_path / "whole", *WORDS) == 0
    words = [*WORDS, *place(tmp_path / "path"), "--save_steps", "20", "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("step", real_runs.words(given, tmp_path / "out", *words), calls=step)
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert adapters(tmp_path / "out") == adapters(tmp_path / "whole")
