"""A failure inside a step, whoever drives the run: one error, no lock, and a run that goes on bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import spillway
import tiny
from needs import package
from spillway._engine import StepUpdate
from spillway.cli import main
from spillway.errors import SpillwayError
from spillway.output.directory_lock import is_held
from spillway.run.leaving import close_after_failure, close_all, close_in_order
from spillway.run.session import EngineSession
from spillway.run.world import OneProcess

STEPS, FAILS_IN = 4, 3
WORDS = "the drive of step 3 is on fire"
KEYS: dict[str, Any] = {
    "placement": "weight=50%,state=path,grad=path,activation=dram", "durability": "step", "dram_budget": "2GiB",
}  # fmt: skip

Drive = Callable[[Path, Path, bool], None]  # trains in the directory, with the model of the first one; resumes


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("leaving"))


def make(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    return place


def keys(given: Path, place: Path, resumes: bool) -> dict[str, Any]:
    storage = make(place / "storage")
    return {
        "model": str(given / "model"), "profile": str(given / "profile.json"), "output_dir": str(place / "out"),
        "storage": f"{storage},capacity=256MiB", "max_length": 64, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "max_steps": STEPS,
        "resume_from_checkpoint": "true" if resumes else None, **KEYS,
    }  # fmt: skip


def train(given: Path, place: Path, resumes: bool) -> None:
    spillway.train({**keys(given, place, resumes), "dataset": str(given / "train.jsonl")})


def loop(given: Path, place: Path, resumes: bool) -> None:
    with spillway.Session(**keys(given, place, resumes)) as session:
        for step in range(session.steps, STEPS):
            ids = torch.randint(5, 60, (2, 64), generator=torch.Generator().manual_seed(step))
            session.step([{"input_ids": ids, "labels": ids}] * 2)
        session.save()


def drive_trainer(trainer: Any, resumes: bool) -> None:
    try:
        trainer.train(resume_from_checkpoint=resumes or None)
        trainer.save_model()
    finally:
        trainer.close()


def load_model(given: Path, place: Path) -> Any:
    from spillway.hf import load

    storage = f"{make(place / 'storage')},capacity=256MiB"
    return load(given / "model", profile=str(given / "profile.json"), storage=storage, dtype="bfloat16", **KEYS)


def arguments(place: Path) -> dict[str, Any]:
    return {
        "output_dir": str(place / "out"), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "max_steps": STEPS, "learning_rate": 1e-3, "report_to": "none", "use_cpu": True, "save_strategy": "no",
        "logging_steps": 1, "disable_tqdm": True,
    }  # fmt: skip


def hf_trainer(given: Path, place: Path, resumes: bool) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from transformers import DataCollatorForLanguageModeling, TrainingArguments

    from spillway.hf import Trainer
    from test_trainer import rows

    collator = DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False)
    made = Trainer(
        model=load_model(given, place), args=TrainingArguments(**arguments(place)), train_dataset=rows(23),
        data_collator=collator,
    )  # fmt: skip
    drive_trainer(made, resumes)


def sft_trainer(given: Path, place: Path, resumes: bool) -> None:
    trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
    datasets = package("datasets", "TRL needs datasets")
    from transformers import AutoTokenizer

    from spillway.hf import SFTTrainer

    made = SFTTrainer(
        model=load_model(given, place), args=trl.SFTConfig(**arguments(place), max_length=64, bf16=False),
        train_dataset=datasets.Dataset.from_list(tiny.text_rows(23)),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )  # fmt: skip
    drive_trainer(made, resumes)


def fail_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    update, calls = EngineSession.update, iter(range(1, STEPS + 1))

    def fail(session: EngineSession, rates: StepUpdate) -> Any:
        if next(calls) == FAILS_IN:
            raise OSError(5, WORDS)
        return update(session, rates)

    monkeypatch.setattr(EngineSession, "update", fail)


def fail_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    close = EngineSession.close

    def fail(session: EngineSession, *_: Any) -> Any:
        raise OSError(5, WORDS)

    def fail_later(session: EngineSession) -> None:
        close(session)
        raise OSError(5, "the second error")

    monkeypatch.setattr(EngineSession, "start", fail)
    monkeypatch.setattr(EngineSession, "close", fail_later)


FRONT_ENDS = pytest.mark.parametrize("drive", [train, loop, hf_trainer, sft_trainer], ids=lambda it: it.__name__)


@FRONT_ENDS
def test_failure_at_the_start_leaves_the_first_error_and_no_lock(
    drive: Drive, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_the_start(monkeypatch)
    with pytest.raises(OSError, match=WORDS):
        drive(given, tmp_path, False)
    assert is_held(tmp_path / "out") is False


@FRONT_ENDS
def test_failure_in_a_step_leaves_one_error_no_lock_and_a_run_that_resumes(
    drive: Drive, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = make(tmp_path / "whole"), make(tmp_path / "cut")
    drive(given, whole, False)
    with monkeypatch.context() as failing:
        fail_in_a_step(failing)
        with pytest.raises(OSError, match=WORDS) as raised:
            drive(given, cut, False)
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert is_held(cut / "out") is False
    drive(given, cut, True)
    assert (cut / "out/model.safetensors").read_bytes() == (whole / "out/model.safetensors").read_bytes()
    assert is_held(cut / "out") is False


class Told(OneProcess):
    """A world that writes down what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def announce(self) -> None:
        self.events.append("announced")


