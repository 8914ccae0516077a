"""report_to: TensorBoard through transformers' callback, as an event file tells it back; names that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fake_runs
from fake_runs import Run, runs
from needs import package
from spillway.config import resolve
from spillway.errors import InputError
from spillway.run import trackers


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with runs(inputs, out, monkeypatch) as call:
        yield call


class Notes:
    """A tracker that writes down what it is told."""

    seen: list[tuple[str, int, dict[str, float]]]

    def __init__(self) -> None:
        self.seen = []

    def on_train_begin(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        assert arguments.to_dict()["learning_rate"] == 2e-5 and arguments.to_dict()["max_length"] == 64
        self.seen.append(("begin", state.global_step, {"max_steps": state.max_steps}))

    def on_log(self, arguments: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.seen.append(("log", state.global_step, logs))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seen.append(("end", 0, {}))


def test_a_tracker_sees_every_row(run: Run, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("accelerate", "TrainingArguments needs accelerate")
    notes = Notes()
    monkeypatch.setattr(trackers, "make_tracker", lambda name: notes)
    assert run("--report_to", "wandb", "--eval_dataset", str(inputs / "held_out.jsonl")) == 0
    assert [what for what, _, _ in notes.seen] == ["begin", *["log"] * 14, "end"]
    assert notes.seen[0][2] == {"max_steps": 12}
    logs = [(step, logs) for what, step, logs in notes.seen if what == "log"]
    assert [step for step, logs in logs if "loss" in logs] == list(range(1, 13))
    assert [step for step, logs in logs if "eval_loss" in logs] == [6, 12]
    row = logs[0][1]
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["step_seconds"])
    assert row["path_0_read_bytes"] >= 0 and all(isinstance(value, int | float) for value in row.values())


def test_tensorboard_writes_what_was_logged(run: Run, out: Path) -> None:
    package("accelerate", "TrainingArguments needs accelerate")
    reading = "tensorboard.backend.event_processing.event_accumulator"
    EventAccumulator = package(reading, "TensorBoard is not installed: its event files stay untried").EventAccumulator
    assert run("--report_to", "tensorboard") == 0
    (events,) = (out / "runs").rglob("events.out.*")
    found = EventAccumulator(str(events.parent)).Reload()
    losses = [(event.step, event.value) for event in found.Scalars("train/loss")]
    import json

    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert losses == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in rows]


def test_which_are_named() -> None:
    assert resolve({}, {}).report_to == []
    assert resolve({"report_to": "none"}, {}).report_to == []
    assert resolve({"report_to": ["wandb", "tensorboard"]}, {}).report_to == ["wandb", "tensorboard"]
    assert resolve({}, {"report_to": ["wandb", "all"]}).report_to == ["all"]
    for bad in ("wand", ["none", "wandb"]):
        with pytest.raises(InputError, match="report_to"):
            resolve({"report_to": bad}, {})


def test_one_that_is_not_installed_is_refused_before_anything_starts(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package("accelerate", "TrainingArguments needs accelerate")
    assert run("--report_to", "comet_ml") == 2
    assert "report_to: comet_ml" in capsys.readouterr().err
    assert not out.exists()
