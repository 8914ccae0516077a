"""Processes that a run forks: they hold nothing of its engine, neither while it lives nor when they outlive it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import real_runs
from folders import PYTHONPATH

LIMIT = 1800  # seconds after which a process is taken for one that hangs

# The run's second commit forks a child that does nothing for good, tells its number, and dies as by `kill -9`.
LEAVES_AN_ORPHAN = """
import os, signal, sys
from pathlib import Path
from spillway.run.session import EngineSession

plain, count = EngineSession.commit, 0
def commit(self, state):
    global count
    plain(self, state)
    count += 1
    if count == 3:
        child = os.fork()
        if child == 0:
            os.closerange(0, 3)  # who reads them waits for their end
            signal.pause()
        Path(sys.argv[1]).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
EngineSession.commit = commit

from spillway.cli import main
sys.exit(main(sys.argv[2:]))
"""

# Each row tells what its process has of the engine: volumes and rings that are open, and what it may do with a session.
WITH_WORKERS = """
import json, os, sys
from pathlib import Path
import test_trainer
from spillway.hf import Trainer

given, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
trainer = None

class Rows(list):
    def __getitem__(self, index):
        fork = os.getpid() != parent
        if fork and trainer._streamed is not None:
            open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                          if os.path.islink(f"/proc/self/fd/{fd}")]
            held = [name for name in open_files if "spillway.volume" in name or "io_uring" in name]
            try:
                trainer._streamed.settle()
                told = "nothing"
            except Exception as error:
                told = str(error)
            trainer._streamed.close()
            seen.write(json.dumps({"held": held, "told": told}) + chr(10))
            seen.flush()
        return super().__getitem__(index)

parent = os.getpid()
seen = open(out / "seen.jsonl", "a")
parts = test_trainer.parts(given, out / "run", dataloader_num_workers=workers)
parts["train_dataset"] = Rows(parts["train_dataset"])
trainer = Trainer(model=test_trainer.loaded(given, out / "storage"), **parts)
trainer.train()
trainer.save_model()
trainer.close()
(out / "rows.json").write_text(json.dumps(test_trainer.logged(trainer)))
"""


def apart(script: str, *words: object) -> tuple[int, str]:
    """Exit code, and all that was said."""
    paths = os.pathsep.join([PYTHONPATH, *sys.path])  # the package as this process has it, installed or not
    process = real_runs.apart("-c", script, *map(str, words), env_more={"PYTHONPATH": paths})
    said = "".join(process.communicate(timeout=LIMIT))
    return process.returncode, said


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("fork"))


def test_an_orphan_of_a_killed_run_does_not_stop_its_resume(given: Path, tmp_path: Path) -> None:
    child, out = tmp_path / "child", tmp_path / "out"
    places = real_runs.on_path(tmp_path / "storage")
    words = real_runs.words(given, out, *places, "--max_steps", "4", "--durability", "step")
    code, said = apart(LEAVES_AN_ORPHAN, child, *words)
    assert code == -signal.SIGKILL, said
    orphan = int(child.read_text())
    try:
        os.kill(orphan, 0)  # it is there
        code, said = apart("import sys; from spillway.cli import main; sys.exit(main(sys.argv[1:]))", "resume", out)
        os.kill(orphan, 0)  # and was all the time
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert code == 0, said
    assert [row["step"] for row in real_runs.metrics(out)] == [1, 2, 3, 4]


@pytest.mark.nightly
def test_workers_of_a_data_loader_hold_nothing_of_the_engine(given: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    found: dict[int, Any] = {}
    for workers in (0, 2):
        out = tmp_path / str(workers)
        (out / "storage").mkdir(parents=True)
        code, said = apart(WITH_WORKERS, given, out, workers)
        assert code == 0, said
        found[workers] = json.loads((out / "rows.json").read_text())
    assert found[2] == found[0]
    assert (tmp_path / "2/run/model.safetensors").read_bytes() == (tmp_path / "0/run/model.safetensors").read_bytes()
    seen = [json.loads(line) for line in (tmp_path / "2/seen.jsonl").read_text().splitlines()]
    assert seen, "no row was read while the engine was there"
    for told in seen:
        assert told["held"] == []
        assert "was forked from the one that has the engine" in told["told"]
