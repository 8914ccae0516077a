"""torchrun starts processes again that are killed, and every run ends as if none had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import real_runs
import seeds
from folders import PYTHONPATH
from spillway.output.records import rows
from test_another_world import children
from test_ranks import KEYS, LAUNCHER, on_paths, one_process
from test_taken_over import on_drives
from test_together import TRAINER, same_files, told, trained

KILLS = int(os.environ.get("SPILLWAY_KILLS", "20"))  # in all runs together
LIMIT = 1800  # seconds until a run has ended that nobody kills any more
STEPS = ("--max_steps", "24", "--save_steps", "5", "--save_total_limit", "1")
WORLD = 2
ONCE = """
import json, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.argv[3] = json.dumps({name: value for name, value in json.loads(sys.argv[3]).items() if name != "dies"})
"""  # the beginning of a script that dies in its first attempt alone


class Launched:
    """torchrun and the processes that it starts."""

    def __init__(self, given: Path, place: Path) -> None:
        self.out = place / "out"
        keys = [*KEYS, *STEPS, *durable_on(place), "--resume_from_checkpoint", "auto"]
        self._command = [*LAUNCHER, str(WORLD), "--max_restarts", "10000", "-m", "spillway"]
        self._command += real_runs.words(given, self.out, *keys)
        self._said = place / "said.log"
        self._agent = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._said.open("ab") as log:
            return subprocess.Popen(self._command, env=environment(), stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")[-4000:]

    def ended(self) -> bool:
        return self._agent.poll() is not None

    def code(self) -> int:
        return self._agent.wait(LIMIT)

    def ranks(self, other_than: set[int]) -> list[int]:
        """Its processes, once all are there and none is of these."""
        began = time.monotonic()
        while not self.ended() and time.monotonic() - began < LIMIT:
            found = children(self._agent.pid)
            if len(found) == WORLD and not other_than.intersection(found):
                return found
            time.sleep(0.02)
        return []

    def has_rows(self, count: int) -> None:
        """Waits until so many steps are told, or torchrun starts others, or has ended."""
        began, there = time.monotonic(), children(self._agent.pid)
        log = self.out / "metrics.jsonl"
        while not self.ended() and time.monotonic() - began < LIMIT and children(self._agent.pid) == there:
            if log.exists() and len(list(rows(log))) >= count:
                return
            time.sleep(0.02)

    def kill_all(self) -> None:
        """The machine is gone, and starts again."""
        for pid in [self._agent.pid, *children(self._agent.pid)]:
            kill(pid)
        self._agent.wait()
        self._agent = self._start()


def durable_on(place: Path) -> list[str]:
    return [*on_paths(place, WORLD), "--durability", "step"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended meanwhile


@pytest.mark.nightly
def test_killed_and_started_again_by_torchrun(given: Path, tmp_path: Path) -> None:
    """A random process, or all with torchrun itself; while they start, while they train, after a step."""
    one_process(given, tmp_path / "one", *KEYS, *STEPS)
    wanted, instants = real_runs.result(tmp_path / "one"), seeds.instants("kills of torchrun")
    killed, runs = 0, 0
    while killed < KILLS:
        place = tmp_path / f"run{runs}"
        place.mkdir()
        launched, known, runs = Launched(given, place), set[int](), runs + 1
        while killed < KILLS:
            ranks = launched.ranks(known)
            if not ranks:
                break
            if instants.random() < 0.4:
                time.sleep(instants.uniform(0, 8))
            else:
                log = launched.out / "metrics.jsonl"
                launched.has_rows((len(list(rows(log))) if log.exists() else 0) + instants.randint(1, 4))
                time.sleep(instants.uniform(0, 0.3))
            if launched.ended():
                break
            known.update(ranks)
            killed += 1
            if instants.random() < 0.2:
                launched.kill_all()
            else:
                kill(instants.choice(ranks))
            print(f"{killed} killed", flush=True)
        assert launched.code() == 0, launched.said
        assert real_runs.result(launched.out) == wanted, f"run {runs}, after {killed} kills"
        assert not list(place.glob("drive*/*"))  # what no checkpoint needs is gone


@pytest.mark.nightly
def test_killed_when_no_path_has_a_later_step_than_the_checkpoint(given: Path, tmp_path: Path) -> None:
    """All begin anew on their paths, from the checkpoint's files; what the paths hold of the steps before is free."""
    few = ("--max_steps", "7", "--save_steps", "5")
    one_process(given, tmp_path / "one", *KEYS, *few)
    (tmp_path / "script.py").write_text(f"{real_runs.dying('step')}\nfrom spillway.cli import main\nsys.exit(main())")
    words = real_runs.words(given, tmp_path / "out", *KEYS, *few, *durable_on(tmp_path))
    command = [*LAUNCHER, str(WORLD), str(tmp_path / "script.py"), *words, "--resume_from_checkpoint", "auto"]
    for code, more in ((1, {"DIES_AFTER": "1e-6", "DIES_IN": "6"}), (0, {})):
        ended = subprocess.run(
            command, env=environment() | more, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == code, ended.stderr
    assert f"going on after step 5, from {tmp_path / 'out' / 'checkpoint-5'}" in ended.stdout
    assert real_runs.result(tmp_path / "out") == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
def test_a_trainer_that_torchrun_starts_again(given: Path, tmp_path: Path) -> None:
    """PyTorch begins its process group, so it needs a store of its own in each attempt."""
    expected = trained(given, tmp_path, 1)
    script = tmp_path / "script.py"
    script.write_text(ONCE + TRAINER)
    words = {"load": on_drives(tmp_path, WORLD), "out": "out", "resume": "auto", "dies": [1, 2]}
    command = [*LAUNCHER, WORLD, "--max_restarts", 3, script, given, tmp_path, json.dumps(words)]
    found = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        list(map(str, command)),
        env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "exitcode: -9" in ended.stderr, "nothing was killed"
    assert told(tmp_path, WORLD) == expected
    same_files(tmp_path / "out" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("kills"))
