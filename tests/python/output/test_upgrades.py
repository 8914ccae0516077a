"""Runs that released versions have left, each in the durability and state format that its name says, are resumed,
verified and exported by this one. What a later release has written is refused with what to do.

tests/fixtures/upgrades/make.py made them, by the release that names the archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import real_runs
from breadth import some
from folders import REPOSITORY
from needs import package
from spillway.cli import main
from spillway.output.records import rows

ARCHIVES = sorted(REPOSITORY.joinpath("tests", "fixtures", "upgrades").glob("*.tar.xz"))
ON_PATH = ("step-exact", "step-int8", "checkpoint-bf16")
ALONE = ("none-exact", "none-lora")
FORMAT_OF_A_SUPERBLOCK = 12  # where it lies (docs/formats/volume.md)
SUPERBLOCKS = (0, 524288)


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("release")
    subprocess.run(["tar", "-xJf", str(request.param), "-C", str(place)], check=True)
    return place


@pytest.fixture
def copied(release: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", "--sparse=always", f"{release}/.", str(tmp_path)], check=True)
    return tmp_path


def given(place: Path, run: str, *more: str) -> list[str]:
    """A run's directory, with where everything lies now."""
    inputs = ["--model", str(place / "model"), "--tokenizer", str(place / "model")]
    inputs += ["--dataset", str(place / "train.jsonl")]
    inputs += ["--profile", str(place / "profile.json")]
    storage = ["--storage", f"{place / run / 'storage'},capacity=512MiB"] if run in ON_PATH else []
    return [str(place / run / "out"), *inputs, *storage, *more]


@pytest.mark.parametrize("run", some([*ON_PATH, *ALONE], ["step-exact", "checkpoint-bf16", "none-exact"]))
def test_it_goes_on(copied: Path, run: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", *given(copied, run, "--max_steps", "4")]) == 0, capfd.readouterr().err
    assert "going on after step 2" in capfd.readouterr().out
    assert [row["step"] for row in rows(copied / run / "out" / "metrics.jsonl")] == [1, 2, 3, 4]
    assert real_runs.last_checkpoint(copied / run / "out").name == "checkpoint-4"


@pytest.mark.parametrize("run", ON_PATH)
def test_it_is_verified_and_exported(copied: Path, run: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *given(copied, run)]) == 0, capfd.readouterr()
    assert "no damage" in capfd.readouterr().out
    for number, more in enumerate([[], ["--checkpoint", str(copied / run / "out" / "checkpoint-2")]]):
        to = copied / f"alone-{number}"
        assert main(["export", *given(copied, run), "--to", str(to), *more]) == 0, capfd.readouterr().err
        written = (copied / run / "out" / "checkpoint-2" / "model.safetensors").read_bytes()
        assert (to / "model.safetensors").read_bytes() == written


def refused(capfd: pytest.CaptureFixture[str], place: Path, run: str) -> str:
    before = {path: path.read_bytes() for path in (place / run / "out").rglob("*") if path.is_file()}
    assert main(["resume", *given(place, run, "--max_steps", "4")]) == 2
    assert before == {path: path.read_bytes() for path in (place / run / "out").rglob("*") if path.is_file()}
    return " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("run", "file", "key"),
    [
        ("step-exact", "spillway/run.json", "format"),
        ("none-exact", "checkpoint-2/spillway/run.json", "format"),
    ],
)
def test_a_file_of_a_later_release_is_refused(
    copied: Path, run: str, file: str, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = copied / run / "out" / file
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: 99}))
    if "checkpoint" in file:
        (path.parent / "files.json").unlink()
    error = refused(capfd, copied, run)
    assert "has format 99" in error and "release that wrote it" in error


def test_a_volume_of_a_later_release_is_refused(copied: Path, capfd: pytest.CaptureFixture[str]) -> None:
    volume = copied / "step-exact" / "storage" / "spillway.volume"
    later(volume)
    error = refused(capfd, copied, "step-exact")
    assert "has format 99" in error and "release that wrote it" in error
    shutil.rmtree(copied / "step-exact" / "out")


def later(volume: Path) -> None:
    """Both superblocks are of format 99, and whole."""
    xxhash = package("xxhash", "there is no xxhash to make a superblock whole with")
    with open(volume, "r+b", buffering=0) as stream:
        for place in SUPERBLOCKS:
            block = bytearray(os.pread(stream.fileno(), 4096, place))
            block[FORMAT_OF_A_SUPERBLOCK : FORMAT_OF_A_SUPERBLOCK + 4] = (99).to_bytes(4, "little")
            block[-8:] = xxhash.xxh3_64_intdigest(bytes(block[:-8])).to_bytes(8, "little")
            os.pwrite(stream.fileno(), block, place)
