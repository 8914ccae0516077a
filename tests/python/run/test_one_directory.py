"""One `storage` directory serves all processes of a machine. With any number of processes a run resumes, is verified,
exported and begun anew."""

from __future__ import annotations

from pathlib import Path

import pytest

import real_runs
from spillway.base.ranks import Ranks
from spillway.cli import main
from spillway.config import resolve
from spillway.run import alike, settings
from test_another_world import live
from test_ranks import Told, one_process

STEPS = ("--virtual_ranks", "2", "--gradient_accumulation_steps", "4", "--max_steps", "12")
PLACED = ("--placement", "weight=50%,state=50%,grad=path,activation=dram", "--durability", "step")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("one_directory"))


def list_volumes(storage: Path) -> list[str]:
    return sorted(path.name for path in storage.iterdir())


def name_volumes(world: int) -> list[str]:
    if world == 1:
        return ["spillway.volume"]
    return [f"spillway.shard-{rank}-of-{world}.volume" for rank in range(world)]


def make_storage(storage: Path) -> list[str]:
    storage.mkdir()
    return ["--storage", f"{storage},capacity=1GiB", *PLACED]


def test_capacity_and_endurance_of_a_directory_are_divided(tmp_path: Path) -> None:
    place = f"{tmp_path},capacity=8GiB,endurance=600TB"
    each = [resolve({}, {"storage": [place]}).among(Ranks(rank, 4, rank % 2, 2)) for rank in range(4)]
    assert {(path.capacity, path.endurance) for config in each for path in config.paths} == {(4 << 30, 300 * 10**12)}
    assert settings.storage(each[1].paths, 2)[0].capacity == 4 << 30
    assert f"capacity={8 << 30}" in each[0].text(), "written as it was given"
    alike.places(Told(*(("host", alike.list_places(config)) for config in each[:2])), each[0])
    own_paths = resolve({}, {"storage": [f"{tmp_path}/{{local_rank}},capacity=8GiB"]}).among(Ranks(1, 2, 1, 2)).paths
    assert [(path.place, path.capacity) for path in own_paths] == [(f"{tmp_path}/1", 8 << 30)]
    (alone,) = resolve({}, {"storage": [place]}).paths
    assert (alone.capacity, alone.file) == (8 << 30, "spillway.volume")


def test_run_resumes_with_any_number_of_processes(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One process begins the run and is killed, two resume and are killed, and one ends the run."""
    one_process(inputs, tmp_path / "whole", *STEPS)
    storage, out = tmp_path / "storage", tmp_path / "out"
    words = [*STEPS, *make_storage(storage), "--resume_from_checkpoint", "auto"]
    for world, until in ((1, 1), (2, 4)):
        live(world, inputs, out, words, until)
        assert list_volumes(storage) == name_volumes(world)
    assert main(["verify", str(out)]) == 0
    report = capfd.readouterr().out
    assert "shard 0" in report and "shard 1" in report and report.count("no damage") == 2
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0
    assert (tmp_path / "alone" / "model.safetensors").is_file()
    ((output, error, code),) = live(1, inputs, out, words, None)
    assert code == 0 and "2 processes had made it" in output, error
    assert real_runs.result(out) == real_runs.result(tmp_path / "whole")
    assert list_volumes(storage) == []  # no checkpoint needs a volume


@pytest.mark.nightly
@pytest.mark.parametrize("worlds", [(2, 2), (1, 2), (2, 1)])
def test_overwrite_replaces_volumes_of_another_run(inputs: Path, tmp_path: Path, worlds: tuple[int, int]) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    words = [*STEPS, *make_storage(storage)]
    live(worlds[0], inputs, out, words, 1)
    assert list_volumes(storage) == name_volumes(worlds[0])
    assert [code for *_, code in live(worlds[1], inputs, out, words, None)] == [2] * worlds[1]
    live(worlds[1], inputs, out, [*words, "--overwrite"], 1)
    assert list_volumes(storage) == name_volumes(worlds[1])
