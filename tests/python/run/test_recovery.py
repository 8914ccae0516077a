"""Durable runs of the real engine: killed, moved, gone back, exported, damaged. Compared bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import real_runs
import seeds
from real_runs import apart, here, metrics, names, on_path, result, words
from spillway.cli import main
from warm import NIGHTLY

KEYS = ["--max_steps", "6", "--save_steps", "2", "--logging_steps", "2", "--packing"]
LONG = ["--max_steps", "40", "--save_steps", "7", "--save_total_limit", "2", "--logging_steps", "3", "--packing"]
LIMIT = 300  # seconds that a process of its own may take at most
PIECE = 1 << 20
KILLS = 3 if NIGHTLY else 2

KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`out` and `storage` of a run with checkpoints after steps 2, 4 and 6."""
    path = tmp_path_factory.mktemp("finished")
    assert here(inputs, path / "out", *KEYS, *on_path(path / "storage")) == 0
    return path


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The same, moved: neither directory is where it was."""
    for name in ("out", "storage"):
        shutil.copytree(finished / name, tmp_path / name)
    return tmp_path


def paths(copied: Path) -> list[str]:
    return ["--storage", str(copied / "storage")]


def test_killed_at_random_instants_and_resumed(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here(inputs, tmp_path / "whole", *LONG) == 0
    instants = seeds.instants("recovery")
    keys = [*LONG, *on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    for _ in range(KILLS):
        monkeypatch.setenv("DIES_AFTER", str(instants.uniform(0.005, 0.4)))
        process = apart("-c", KILLED, *words(inputs, tmp_path / "out", *keys))
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode in (0, -14), (error, seeds.said())  # 0: it was done before
    assert here(inputs, tmp_path / "out", *keys) == 0, capfd.readouterr().err
    expected, found = result(tmp_path / "whole"), result(tmp_path / "out")
    assert found == expected, seeds.said()
    assert [name for name in names(tmp_path / "out") if "checkpoint" in name] == ["checkpoint-35", "checkpoint-40"]


def test_a_moved_run_goes_back_to_an_older_checkpoint(
    finished: Path, copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = result(finished / "out")
    for step in (4, 2):
        older = str(copied / "out" / f"checkpoint-{step}")
        assert main(["resume", str(copied / "out"), "--resume_from_checkpoint", older, *paths(copied)]) == 0
        assert f"going on after step {step}, from {older}" in capfd.readouterr().out
        rows, files, log = result(copied / "out")
        assert (rows, files, log) == expected
    assert sum("checkpoint" in name for name in names(copied / "out")) == 3


def test_what_is_exported_goes_on_elsewhere(finished: Path, inputs: Path, tmp_path: Path) -> None:
    words = ["--to", str(tmp_path / "alone"), "--checkpoint", str(finished / "out" / "checkpoint-2")]
    assert main(["export", str(finished / "out"), *words]) == 0
    go_on = ["--resume_from_checkpoint", str(tmp_path / "alone")]
    assert here(inputs, tmp_path / "dram", *KEYS, *go_on, "--placement", "dram") == 0
    assert here(inputs, tmp_path / "path", *KEYS, *go_on, *on_path(tmp_path / "storage")) == 0
    expected = result(finished / "out")
    for name in ("dram", "path"):
        rows, files, _ = result(tmp_path / name)
        assert rows == expected[0][1:] and files == expected[1]


def test_what_lies_on_the_paths_is_gone_on_with_where_all_has_room_in_memory(
    finished: Path, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that begins with so much memory and durability checkpoint keeps nothing on paths."""
    out, keys = tmp_path / "out", ["--durability", "checkpoint"]
    assert here(inputs, out, *KEYS, *keys, *on_path(tmp_path / "storage")) == 0
    older = ["--resume_from_checkpoint", str(out / "checkpoint-2")]
    assert main(["resume", str(out), "--placement", "dram", *older]) == 0, capfd.readouterr().err
    assert f"going on after step 2, from {out / 'checkpoint-2'}" in capfd.readouterr().out
    assert result(out) == result(finished / "out")


