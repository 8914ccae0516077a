"""Storage paths or output directories that went back to an earlier state alone, through the command line.

A user restores a snapshot of a drive or of a virtual machine. The run is refused by name, or resumes with its bits."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import real_runs
from real_runs import apart, here, result, words
from spillway.cli import main
from test_lost_copies import KILLED, LIMIT, PLACED

KEYS = ["--max_steps", "10", "--save_steps", "6", "--packing"]
EARLY, MORE = "3", "5"  # steps that the first and the second process begin before they are killed


@dataclass(frozen=True)
class TravelledRun:
    """A run over two paths that was killed twice, and a copy of its files after the first kill."""

    where: Path
    expected: object

    @property
    def out(self) -> Path:
        return self.where / "out"

    def volume(self, path: str) -> Path:
        return self.where / path / "spillway.volume"

    def put_back(self, *names: str) -> None:
        """Restores these directories to their content after the first kill."""
        for name in names:
            shutil.rmtree(self.where / name)
            shutil.copytree(self.where / "early" / name, self.where / name)

    def storage(self) -> list[str]:
        return [word for path in ("a", "b") for word in ("--storage", f"{self.where / path},capacity=512MiB")]

    def resume(self) -> int:
        return main(["resume", str(self.out), *self.storage()])

    def verify(self) -> int:
        return main(["verify", str(self.out), *self.storage()])

    def hash_volumes(self) -> list[str]:
        return [hashlib.sha256(self.volume(path).read_bytes()).hexdigest() for path in ("a", "b")]


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> TravelledRun:
    path = tmp_path_factory.mktemp("killed")
    inputs = real_runs.inputs(path / "given")
    assert here(inputs, path / "whole", *KEYS) == 0
    run = TravelledRun(path / "run", result(path / "whole"))
    for name in ("a", "b", "early"):
        (run.where / name).mkdir(parents=True)
    first = words(inputs, run.out, *KEYS, *run.storage(), *PLACED)
    second = ["resume", str(run.out), *run.storage()]
    for keys, steps in ((first, EARLY), (second, MORE)):
        process = apart("-c", KILLED, *keys, env_more={"STEPS": steps})
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode == -9, error
        if keys is first:
            for name in ("out", "a", "b"):
                shutil.copytree(run.where / name, run.where / "early" / name)
    assert (run.out / "checkpoint-6" / "spillway" / "manifest.bin").is_file()
    return run


@pytest.fixture
def run(killed_run: TravelledRun, tmp_path: Path) -> TravelledRun:
    shutil.copytree(killed_run.where, tmp_path / "run")
    return TravelledRun(tmp_path / "run", killed_run.expected)


@pytest.mark.parametrize("path", ["a", "b"])
def test_path_that_went_back_alone_is_refused_by_name(
    run: TravelledRun, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run.put_back(path)
    before = run.hash_volumes()
    assert run.verify() == 1
    assert "went back to an earlier state" in " ".join(capfd.readouterr().out.split())
    assert run.resume() == 2
    error = " ".join(capfd.readouterr().err.split())
    assert f"{run.volume(path)} (path:{'ab'.index(path)}) went back to an earlier state" in error, error
    assert "had been durable there" in error and "Traceback" not in error
    assert run.hash_volumes() == before


def test_paths_older_than_a_checkpoint_are_refused_with_its_name(
    run: TravelledRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run.put_back("a", "b")
    before = run.hash_volumes()
    assert run.verify() == 1
    capfd.readouterr()
    assert run.resume() == 2
    error = " ".join(capfd.readouterr().err.split())
    assert str(run.out / "checkpoint-6") in error and "made when step 6 was durable" in error, error
    assert run.hash_volumes() == before
    shutil.rmtree(run.out / "checkpoint-6")
    assert run.resume() == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "which had been durable: the storage paths went back to an earlier state" in output, output
    assert result(run.out) == run.expected


def test_output_directory_that_went_back_loses_no_step(run: TravelledRun, capfd: pytest.CaptureFixture[str]) -> None:
    run.put_back("out")
    assert run.resume() == 0, capfd.readouterr().err
    _, files, _ = result(run.out)
    assert files["the model at the root"] == run.expected[1]["the model at the root"]  # type: ignore[index]


def test_directories_that_went_back_together_resume(run: TravelledRun) -> None:
    run.put_back("out", "a", "b")
    assert run.resume() == 0
    assert result(run.out) == run.expected
