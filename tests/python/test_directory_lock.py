"""One run at a time in an output_dir: a second one is refused by name, and a killed one keeps nobody out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import held
import real_runs
import spillway
import warm
from held import STEPS, has_row
from real_runs import metrics, names, words
from spillway.cli import main
from spillway.errors import InputError
from spillway.output import directory_lock
from spillway.output.directory_lock import LOCK, DirectoryLock

SHORT = ["--max_steps", "2", "--placement", "dram"]
DRAM = ["--placement", "dram"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@contextmanager
def alive(given: Path, out: Path, *keys: str) -> Iterator[Any]:
    """A run that has made some steps and does not get on; killed afterwards."""
    process = held.spillway(*words(given, out, *STEPS, *keys))
    try:
        held.wait_for(process, lambda: has_row(out, 3))
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=held.LIMIT)


def ended(process: Any) -> tuple[int, str, str]:
    shown, error = process.communicate(timeout=held.LIMIT)
    return process.returncode, shown, error


@pytest.mark.parametrize("more", [["--overwrite"], [], ["--resume_from_checkpoint", "auto"]])
def test_a_second_run_is_refused_with_the_first_ones_process(given: Path, tmp_path: Path, more: list[str]) -> None:
    out = tmp_path / "out"
    with alive(given, out, *DRAM) as first:
        before = (out / "metrics.jsonl").read_bytes()
        code, _, error = ended(held.spillway(*words(given, out, *SHORT, *more)))
        assert code == 2, error
        holder = f"output_dir: {out} is in use by another run: process {first.pid} on {socket.gethostname()}, since 20"
        assert holder in error and "Traceback" not in error
        assert (out / "metrics.jsonl").read_bytes() == before


def test_of_two_starts_at_one_instant_one_trains(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loading = held.Held(held.library(), tmp_path / "held", "pread", "model.safetensors")
    loading.hold()
    two = [held.spillway(*words(given, out, *SHORT), environment=loading.environment()) for _ in range(2)]
    held.wait_for_any(two)
    loser, winner = sorted(two, key=lambda each: each.poll() is None)
    code, _, error = ended(loser)
    assert code == 2 and f"is in use by another run: process {winner.pid}" in error
    loading.let_go()
    code, _, error = ended(winner)
    assert code == 0, error
    assert [row["step"] for row in metrics(out)] == [1, 2] and not (out / LOCK).exists()


def test_what_a_killed_run_has_left_keeps_nobody_out(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with alive(given, out, *DRAM):
        pass
    assert (out / LOCK).is_file()
    code, _, error = ended(held.spillway(*words(given, out, *SHORT, "--overwrite")))
    assert code == 0 and "waiting" not in error, error
    assert [row["step"] for row in metrics(out)] == [1, 2] and not (out / LOCK).exists()


def test_a_live_run_can_be_looked_at(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with alive(given, out, *DRAM):
        for verb in ("report", "doctor"):
            code, shown, error = ended(held.spillway(verb, str(out)))
            assert code == 0, (verb, shown, error)


def test_a_resume_waits_for_a_run_that_is_ending(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with alive(given, out, *DRAM) as first:
        second = held.spillway(*words(given, out, *SHORT, "--max_steps", "6", "--resume_from_checkpoint", "auto"))
        held.wait_for(second, lambda: held.has_open(second, out / LOCK))
        first.send_signal(signal.SIGTERM)
        first.send_signal(signal.SIGCONT)
        code, shown, error = ended(second)
        assert first.wait(held.LIMIT) == 143
    assert code == 0, error
    assert f"is in use by process {first.pid}" in shown and "going on after step" in shown


def test_sessions_hold_their_directory(given: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "model": str(given / "model"), "profile": str(given / "profile.json"), "output_dir": str(tmp_path / "out"),
        "max_length": 16, "max_steps": 3, "per_device_train_batch_size": 1, "placement": "dram",
    }  # fmt: skip
    with spillway.Session(**keys):
        with pytest.raises(InputError, match=f"in use by another run of this process .{os.getpid()}"):
            spillway.Session(**keys)
        code, _, error = ended(held.spillway(*words(given, tmp_path / "out", *SHORT)))
        assert code == 2 and f"process {os.getpid()} on" in error
    spillway.Session(**keys, overwrite=True).close()


def test_a_refused_start_leaves_no_directory(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    assert main(words(given, out, "--resume_from_checkpoint", "true")) == 2
    assert not (tmp_path / "a").exists()


def test_a_link_in_place_of_the_lock_is_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("somebody's thesis")
    (out / "spillway").mkdir(parents=True)
    (out / LOCK).symlink_to(victim)
    assert main(words(given, out, *SHORT)) == 2
    assert str(out / LOCK) in capsys.readouterr().err and victim.read_text() == "somebody's thesis"


FORKED = """
import os, sys, time
from pathlib import Path
from spillway.output.directory_lock import DirectoryLock
DirectoryLock(Path(sys.argv[1])).take(0)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
os.kill(os.getpid(), 9)
"""


def test_a_child_that_outlives_its_run_keeps_nobody_out(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORKED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.wait(held.LIMIT) == -signal.SIGKILL
    try:
        lock = DirectoryLock(tmp_path)
        lock.take(0)
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_lock_is_taken_again_when_it_was_released(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "out"), DirectoryLock(tmp_path / "out")
    for one, other in ((first, second), (second, first)):
        one.take(0)
        with pytest.raises(InputError, match="in use"):
            other.take(0)
        one.release()
        assert not (tmp_path / "out").exists()


def test_trainers_of_one_process_share_a_lock(tmp_path: Path) -> None:
    first, second = (DirectoryLock(tmp_path, is_shared=True) for _ in range(2))
    first.take(0)
    second.take(0)
    first.release()
    with pytest.raises(InputError, match="in use"):
        DirectoryLock(tmp_path).take(0)
    second.release()
    assert names(tmp_path) == []


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(directory_lock.fcntl, "flock", refuse)
    said: list[str] = []
    lock = DirectoryLock(tmp_path)
    lock.take(0, said.append)
    assert len(said) == 1 and "has no locks" in said[0]
    lock.release()


def test_the_file_says_who_has_the_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.take(0)
    content = json.loads((tmp_path / LOCK).read_text())
    assert content["pid"] == os.getpid() and content["host"] == socket.gethostname() and content["since"][:2] == "20"
    lock.release()


TRAINER = """
import sys, time
from pathlib import Path
import test_trainer_durable as tests
import real_runs
from test_trainer import loaded, parts
from spillway.hf import Trainer
given, out = map(Path, sys.argv[1:])
trainer = Trainer(model=loaded(given), **parts(given, out, max_steps=2))
trainer.train()
Path(out, "done").touch()
time.sleep(600)
"""


def test_a_trainer_holds_its_directory_until_it_is_closed(given: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    out = tmp_path / "out"
    first = warm.python("-c", TRAINER, given, out)
    try:
        held.wait_for(first, (out / "done").exists)
        code, _, error = ended(held.spillway(*words(given, out, *SHORT, "--overwrite")))
        assert code == 2 and f"in use by another run: process {first.pid}" in error
    finally:
        first.kill()
        first.communicate(timeout=held.LIMIT)
