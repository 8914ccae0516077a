"""Another number of processes goes on with a run's durable steps, to the bits of one that was never interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import real_runs
import seeds
from spillway._engine import DurableStep, KeptLine, ListedVolume, PlannedTier, PlanSummary, Superblock, WayKind
from spillway.base.ranks import Ranks
from spillway.config import resolve
from spillway.errors import DoesNotFit, InputError
from spillway.output import directory, identity, volumes
from spillway.output.identity import Identity
from spillway.output.volumes import ShardVolumes
from spillway.run import processes as world_of_several
from spillway.run.beginning import load_existing_run, restore_virtual_ranks
from spillway.run.lines import Lines, chosen
from spillway.run.run import Run
from spillway.run.world import OneProcess
from test_ranks import (
    HOST,
    KEYS,
    LAUNCHER,
    LIMIT,
    free_port,
    given,
    on_paths,
    one_process,
    processes,
    ranks_of,
    wait_for_rows,
)

__all__ = ["given"]  # a fixture

TWO = [ShardVolumes(2, shard, 5, (f"/drive{shard}",)) for shard in range(2)]

NODES = [["node0", 0, 1, ["/drive0"]], ["node1", 0, 1, ["/drive1"]]]


class Reading:
    """An engine that finds these steps on the line 7."""

    def __init__(self, *steps: int) -> None:
        self._steps = steps

    def durable_step_of(self, world: int, shard: int, places: Sequence[str]) -> DurableStep:
        return DurableStep(step=self._steps[shard], line=7)


def left_by_two(tmp_path: Path, world: OneProcess | None = None) -> tuple[Identity, Lines]:
    """What run.json says after two processes."""
    known = Identity("a run", {}, "step", line=7, shared=True, world=2, processes=NODES)
    known.save(tmp_path)
    paths = resolve({}, {"storage": [str(tmp_path)]}).paths
    return known, Lines(known, tmp_path, paths, world or OneProcess(), ["/drive0", "/drive1"])


def test_the_least_that_all_shards_have_is_read_by_those_that_reach_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, lines = left_by_two(tmp_path)
    assert lines.change
    monkeypatch.setattr(volumes, "shards", lambda *_: TWO)
    way = lines.look(Reading(4, 3))
    assert (way.kind, way.line) == (WayKind.redeal, KeptLine(number=7, world=2))
    assert (way.step, way.readers, way.places) == (3, [0, 0], [("/drive0",), ("/drive1",)])
    (tmp_path / "spillway.volume").write_bytes(b"of another run")
    assert lines.begin(way.line) == 0  # a world of one has no number
    assert (tmp_path / "spillway.volume").exists()  # which the engine refuses to take
    written = identity.load(tmp_path)
    assert written is not None and written.world == 1 and written.line == 0
    assert written.before == {"line": 7, "world": 2, "processes": NODES}
    assert lines.change  # until the old volumes are gone
    assert lines.look(Reading(4, 3)).line == KeptLine(number=7, world=2)
    lines.settle()
    assert not lines.change and identity.load(tmp_path) == known


def test_a_shard_that_nobody_reaches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = left_by_two(tmp_path)
    monkeypatch.setattr(volumes, "shards", lambda *_: TWO[:1])
    for step in (3, 4):
        alone = tmp_path / f"checkpoint-{step}"
        (alone / "spillway").mkdir(parents=True)
        (alone / directory.RUN_STATE).touch()
    (tmp_path / "checkpoint-4" / directory.MANIFEST).touch()
    with pytest.raises(InputError, match=r"shard 1 of 2, last on node1 in /drive1.* --resume_from_checkpoint .*-3$"):
        lines.look(Reading(4, 3))


def test_room_for_both_is_asked_for_first(tmp_path: Path) -> None:
    _, lines = left_by_two(tmp_path)
    tiers = [PlannedTier(name="dram", planned_peak=1), PlannedTier(name="path:0", planned_peak=1 << 60)]
    with pytest.raises(DoesNotFit, match=r"1 processes go on with what 2 have left.* too few\. Nothing was written"):
        lines.require_room(PlanSummary(tiers=tiers))
    lines.require_room(PlanSummary(tiers=[PlannedTier(name="path:0", planned_peak=1 << 20)]))


def test_a_block_device_has_room_for_one_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = left_by_two(tmp_path)
    held = [ListedVolume(file=tmp_path, superblock=Superblock(run="a run", world=2))]
    monkeypatch.setattr(volumes, "list_volumes", lambda place: held)
    lines.require_other_devices(KeptLine(number=7, world=2))  # a directory has room for more
    monkeypatch.setattr(Path, "is_block_device", lambda self: True)
    lines.require_other_devices(KeptLine(number=7, world=3))
    with pytest.raises(InputError, match=f"storage_device: {tmp_path} hold what 2 processes have left"):
        lines.require_other_devices(KeptLine(number=7, world=2))
    assert volumes.of_other_numbers(resolve({}, {"storage": [str(tmp_path)]}).paths, "a run") == [tmp_path]


def test_shards_are_read_near_those_that_will_have_them() -> None:
    four = [ShardVolumes(4, shard, 1, (f"/{shard}",)) for shard in range(4)]
    assert list(chosen([four, four], 2).values()) == [0, 0, 1, 1]
    assert chosen([four[:1], [], four[:3]], 3) == {four[0]: 0, four[1]: 2, four[2]: 2}


def test_what_a_launcher_starts_again_goes_on(tmp_path: Path) -> None:
    given = {"overwrite": True, "gradient_accumulation_steps": 3, "output_dir": str(tmp_path)}
    config, again = resolve({}, given), OneProcess(again=True)
    assert load_existing_run(config, again)[0].overwrite  # it has not begun
    begun = Identity("a run", fixed={"virtual_ranks": 4, "gradient_accumulation_steps": 12})
    begun.save(tmp_path)
    assert load_existing_run(config, OneProcess())[0].overwrite  # somebody has given the command once more
    config, known, _ = load_existing_run(config, again)
    assert (config.resume_from_checkpoint, config.overwrite) == ("auto", False)
    fewer = restore_virtual_ranks(config, known).over(Ranks(0, 2, 0, 2))
    assert (fewer.virtual_ranks, fewer.gradient_accumulation_steps) == (4, 12)
    other = restore_virtual_ranks(config.replaced(gradient_accumulation_steps=2), known)
    assert other.any_ranks  # that would be another step


def test_what_may_be_taken_over_needs_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve({}, {"durability": "step", "save_only_model": False})
    start = directory.Start(tmp_path, None)
    assert not Run(config, start, Identity("a run")).keep(2, None).alone
    assert Run(config, start, Identity("a run", shared=True)).keep(2, None).alone
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    assert Run(config, start, Identity("a run")).keep(2, None).alone
    kept = Run(config.replaced(durability="checkpoint"), start, Identity("a run")).keep(2, None)
    assert kept.alone and kept.checkpoints == 1  # the paths have the newest one, too


def test_checkpoints_that_lie_in_the_old_volumes_are_exported_first(tmp_path: Path) -> None:
    values = {"model": str(tmp_path), "output_dir": str(tmp_path / "out"), "storage": [str(tmp_path)]}
    config = resolve({}, values | {"resume_from_checkpoint": "auto"})
    manifest = tmp_path / "out" / "checkpoint-2" / directory.MANIFEST
    manifest.parent.mkdir(parents=True)
    Identity("a run", {}, "step").save(tmp_path / "out")
    start = directory.decide(config, [], [tmp_path / "old.volume"])
    assert start.durable and start.resume is None
    manifest.touch()
    with pytest.raises(InputError, match=r"the state of .*checkpoint-2 lies in .*old\.volume.*`spillway export`"):
        directory.decide(config, [], [tmp_path / "old.volume"])
    with pytest.raises(InputError, match="which this configuration leaves out"):
        directory.decide(config.replaced(storage=[]), [], [tmp_path / "old.volume"])


STOPPED = """
import os, signal
from spillway.run import processes
from spillway.run.world import opened

