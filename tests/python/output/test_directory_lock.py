"""An output_dir has one run at a time. A second run is refused; the lock of a killed run blocks nobody."""

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
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@contextmanager
def pause_run(inputs: Path, out: Path, *keys: str) -> Iterator[Any]:
    """A run that is stopped after some steps, and killed at the end of the block."""
    process = held.spillway(*words(inputs, out, *STEPS, *keys))
    try:
        held.wait_for(process, lambda: has_row(out, 3))
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=held.LIMIT)


def wait_for_end(process: Any) -> tuple[int, str, str]:
    output, error = process.communicate(timeout=held.LIMIT)
    return process.returncode, output, error


@pytest.mark.parametrize("more", [["--overwrite"], [], ["--resume_from_checkpoint", "auto"]])
def test_second_run_is_refused_with_the_first_ones_process(inputs: Path, tmp_path: Path, more: list[str]) -> None:
    out = tmp_path / "out"
    with pause_run(inputs, out, *DRAM) as first:
        before = (out / "metrics.jsonl").read_bytes()
        code, _, error = wait_for_end(held.spillway(*words(inputs, out, *SHORT, *more)))
        assert code == 2, error
        holder = f"output_dir: {out} is in use by another run: process {first.pid} on {socket.gethostname()}, since 20"
        assert holder in error and "Traceback" not in error
        assert (out / "metrics.jsonl").read_bytes() == before


def test_one_of_two_simultaneous_starts_trains(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loading = held.Held(held.library(), tmp_path / "held", "pread", "model.safetensors")
    loading.hold()
    two = [held.spillway(*words(inputs, out, *SHORT), environment=loading.environment()) for _ in range(2)]
    held.wait_for_any(two)
    loser, winner = sorted(two, key=lambda each: each.poll() is None)
    code, _, error = wait_for_end(loser)
    assert code == 2 and f"is in use by another run: process {winner.pid}" in error
    loading.let_go()
    code, _, error = wait_for_end(winner)
    assert code == 0, error
    assert [row["step"] for row in metrics(out)] == [1, 2] and not (out / LOCK).exists()


def test_lock_of_a_killed_run_blocks_nobody(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pause_run(inputs, out, *DRAM):
        pass
    assert (out / LOCK).is_file()
    code, _, error = wait_for_end(held.spillway(*words(inputs, out, *SHORT, "--overwrite")))
    assert code == 0 and "waiting" not in error, error
    assert [row["step"] for row in metrics(out)] == [1, 2] and not (out / LOCK).exists()


def test_report_and_doctor_read_a_live_run(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pause_run(inputs, out, *DRAM):
        for verb in ("report", "doctor"):
            code, output, error = wait_for_end(held.spillway(verb, str(out)))
            assert code == 0, (verb, output, error)


def test_resume_waits_for_a_run_that_is_ending(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pause_run(inputs, out, *DRAM) as first:
        second = held.spillway(*words(inputs, out, *SHORT, "--max_steps", "6", "--resume_from_checkpoint", "auto"))
        held.wait_for(second, lambda: held.has_open(second, out / LOCK))
        first.send_signal(signal.SIGTERM)
        first.send_signal(signal.SIGCONT)
        code, output, error = wait_for_end(second)
        assert first.wait(held.LIMIT) == 143
    assert code == 0, error
    assert f"is in use by process {first.pid}" in output and "going on after step" in output


def test_sessions_hold_their_directory(inputs: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "model": str(inputs / "model"), "profile": str(inputs / "profile.json"), "output_dir": str(tmp_path / "out"),
        "max_length": 16, "max_steps": 3, "per_device_train_batch_size": 1, "placement": "dram",
    }  # fmt: skip
    with spillway.Session(**keys):
        with pytest.raises(InputError, match=f"in use by another run of this process .{os.getpid()}"):
            spillway.Session(**keys)
        code, _, error = wait_for_end(held.spillway(*words(inputs, tmp_path / "out", *SHORT)))
        assert code == 2 and f"process {os.getpid()} on" in error
    spillway.Session(**keys, overwrite=True).close()


def test_refused_start_leaves_no_directory(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    assert main(words(inputs, out, "--resume_from_checkpoint", "true")) == 2
    assert not (tmp_path / "a").exists()


def test_link_in_place_of_the_lock_is_refused(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("somebody's thesis")
    (out / "spillway").mkdir(parents=True)
    (out / LOCK).symlink_to(victim)
    assert main(words(inputs, out, *SHORT)) == 2
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


def test_child_that_outlives_its_run_blocks_nobody(tmp_path: Path) -> None:
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


def test_lock_can_be_taken_after_its_release(tmp_path: Path) -> None:
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


def test_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(directory_lock.fcntl, "flock", refuse)
    notices: list[str] = []
    lock = DirectoryLock(tmp_path)
    lock.take(0, notices.append)
    assert len(notices) == 1 and "has no locks" in notices[0]
    lock.release()


def test_lock_file_names_its_holder(tmp_path: Path) -> None:
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


def test_trainer_holds_its_directory_until_it_is_closed(inputs: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    out = tmp_path / "out"
    first = warm.python("-c", TRAINER, inputs, out)
    try:
        held.wait_for(first, (out / "done").exists)
        code, _, error = wait_for_end(held.spillway(*words(inputs, out, *SHORT, "--overwrite")))
        assert code == 2 and f"in use by another run: process {first.pid}" in error
    finally:
        first.kill()
        first.communicate(timeout=held.LIMIT)