def test_failure_is_announced_described_and_only_then_the_run_closes() -> None:
    world = Told()

    def close() -> None:
        world.events.append("closed")
        raise OSError("the second error")

    def describe(error: BaseException) -> str:
        world.events.append(f"described {error}")
        return "Its state stays where it was"

    with pytest.raises(SpillwayError, match=r"^the first error\. Its state stays where it was$") as raised:
        with close_after_failure(world, close, close, describe_state=describe):
            raise ValueError("the first error")
    assert isinstance(raised.value.__cause__, ValueError)
    assert world.events == ["announced", "described the first error", "closed", "closed"]


def test_failure_without_words_is_raised_as_it_is_and_told_once() -> None:
    world = Told()
    with pytest.raises(KeyboardInterrupt), close_after_failure(world, is_announced=lambda: True):
        raise KeyboardInterrupt
    with close_after_failure(world, lambda: world.events.append("closed")):
        pass
    assert not world.events


@pytest.mark.parametrize("second", [OSError(5, "the second error"), KeyboardInterrupt()], ids=["error", "signal"])
def test_a_run_closes_whatever_its_description_raises(second: BaseException) -> None:
    world = Told()

    def describe(error: BaseException) -> str:
        raise second

    told = ValueError if isinstance(second, Exception) else KeyboardInterrupt
    with pytest.raises(told):
        with close_after_failure(world, lambda: world.events.append("closed"), describe_state=describe):
            raise ValueError("the first error")
    assert world.events == ["announced", "closed"]


def test_a_signal_in_a_close_keeps_none_from_its_turn() -> None:
    turns: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        close_all(interrupt, lambda: turns.append(1))
    assert turns == [1]


def test_a_close_that_fails_keeps_none_from_its_turn() -> None:
    turns: list[int] = []

    def fail(number: int) -> None:
        turns.append(number)
        raise OSError(number, "it fails")

    with pytest.raises(OSError, match="it fails") as raised:
        close_in_order(lambda: fail(1), lambda: turns.append(2), lambda: fail(3))
    assert raised.value.errno == 1 and turns == [1, 2, 3]
    close_all(lambda: fail(4), lambda: turns.append(5))
    assert turns[3:] == [4, 5]


# ---- runs that keep no record


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def test_trainer_without_durable_steps_leaves_only_what_it_saves(given: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from test_trainer import streamed

    out, storage = tmp_path / "out", tmp_path / "storage"
    trainer = streamed(given, out, storage, max_steps=2, save_strategy="steps", save_steps=2, num_train_epochs=1)
    before = trainer.evaluate()["eval_loss"]
    assert names(storage) and not names(out)
    for _ in range(2):
        trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    trainer.close()
    assert names(out) == {"checkpoint-2"} and not names(storage)
    resumed = streamed(given, out, storage, max_steps=4, save_strategy="no")
    assert resumed.train(resume_from_checkpoint=True).global_step == 4
    resumed.close()
    assert names(out) == {"checkpoint-2"} and not names(storage)


def test_failed_save_of_a_trainer_without_durable_steps_leaves_a_state_that_export_writes(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from test_trainer import streamed

    out, saved, exported = tmp_path / "out", tmp_path / "saved", tmp_path / "exported"
    trainer = streamed(given, out, tmp_path / "storage", max_steps=2)
    trainer.train()
    trainer.save_model(str(saved))
    with monkeypatch.context() as failing:
        failing.setattr(EngineSession, "save_model", refuse_a_save)
        with pytest.raises(OSError, match=WORDS):
            trainer.save_model()
    trainer.close()
    assert f"spillway export --output_dir {out} --to DIR" in caplog.text
    assert main(["export", "--output_dir", str(out), "--to", str(exported)]) == 0
    assert (exported / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


def refuse_a_save(session: EngineSession, place: Path) -> None:
    raise OSError(28, WORDS)


def test_session_without_output_dir_leaves_nothing(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make(tmp_path / "here"))
    values = {**keys(given, tmp_path, False), "output_dir": None, "durability": None}
    with spillway.Session(**values) as session:
        ids = torch.randint(5, 60, (2, 64), generator=torch.Generator().manual_seed(1))
        session.step([{"input_ids": ids, "labels": ids}])
        assert names(tmp_path / "storage")
    assert not names(tmp_path / "here") and not names(tmp_path / "storage")