processes.LATE = 0.3

with opened() as world:
    pids = world.gather(os.getpid())

    def told(words):
        print(words, flush=True)
        os.kill(pids[1], signal.SIGCONT)

    processes.tell_person = told
    with world.serve(world.port()):
        if world.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        world.gather(None)
"""


def test_one_that_is_stopped_is_named() -> None:
    assert world_of_several.LATE + 2 * world_of_several.LOOKS < 30
    (said, error, code), (_, _, other) = ranks_of(STOPPED, 2)
    assert (code, other) == (0, 0), error
    assert said.startswith(f"rank 0 ({HOST}) has waited for") and said.rstrip().endswith(f"for rank 1 ({HOST})"), said


# ---- whole runs


def lives(place: Path, most: int, keys: Sequence[str]) -> list[str]:
    """The words of a run on a path of each process, whose lives may have other numbers of them."""
    return [*on_paths(place, most), "--durability", "step", "--resume_from_checkpoint", "auto", *keys]


def live(world: int, given: Path, out: Path, words: Sequence[str], until: int | None) -> list[tuple[str, str, int]]:
    """So many processes, killed after that row, or to their end."""
    ranks = processes(world, given, out, *words)
    if until is not None:
        wait_for_rows(until, ranks, out)
        for process in ranks:
            process.kill()
    return [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]


def expect_same(given: Path, tmp_path: Path, worlds: Sequence[int], keys: Sequence[str], *more: str) -> None:
    """`more`: keys of the lives alone."""
    keys = (*KEYS, *keys, "--max_steps", str(4 * len(worlds)))
    one_process(given, tmp_path / "one", *keys)
    out, words = tmp_path / "out", lives(tmp_path, max(worlds), (*keys, *more))
    for number, world in enumerate(worlds):
        last = number == len(worlds) - 1
        ends = live(world, given, out, words, None if last else 2 * number + 1)
        assert not last or [code for *_, code in ends] == [0] * world, ends
        if 0 < number and last:
            assert f"{worlds[number - 1]} process{'es' * (worlds[number - 1] > 1)} had made it" in ends[0][0], ends
    assert real_runs.result(out) == real_runs.result(tmp_path / "one")
    assert not list(tmp_path.glob("drive*/*"))  # what no checkpoint needs is gone


@pytest.mark.nightly
def test_two_then_one_then_two(given: Path, tmp_path: Path) -> None:
    expect_same(given, tmp_path, [2, 1, 2], [])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "keys",
    [(), ("--method", "lora"), ("--state_format", "int8"), ("--state_format", "bf16", "--compute_dtype", "fp32")],
)
def test_four_then_three_then_one_then_two(given: Path, tmp_path: Path, keys: tuple[str, ...]) -> None:
    expect_same(given, tmp_path, [4, 3, 1, 2], keys)


@pytest.mark.nightly
def test_the_last_checkpoint_is_taken_over(given: Path, tmp_path: Path) -> None:
    """Where only checkpoints are durable."""
    expect_same(given, tmp_path, [2, 1, 3], [], "--durability", "checkpoint")


@pytest.mark.nightly
def test_as_many_go_on_from_the_last_checkpoint(given: Path, tmp_path: Path) -> None:
    keys = (*KEYS, "--durability", "checkpoint")
    one_process(given, tmp_path / "one", *KEYS)
    out, words = tmp_path / "out", lives(tmp_path, 2, keys)
    live(2, given, out, words, 3)
    ends = live(2, given, out, words, None)
    assert [code for *_, code in ends] == [0, 0], ends
    assert "going on after step 2" in ends[0][0], ends
    assert real_runs.result(out) == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
def test_killed_while_one_takes_over_it_goes_on_from_either(given: Path, tmp_path: Path) -> None:
    """At random instants after the new volumes are there; then as many as before, or others, go on."""
    keys = (*KEYS, "--max_steps", "8")
    one_process(given, tmp_path / "one", *keys)
    out, instants = tmp_path / "out", seeds.instants("another world")
    words = lives(tmp_path, 2, keys)
    live(2, given, out, words, 1)
    for life in range(6):
        world = instants.choice([1, 2])
        name = "spillway.volume" if world == 1 else f"spillway.shard-0-of-{world}.volume"
        ranks = processes(world, given, out, *words)
        began = time.monotonic()
        while time.monotonic() - began < LIMIT and all(each.poll() is None for each in ranks):
            if (tmp_path / "drive0" / name).exists():
                break
            time.sleep(0.005)
        time.sleep(instants.uniform(0, 0.3))
        for process in ranks:
            process.kill()
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
        assert all(code in (0, 1, -signal.SIGKILL) for *_, code in ends), (life, ends)
    ends = live(2, given, out, words, None)
    assert [code for *_, code in ends] == [0, 0], ends
    assert real_runs.result(out) == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
def test_without_a_shard_nobody_goes_on(given: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "out", lives(tmp_path, 3, (*KEYS, "--max_steps", "500"))
    live(2, given, out, words, 1)
    (tmp_path / "drive1" / "spillway.shard-1-of-2.volume").unlink()
    ends = live(3, given, out, words, None)
    assert [code for *_, code in ends] == [2, 2, 2], ends
    assert f"shard 1 of 2, last on {HOST} in {tmp_path}/drive1" in ends[0][1], ends
    assert (tmp_path / "drive0" / "spillway.shard-0-of-2.volume").exists()


def children(pid: int) -> list[int]:
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for each in lists for child in each.split()]


def wait_for_port(port: int) -> None:
    began = time.monotonic()
    while time.monotonic() - began < LIMIT:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def elastic(given: Path, place: Path, *keys: str, alive: int = 2) -> Callable[[], Any]:
    """Starts an agent of torchrun, as on another machine each time: one machine or two train. `alive`:
    seconds without a sign of it after which one is gone."""
    port = free_port()
    rendezvous = ["--nnodes", "1:2", "--nproc_per_node", "1", "--max_restarts", "3", "--rdzv_id", "a"]
    quick = f"last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt={alive}"
    rendezvous += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_conf", quick]
    for rank in range(2):
        (place / f"machine{rank}").mkdir()
    where = ["--storage", f"{place}/machine{{rank}},capacity=512MiB", "--placement", "weight=50%,state=50%,grad=path"]
    words = real_runs.words(given, place / "out", *keys, "--durability", "step", *where)
    command = [*LAUNCHER[:3], *rendezvous, "-m", "spillway", *words]

    def agent() -> Any:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        told = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun = subprocess.Popen(command, **told)  # type: ignore[call-overload]
        wait_for_port(port)  # the first one has the store
        return begun

    return agent


ELASTIC = (*KEYS, "--max_steps", "12")


@pytest.mark.nightly
def test_elastic_with_fewer_machines(given: Path, tmp_path: Path) -> None:
    """Of two machines one is gone, and the other starts its process again, alone."""
    one_process(given, tmp_path / "one", *ELASTIC)
    agent = elastic(given, tmp_path, *ELASTIC)
    agents = [agent(), agent()]
    wait_for_rows(2, agents, tmp_path / "out")
    for pid in [agents[1].pid, *children(agents[1].pid)]:
        os.kill(pid, signal.SIGKILL)
    agents[1].communicate()
    output, error = agents[0].communicate(timeout=LIMIT)
    assert agents[0].returncode == 0, (output, error)
    assert "2 processes had made it" in output
    assert real_runs.result(tmp_path / "out") == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
def test_elastic_with_one_machine_more(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's agents find each other then where each attempt has a store of its own."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    keys = (*KEYS, "--max_steps", "300", "--save_total_limit", "1")  # the second is there before the first has ended
    one_process(given, tmp_path / "one", *keys)
    agent = elastic(given, tmp_path, *keys, "--resume_from_checkpoint", "auto", alive=60)
    first = agent()
    wait_for_rows(2, [first], tmp_path / "out")
    agents = [first, agent()]
    ends = [each.communicate(timeout=LIMIT) for each in agents]
    assert [each.returncode for each in agents] == [0, 0], ends
    assert any("had made it" in output for output, _ in ends), ends
    assert real_runs.result(tmp_path / "out") == real_runs.result(tmp_path / "one")
