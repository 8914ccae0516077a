"""The command line in this process with the fake session behind it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import spillway.output.checkpoints
import spillway.output.identity
import spillway.run.run
import tiny
from fake_session import FakeSession
from spillway.cli import main

Run = Callable[..., int]
HANDLERS = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def inputs(path: Path) -> Path:
    tiny.model_directory(path / "model")
    tiny.jsonl(path / "train.jsonl", tiny.text_rows(23))
    tiny.jsonl(path / "held_out.jsonl", tiny.text_rows(7))
    return path


@contextmanager
def runs(given: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """main() with the fake session and small defaults: 6 steps an epoch, 12 steps."""
    module = ModuleType("spillway.run.session")
    module.EngineSession = FakeSession  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spillway.run.session", module)
    monkeypatch.setattr(spillway.run.run, "plot_apart", lambda *_: "")
    for user in (spillway.output.checkpoints, spillway.output.identity):
        monkeypatch.setattr(user, "flush", lambda _: None)  # seconds on a busy disk: test_flushes has the real one
    FakeSession.opened.clear()

    def call(*words: str, verb: str = "train", fake_signal: str = "", fake_fail: str = "", at: Path = out) -> int:
        monkeypatch.setenv("FAKE_SIGNAL", fake_signal)
        monkeypatch.setenv("FAKE_FAIL", fake_fail)
        if verb == "resume":
            return main(["resume", str(at), *words])
        defaults = ["--model", str(given / "model"), "--dataset", str(given / "train.jsonl")]
        defaults += ["--output_dir", str(at), "--max_length", "64", "--num_train_epochs", "2"]
        defaults += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"]
        return main([verb, *defaults, *words])

    yield call
    assert all(session.closed for session in FakeSession.opened)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == HANDLERS
