"""Durable steps under transformers' Trainer: killed, failed, gone back, and equal bit by bit to the undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file

import real_runs
import seeds
from breadth import some
from folders import PYTHONPATH
from needs import package
from spillway.errors import InputError
from spillway.hf import Trainer
from spillway.integrations import durable
from spillway.output import directory, volumes
from test_trainer import loaded, parts
from warm import NIGHTLY

package("accelerate", "transformers' Trainer needs accelerate")
LIMIT = 300  # seconds that a process of its own may take at most
KILLS = 3 if NIGHTLY else 2
# 4 steps an epoch: logs, evaluations and saves fall on different steps, some on the last of an epoch
EVENTS = {
    "num_train_epochs": 3, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
    "save_steps": 5, "save_total_limit": 2,
}  # fmt: skip
EPOCHS = {
    "num_train_epochs": 3, "logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch",
    "save_total_limit": 2,
}  # fmt: skip
OF_A_PROCESS = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "step_time")
PLACEMENT = "weight=50%,state=path,grad=path,activation=dram"

SCRIPT = (
    real_runs.dying("update")
    + """
import json
from pathlib import Path
import test_trainer_durable as tests
given, out, storage, events = sys.argv[1:]
trainer = tests.trainer(Path(given), Path(out), Path(storage), json.loads(events))
trainer.train(resume_from_checkpoint="auto")
trainer.save_model()
trainer.close()
"""
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("trainer_durable"))


def trainer(given: Path, out: Path, storage: Path, events: dict[str, Any], **keys: Any) -> Trainer:
    values = {"placement": PLACEMENT, "durability": "step", "dtype": "bfloat16", **keys}
    return Trainer(model=loaded(given, storage, **values), **parts(given, out, data_seed=None, **events))


def history(place: Path) -> list[dict[str, Any]]:
    rows = json.loads((place / "trainer_state.json").read_text())["log_history"]
    return [{key: value for key, value in row.items() if key not in OF_A_PROCESS} for row in rows]


def told(out: Path) -> dict[str, Any]:
    """All that two runs must have alike: models, rows, what transformers keeps."""
    found: dict[str, Any] = {"root": (out / "model.safetensors").read_bytes()}
    for step, place in directory.checkpoints(out):
        state = json.loads((place / "trainer_state.json").read_text())
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name
        found[f"model {step}"] = (place / "model.safetensors").read_bytes()
        found[f"log {step}"] = history(place)
        found[f"state {step}"] = {key: value for key, value in state.items() if key != "log_history"}
        found[f"scheduler {step}"] = (place / "scheduler.pt").read_bytes()
        found[f"random {step}"] = (place / "rng_state.pth").read_bytes()
    return found


UNDISTURBED: dict[str, dict[str, Any]] = {}  # by what was asked for: the same inputs give the same


def undisturbed(given: Path, place: Path, events: dict[str, Any]) -> dict[str, Any]:
    asked = json.dumps(events)
    if asked not in UNDISTURBED:
        UNDISTURBED[asked] = trained_undisturbed(given, place, events)
    return UNDISTURBED[asked]


def trained_undisturbed(given: Path, place: Path, events: dict[str, Any]) -> dict[str, Any]:
    whole = trainer(given, place / "whole", place / "storage_of_whole", events)
    whole.train()
    whole.save_model()
    whole.close()
    return told(place / "whole")


@pytest.mark.parametrize("events", some([EVENTS, EPOCHS], [EVENTS]), ids=["by steps", "by epochs"])
def test_killed_at_random_instants_and_resumed(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: dict[str, Any]
) -> None:
    """Real processes, by a signal that nothing catches; in bf16, with fp32 masters in parts on the path."""
    expected = undisturbed(given, tmp_path, events)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH, prepend=":")
    instants, ends = seeds.instants(f"trainer {events}"), []
    words = ["-c", SCRIPT, str(given), str(tmp_path / "out"), str(tmp_path / "storage"), json.dumps(events)]
    for _ in range(KILLS):
        monkeypatch.setenv("DIES_AFTER", str(instants.uniform(0.005, 0.6)))
        process = real_runs.apart(*words)
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode in (0, -14), (error[-3000:], seeds.said())  # 0: it was done before
        ends.append(process.returncode)
    monkeypatch.delenv("DIES_AFTER")
    process = real_runs.apart(*words)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]
    found = told(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, (name, ends, seeds.said())


class Fails(transformers.TrainerCallback):
    def __init__(self, event: str, step: int) -> None:
        setattr(self, event, lambda args, state, control, **_: self.fail(state.global_step == step))

    def fail(self, now: bool) -> None:
        if now:
            raise RuntimeError("as a test asked")


MOMENTS = [
    (EVENTS, event, step, step - (event == "on_step_end"))
    for event, steps in (("on_step_end", (1, 6)), ("on_log", (3,)), ("on_evaluate", (4, 8)), ("on_save", (5, 10)))
    for step in steps
]
MOMENTS += [(EPOCHS, event, 8, 8) for event in ("on_epoch_end", "on_log", "on_evaluate", "on_save")]


def by_the_way(events: dict[str, Any]) -> str:
    return "steps" if events is EVENTS else "epochs"


@pytest.mark.parametrize(
    ("events", "event", "step", "kept"), some(MOMENTS, [MOMENTS[number] for number in (0, 2, 5, 9)]),
    ids=[f"{by_the_way(events)}-{event}-{step}" for events, event, step, _ in MOMENTS],
)  # fmt: skip
def test_a_failure_anywhere_loses_no_finished_step(
    given: Path, tmp_path: Path, events: dict[str, Any], event: str, step: int, kept: int
) -> None:
    expected = undisturbed(given, tmp_path, events)
    first = trainer(given, tmp_path / "out", tmp_path / "storage", events)
    first.add_callback(Fails(event, step))
    with pytest.raises(RuntimeError, match="as a test asked"):
        first.train()
    first.close()
    second = trainer(given, tmp_path / "out", tmp_path / "storage", events)
    began: list[int] = []
    second.add_callback(At(began))
    second.train(resume_from_checkpoint=True if kept else "auto")
    second.save_model()
    second.close()
    kept -= event == "on_log" and events is EVENTS  # it is logged, then committed
    assert began == [kept]
    found = told(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


ENDS = [
    (events, event)
    for events in (EVENTS, EPOCHS)
    for event in ("keep_newest", "on_evaluate", "on_save", "on_epoch_end")
]


@pytest.mark.parametrize(
    ("events", "event"), some(ENDS, [ENDS[number] for number in (0, 5)]),
    ids=[f"{by_the_way(events)}-{event}" for events, event in ENDS],
)  # fmt: skip
def test_a_run_that_died_at_its_very_end_is_finished_by_the_next(
    given: Path, tmp_path: Path, events: dict[str, Any], event: str
) -> None:
    """Its last checkpoint in place and the older ones not gone yet; its last epoch's evaluation or checkpoint due."""
    expected = undisturbed(given, tmp_path, events)
    first = trainer(given, tmp_path / "out", tmp_path / "storage", events)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="as a test asked"):
        if event == "keep_newest":
            patch.setattr(durable.DurableRun, event, at_the_end(durable.DurableRun.keep_newest))
        else:
            first.add_callback(Fails(event, 12))
        first.train()
    first.close()
    for _ in range(2):  # the second has nothing left to do
        second = trainer(given, tmp_path / "out", tmp_path / "storage", events)
        assert second.train(resume_from_checkpoint=True).global_step == 12
        second.save_model()
        second.close()
        found = told(tmp_path / "out")
        assert found.keys() == expected.keys()
        for what, value in expected.items():
            assert found[what] == value, what


