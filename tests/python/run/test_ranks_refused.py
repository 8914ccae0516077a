"""What processes of one run have that contradicts each other, or that one of them lacks: refused once, before anything
starts, with the rank and the host."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from spillway.run import room, shared_locks
from test_ranks import free_port

LIMIT = 120
HOST = socket.gethostname()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("refused"))


def ends_of(commands: Sequence[Sequence[str]], local: int, **env_more: str) -> list[tuple[str, str, int]]:
    """What each process has said, and how it ended; `local` of them are on a machine."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(commands))}
    where |= {"LOCAL_WORLD_SIZE": str(local), **env_more}
    ranks = [
        real_runs.apart(*words, env_more={**where, "RANK": str(rank), "LOCAL_RANK": str(rank % local)})
        for rank, words in enumerate(commands)
    ]
    return [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]


def expect_once(ends: Sequence[tuple[str, str, int]], *parts: str) -> None:
    assert [code for *_, code in ends] == [2] * len(ends), ends
    (said,) = (line for _, error, _ in ends for line in error.splitlines() if line.startswith("spillway: "))
    assert all(part in said for part in parts), said


LINE = """
import os, sys
first, *words = sys.argv[1:]
if os.environ["RANK"] == "1":
    exec(first)
from spillway.cli import command
sys.exit(command.main(words))
"""

OTHERS = {  # what makes of rank 1 another one than rank 0: statements before its command, or keys; and what is told
    "configurations": ("", ("--learning_rate", "0.5"), ("learning_rate: rank 0 has 0.001, rank 1 has 0.5",)),
    "seeds": ("", ("--seed", "7"), ("seed: rank 0 has 42, rank 1 has 7",)),
    "versions": (
        "from spillway.run import beginning; beginning.__version__ = '9.9'",
        (),
        ("rank 0 has", "rank 1 has 9.9"),
    ),
    "data": ("os.chdir('other')", (), ("dataset: rank 0 has", "rank 1 has")),
    "models": ("os.chdir('wider')", (), ("rank 1 has another plan than rank 0", "models")),
    "backends": ("", ("--ddp_backend", "nccl"), ("ddp_backend: rank 0 has gloo, rank 1 has nccl",)),
    "no storage": ("", (), (f"rank 1 ({HOST}): storage: there is no directory", "drive1; create it")),
}


@pytest.mark.parametrize("which", OTHERS)
def test_one_that_differs_is_refused_once(
    which: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places that have one name and other contents on another machine are links into the process's own directory."""
    here = tmp_path / "here"
    for place in (here, here / "other", here / "wider"):
        shutil.copytree(given, place / "own")
    tiny.jsonl(here / "other" / "own" / "train.jsonl", tiny.text_rows(5))
    file = here / "wider" / "own" / "model" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    (tmp_path / "given").symlink_to("/proc/self/cwd/own")
    monkeypatch.chdir(here)
    for drive in ("drive0",) if which == "no storage" else ("drive0", "drive1"):
        (tmp_path / drive).mkdir()
    first, keys, told = OTHERS[which]
    storage = ("--storage", f"{tmp_path}/drive{{rank}},capacity=64MiB", "--init", "random", "--max_steps", "1")
    words = real_runs.words(tmp_path / "given", tmp_path / "out", *storage, "--profile", str(given / "profile.json"))
    ends = ends_of([["-c", LINE, first, *words, *more] for more in ((), keys)], 2)
    expect_once(ends, *told)
    assert not list(tmp_path.glob("drive*/*")) and not (tmp_path / "out" / "metrics.jsonl").exists()


def test_nccl_needs_gpus(given: Path, tmp_path: Path) -> None:
    told = real_runs.words(given, tmp_path / "out", "--ddp_backend", "nccl", "--profile", str(given / "profile.json"))
    expect_once(ends_of([["-m", "spillway", *told]] * 2, 2), "ddp_backend: nccl takes bytes by way of GPUs", "--device")
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


MEETING = """
import sys
from datetime import timedelta
from spillway.run import meeting
meeting.MEETING = timedelta(seconds=1)
from spillway.cli import command
sys.exit(command.main(sys.argv[1:]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_does_not_find_the_others_says_where_it_looked(given: Path, tmp_path: Path, rank: int) -> None:
    port = str(free_port())
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
    words = real_runs.words(given, tmp_path / "out")
    process = real_runs.apart("-c", MEETING, *words, env_more=where | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    _, error = process.communicate(timeout=LIMIT)
    expect_once([("", error, process.returncode)], "WORLD_SIZE: 2 processes were to meet", f"127.0.0.1:{port}",
                f"rank {rank} on {HOST}")  # fmt: skip


LOCKS = """
import fcntl, os, socket, sys
rank, name, holds = os.environ["RANK"], socket.gethostname(), sys.argv[2] == "hold"
socket.gethostname = lambda: f"{name}-{rank}"  # of one machine each
if not holds and rank == "1":
    fcntl.flock = lambda file, how: None  # as a mount whose locks are its own
from spillway.cli import command
from spillway.config import resolve
from spillway.run import alike
from spillway.run.world import opened

def run(arguments):
    with opened() as world:
        assert world.ranks.machines == 2
        alike.places(world, resolve({}, {"storage": [sys.argv[1]]}))
        world.gather(None)
    return 0

command.VERBS["train"] = command.Verb("", "", run, own_signals=True)
sys.exit(command.main(["train"]))
"""


def test_a_directory_of_two_machines_has_locks_that_hold_on_both(tmp_path: Path) -> None:
    ends = ends_of([["-c", LOCKS, str(tmp_path), "hold"]] * 2, 1)
    assert [code for *_, code in ends] == [0, 0], ends
    ends = ends_of([["-c", LOCKS, str(tmp_path), "do not hold"]] * 2, 1)
    mount = room.mount_point(tmp_path)
    named = (
        f"({HOST}-",
        f"storage: {tmp_path} is a directory that rank",
        "has on another machine",
    )  # whoever looked first
    expect_once(ends, *named, f"{mount} is a file system of kind {room.kind(mount)}")
    assert not list(tmp_path.iterdir())


def test_what_was_killed_while_it_looked_at_locks_leaves_nothing_for_long(tmp_path: Path) -> None:
    left = [tmp_path / f"{shared_locks.PREFIX}{name}" for name in ("old", "new")]
    for path in left:
        path.touch()
    os.utime(left[0], (0, 0))
    with shared_locks.locked(tmp_path) as (name,):
        assert sorted(tmp_path.iterdir()) == sorted([left[1], tmp_path / name])


def test_a_mount_without_locks_is_named_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(room, "mounted", lambda _: ("lustre", "rw,noflock"))
    monkeypatch.setattr("fcntl.flock", lacking)
    with pytest.raises(shared_locks.InputError, match=r"has no locks: .*kind lustre.*rw,noflock; mount it with flock"):
        shared_locks.locked(tmp_path).__enter__()
    assert not list(tmp_path.iterdir())