def test_storage_that_a_resume_leaves_out_is_named(
    copied: Path, finished: Path, inputs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed before its first checkpoint, the run has its steps on its storage alone."""
    for path in [*(copied / "out").glob("checkpoint-*"), copied / "out" / "model.safetensors"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = names(copied / "out"), (copied / "out" / "metrics.jsonl").read_bytes()
    for asked in (["--resume_from_checkpoint", "auto"], ["--resume_from_checkpoint", "true"], []):
        assert here(inputs, copied / "out", *KEYS, "--placement", "dram", *asked) == 2
        error = capfd.readouterr().err
        assert f"lie in {finished / 'storage'}/spillway.volume, which this configuration leaves out" in error
        assert (names(copied / "out"), (copied / "out" / "metrics.jsonl").read_bytes()) == before


def test_another_state_format_is_for_checkpoints_that_stand_alone(
    finished: Path, copied: Path, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(copied / "out"), "--state_format", "int8", "--max_steps", "8", *paths(copied)]) == 2
    error = capfd.readouterr().err
    assert "state_format: the run was started with exact" in error and "spillway export" in error
    alone, out = tmp_path / "alone", tmp_path / "int8"
    words = ["--to", str(alone), "--checkpoint", str(finished / "out" / "checkpoint-4")]
    assert main(["export", str(finished / "out"), *words]) == 0
    keys = [*KEYS, "--state_format", "int8", *on_path(tmp_path / "other")]
    assert here(inputs, out, *keys, "--resume_from_checkpoint", str(alone)) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "was exact and is converted to int8" in said and "(state_format int8)" in said
    assert main(["resume", str(out), "--max_steps", "8", "--storage", str(tmp_path / "other")]) == 0
    assert [row["step"] for row in metrics(out)] == [6, 8]
    assert main(["verify", str(out)]) == 0


def test_damage_has_a_name_and_is_never_used(copied: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(copied / "out"), *paths(copied)]) == 0
    shown = capfd.readouterr().out
    path, *of_files = shown.splitlines()
    assert path.endswith("on 1 path read, durable step 6: no damage.")
    assert of_files and all(re.search(r" in \d+ files? of .* read: no damage\.$", line) for line in of_files)
    volume = copied / "storage" / "spillway.volume"
    damage_every_piece(volume)
    assert main(["verify", str(copied / "out"), *paths(copied)]) == 1
    shown = capfd.readouterr().out.splitlines()
    lines = [line for line in shown if line.startswith("damaged: ")]
    assert lines and f"{len(lines)} damaged place" in shown[len(lines)]
    assert all(line.endswith("read: no damage.") for line in shown[len(lines) + 1 :])
    for line in lines:
        assert re.search(r"model\.(layers|embed|norm)|lm_head", line), line
        found = re.search(rf"path:0, {re.escape(str(volume))} at byte (\d+)", line)
        assert found and int(found[1]) < volume.stat().st_size
    before = metrics(copied / "out")
    assert main(["resume", str(copied / "out"), "--max_steps", "8", *paths(copied)]) != 0
    error = capfd.readouterr().err
    assert "spillway.volume" in error and "Traceback" not in error
    assert metrics(copied / "out") == before


def damage_every_piece(volume: Path) -> None:
    """One bit in each piece of the data area; superblocks and records lie in front of it (docs/formats/volume.md)."""
    with open(volume, "r+b", buffering=0) as stream:
        metadata = int.from_bytes(os.pread(stream.fileno(), 8, 296), sys.byteorder)
        for place in range(PIECE + metadata, volume.stat().st_size, PIECE):
            (byte,) = os.pread(stream.fileno(), 1, place + 5)
            os.pwrite(stream.fileno(), bytes([byte ^ 4]), place + 5)


def test_durable_in_dram_and_gone_back_to_a_checkpoint_that_stands_alone(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients since the last snapshots are on the path; when it has ended nothing there is needed."""
    assert here(inputs, tmp_path / "whole", *KEYS) == 0
    (tmp_path / "storage").mkdir()
    keys = [*KEYS, "--durability", "step", "--placement", "dram", "--storage", str(tmp_path / "storage")]
    monkeypatch.setenv("DIES_AFTER", "1e-6")
    process = apart("-c", KILLED, *words(inputs, tmp_path / "out", *keys))
    process.communicate(timeout=LIMIT)
    assert process.returncode == -14 and names(tmp_path / "storage") == ["spillway.volume"]
    assert here(inputs, tmp_path / "out", *keys, "--resume_from_checkpoint", "auto") == 0
    assert names(tmp_path / "storage") == [] and result(tmp_path / "out") == result(tmp_path / "whole")
    older = str(tmp_path / "out" / "checkpoint-2")
    assert here(inputs, tmp_path / "out", *keys, "--resume_from_checkpoint", older) == 0
    assert f"going on after step 2, from {older}" in capfd.readouterr().out
    assert result(tmp_path / "out") == result(tmp_path / "whole")


def test_a_volume_of_another_run_is_refused_by_its_name(
    inputs: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = [*KEYS, "--storage", f"{finished / 'storage'},capacity=512MiB", "--placement", "path"]
    before = (finished / "storage" / "spillway.volume").stat()
    for more in ([], ["--resume_from_checkpoint", "auto"]):
        assert here(inputs, tmp_path / "other", *keys, *more) == 2
        assert str(finished / "out") in capfd.readouterr().err and names(tmp_path) == []
    assert (finished / "storage" / "spillway.volume").stat().st_mtime_ns == before.st_mtime_ns