def at_the_end(method: Any) -> Any:
    def fails(run: durable.DurableRun, *words: Any) -> None:
        if run.committed == 12:
            raise RuntimeError("as a test asked")
        method(run, *words)

    return fails


class Stops(transformers.TrainerCallback):
    """As early stopping does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.step


STOPS = [(EVENTS, 6, "on_evaluate"), (EVENTS, 6, "on_epoch_end"), (EPOCHS, 8, "on_evaluate"), (EPOCHS, 8, "on_save")]


@pytest.mark.parametrize(("events", "step", "dies"), some(STOPS, [STOPS[3]]))
def test_a_run_that_a_callback_ended_stays_ended(
    given: Path, tmp_path: Path, events: dict[str, Any], step: int, dies: str
) -> None:
    def stopping(place: Path, *callbacks: transformers.TrainerCallback) -> Trainer:
        ours = trainer(given, place / "out", place / "storage", events)
        for each in (Stops(step), *callbacks):
            ours.add_callback(each)
        return ours

    whole = stopping(make(tmp_path / "whole"))
    assert whole.train().global_step == step
    whole.save_model()
    whole.close()
    place = make(tmp_path / "died")
    first = stopping(place, Fails(dies, step))
    with pytest.raises(RuntimeError, match="as a test asked"):
        first.train()
    first.close()
    second = stopping(place)
    assert second.train(resume_from_checkpoint=True).global_step == step
    second.save_model()
    second.close()
    assert told(place / "out") == told(tmp_path / "whole" / "out")


def test_a_finished_run_is_not_trained_on(given: Path, tmp_path: Path) -> None:
    events = {**EVENTS, "max_steps": 6}  # in the middle of an epoch
    for _ in range(2):
        ours = trainer(given, tmp_path / "out", tmp_path / "storage", events)
        assert ours.train(resume_from_checkpoint="auto").global_step == 6
        ours.close()
    longer = trainer(given, tmp_path / "out", tmp_path / "storage", {**EVENTS, "max_steps": 7})
    assert longer.train(resume_from_checkpoint=True).global_step == 7
    longer.close()


class At(transformers.TrainerCallback):
    def __init__(self, began: list[int]) -> None:
        self.began = began

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began.append(state.global_step)


def make(place: Path) -> Path:
    place.mkdir()
    return place


def test_checkpoints_are_manifests_that_can_be_gone_back_to(given: Path, tmp_path: Path) -> None:
    events = {**EVENTS, "save_steps": 4, "save_total_limit": None}
    expected = trained_undisturbed(given, tmp_path, events)
    for name in ("checkpoint-4", "checkpoint-8", "checkpoint-12"):
        place = tmp_path / "whole" / name
        assert (place / directory.MANIFEST).is_file() and not list(place.glob("spillway/*.safetensors"))
    for step in (8, 4):
        again = trainer(given, tmp_path / "whole", tmp_path / "storage_of_whole", events)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        again.save_model()
        again.close()
        assert told(tmp_path / "whole") == expected


def test_the_best_step_comes_back_and_the_run_can_go_on(given: Path, tmp_path: Path) -> None:
    events = {
        **EVENTS, "save_steps": 2, "save_total_limit": 1, "learning_rate": 0.05, "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss", "greater_is_better": True,
    }  # fmt: skip
    ours = trainer(given, tmp_path / "out", tmp_path / "storage", events)
    ours.train()
    best, last = ours.state.best_global_step, ours.state.global_step
    losses = {row["step"]: row["eval_loss"] for row in ours.state.log_history if "eval_loss" in row}
    assert best < last == 12 and losses[best] == max(losses.values())
    assert ours.state.best_model_checkpoint == str(tmp_path / "out" / f"checkpoint-{best}")
    assert ours.evaluate()["eval_loss"] == losses[best]
    ours.save_model()
    ours.close()
    saved, kept = (load_file(tmp_path / place / "model.safetensors") for place in ("out", f"out/checkpoint-{best}"))
    assert all((saved[name] == kept[name]).all() for name in kept)
    assert [step for step, _ in directory.checkpoints(tmp_path / "out")] == [best]


def test_what_is_refused(given: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make(**more: Any) -> Trainer:
        events = {**EVENTS, "max_steps": 3, "save_steps": 2, **more}
        return trainer(given, tmp_path / "out", tmp_path / "storage", events)

    with pytest.raises(InputError, match="resume_from_checkpoint: .* holds no checkpoint"):
        make().train(resume_from_checkpoint=True)
    first = make()
    first.train()
    with pytest.raises(InputError, match="holds a run already"):
        first.train()
    with pytest.raises(InputError, match="resume_from_checkpoint=True"):
        make().evaluate()
    with pytest.raises(InputError, match="gradient_accumulation_steps: the run was started with 3"):
        make(gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
    with pytest.raises(InputError, match="train_dataset: the run was started with 23 rows"):
        make(train=21).train(resume_from_checkpoint=True)
    with pytest.raises(InputError, match="load_best_model_at_end"):
        make(load_best_model_at_end=True, save_only_model=True)
    with pytest.raises(InputError, match="durability: step needs a place"):
        loaded(given, durability="step")
    going_on = make(max_steps=5)
    going_on.train(resume_from_checkpoint=True)
    assert going_on.state.global_step == 5 and "recovered step 3 from the storage paths" in caplog.text
    going_on.close()
    again = trainer(given, tmp_path / "out", tmp_path / "storage", {**EVENTS, "max_steps": 1}, overwrite=True)
    again.train()
    assert [step for step, _ in directory.checkpoints(tmp_path / "out")] == [1]
    again.close()


def test_a_run_without_manifests_leaves_no_volumes_when_its_model_is_saved(given: Path, tmp_path: Path) -> None:
    ours = trainer(given, tmp_path / "out", tmp_path / "storage", {**EVENTS, "save_strategy": "no"})
    ours.train()
    assert volumes.present(ours.session.config.paths)
    ours.save_model()
    ours.close()
    assert not list((tmp_path / "storage").iterdir())
