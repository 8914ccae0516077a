"""Storage paths and output directories that go back to an earlier state without each other, through the command line.

A snapshot of a drive, or of a virtual machine, is put back. The run is refused by name, or goes on with its bits."""

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
EARLY, MORE = "3", "5"  # steps that the first process, and the second one, begin before they are killed


@dataclass(frozen=True)
class Travelled:
    """A run over two paths that was killed twice, and its files as they were after the first kill."""

    where: Path
    expected: object

    @property
    def out(self) -> Path:
        return self.where / "out"

    def volume(self, path: str) -> Path:
        return self.where / path / "spillway.volume"

    def put_back(self, *names: str) -> None:
        """What lies under these names is what was there after the first kill."""
        for name in names:
            shutil.rmtree(self.where / name)
            shutil.copytree(self.where / "early" / name, self.where / name)

    def storage(self) -> list[str]:
        return [word for path in ("a", "b") for word in ("--storage", f"{self.where / path},capacity=512MiB")]

    def resume(self) -> int:
        return main(["resume", str(self.out), *self.storage()])

    def verify(self) -> int:
        return main(["verify", str(self.out), *self.storage()])

    def sums(self) -> list[str]:
        return [hashlib.sha256(self.volume(path).read_bytes()).hexdigest() for path in ("a", "b")]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Travelled:
    path = tmp_path_factory.mktemp("killed")
    given = real_runs.inputs(path / "given")
    assert here(given, path / "whole", *KEYS) == 0
    run = Travelled(path / "run", result(path / "whole"))
    for name in ("a", "b", "early"):
        (run.where / name).mkdir(parents=True)
    first = words(given, run.out, *KEYS, *run.storage(), *PLACED)
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
def run(killed: Travelled, tmp_path: Path) -> Travelled:
    shutil.copytree(killed.where, tmp_path / "run")
    return Travelled(tmp_path / "run", killed.expected)


@pytest.mark.parametrize("path", ["a", "b"])
def test_path_that_went_back_alone_is_refused_by_name(
    run: Travelled, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run.put_back(path)
    before = run.sums()
    assert run.verify() == 1
    assert "went back to an earlier state" in " ".join(capfd.readouterr().out.split())
    assert run.resume() == 2
    error = " ".join(capfd.readouterr().err.split())
    assert f"{run.volume(path)} (path:{'ab'.index(path)}) went back to an earlier state" in error, error
    assert "had been durable there" in error and "Traceback" not in error
    assert run.sums() == before


def test_paths_that_went_back_behind_a_checkpoint_are_refused_with_it(
    run: Travelled, capfd: pytest.CaptureFixture[str]
) -> None:
    run.put_back("a", "b")
    before = run.sums()
    assert run.verify() == 1
    capfd.readouterr()
    assert run.resume() == 2
    error = " ".join(capfd.readouterr().err.split())
    assert str(run.out / "checkpoint-6") in error and "made when step 6 was durable" in error, error
    assert run.sums() == before
    shutil.rmtree(run.out / "checkpoint-6")
    assert run.resume() == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "which had been durable: the storage paths went back to an earlier state" in shown, shown
    assert result(run.out) == run.expected


def test_output_directory_that_went_back_loses_no_step(run: Travelled, capfd: pytest.CaptureFixture[str]) -> None:
    run.put_back("out")
    assert run.resume() == 0, capfd.readouterr().err
    _, files, _ = result(run.out)
    assert files["the model at the root"] == run.expected[1]["the model at the root"]  # type: ignore[index]


def test_everything_that_went_back_together_goes_on(run: Travelled) -> None:
    run.put_back("out", "a", "b")
    assert run.resume() == 0
    assert result(run.out) == run.expected
