"""Raw block devices as storage paths, from the command line: trained on, resumed, verified, exported, never erased
unasked. The devices are loop devices over files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import real_runs
from needs import lacks, needs
from real_runs import here, metrics, result
from spillway.cli import main
from test_ranks import LIMIT, one_process, processes, wait_for_rows

BYTES = 256 << 20
KEYS = ["--max_steps", "6", "--lr_scheduler_type", "constant", "--save_steps", "2", "--logging_steps", "1"]
PLACED = ["--placement", "weight=50%,state=path,grad=path,activation=dram"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    yield from attached(tmp_path / "drive")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    yield from attached(tmp_path / "other drive")


def attached(file: Path) -> Iterator[Path]:
    with open(file, "wb") as stream:
        stream.truncate(BYTES)
    try:
        made = subprocess.run(["losetup", "--find", "--show", str(file)], capture_output=True, text=True)
    except FileNotFoundError:
        lacks("loop", "no losetup on this machine: block devices stay untried")
    reason = f"no loop device can be made here, block devices stay untried: {made.stderr.strip()}"
    needs("loop", made.returncode == 0, reason)
    place = Path(made.stdout.strip())
    try:
        yield place
    finally:
        subprocess.run(["losetup", "--detach", str(place)], check=True)


def test_a_run_on_a_device_is_the_run_in_memory_and_goes_on(
    given: Path, tmp_path: Path, device: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(given, tmp_path / "whole", *KEYS) == 0
    out = tmp_path / "out"
    words = [*KEYS, "--storage_device", str(device), *PLACED]
    assert here(given, out, *words, "--max_steps", "3") == 0
    assert here(given, out, *words, "--resume_from_checkpoint", "true") == 0
    assert main(["verify", str(out)]) == 0
    assert "durable step 6: no damage" in capfd.readouterr().out
    assert result(out) == result(tmp_path / "whole")
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0


def test_a_device_beside_a_directory(given: Path, tmp_path: Path, device: Path) -> None:
    assert here(given, tmp_path / "whole", *KEYS) == 0
    (tmp_path / "storage").mkdir()
    both = ["--storage", f"{tmp_path / 'storage'},capacity=256MiB", "--storage_device", str(device), *PLACED]
    assert here(given, tmp_path / "out", *KEYS, *both) == 0
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")
    rows = list(real_runs.rows(tmp_path / "out" / "metrics.jsonl"))
    assert all(rows[-1]["path_bytes"][path]["written"] > 0 for path in ("path:0", "path:1"))


@pytest.mark.nightly
def test_two_processes_have_a_device_each(given: Path, tmp_path: Path, device: Path, other: Path) -> None:
    """They go on where they were killed; one process, which would need the same device for its own, does not."""
    keys = [*KEYS, "--max_steps", "12", "--virtual_ranks", "2", "--gradient_accumulation_steps", "2"]
    one_process(given, tmp_path / "one", *keys)
    for rank, place in enumerate((device, other)):
        (tmp_path / f"drive{rank}").symlink_to(place)
    where = ["--storage_device", f"{tmp_path}/drive{{local_rank}}", *PLACED, "--resume_from_checkpoint", "auto"]
    ends = []
    for world, code in ((2, None), (1, 2), (2, 0)):
        ranks = processes(world, given, tmp_path / "out", *keys, *where)
        if code is None:
            wait_for_rows(2, ranks, tmp_path / "out")
            for process in ranks:
                process.kill()
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
        assert code is None or [each for *_, each in ends] == [code] * world, ends
        if world == 1:
            assert "hold what 2 processes have left of the run" in ends[0][1], ends
    assert "from the storage paths" in ends[0][0], ends
    assert result(tmp_path / "out") == result(tmp_path / "one")


def test_what_a_device_holds_is_erased_only_when_that_is_asked(
    given: Path, tmp_path: Path, device: Path, other: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    precious = b"precious" * 512
    with open(device, "r+b") as stream:
        stream.seek(1 << 16)
        stream.write(precious)
    words = [*KEYS, "--storage_device", str(device), *PLACED]
    assert here(given, tmp_path / "out", *words) == 2
    error = capfd.readouterr().err
    assert str(device) in error and "--erase" in error and not (tmp_path / "out").exists()
    with open(device, "rb") as stream:
        stream.seek(1 << 16)
        assert stream.read(len(precious)) == precious
    assert here(given, tmp_path / "out", *words, "--erase") == 0
    assert here(given, tmp_path / "second", *words, "--erase") == 2, "it is another run's now"
    assert "belongs to run" in capfd.readouterr().err
    assert here(given, tmp_path / "third", *KEYS, "--storage_device", str(other), *PLACED) == 0, "an empty one is taken"


def test_what_is_no_device_is_refused(
    given: Path, tmp_path: Path, device: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["--storage", str(device)], "name it with storage_device"),
        (["--storage_device", str(tmp_path)], "name it with storage"),
        (["--storage_device", str(tmp_path / "none")], "there is no block device"),
        (["--storage_device", str(device), "--storage_device", str(device)], "given twice"),
        (["--erase"], "no"),
    ):
        assert here(given, tmp_path / "out", *KEYS, *words) == 2
        assert said in capfd.readouterr().err
