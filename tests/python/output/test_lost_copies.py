"""Durable runs of which a copy is gone: blank metadata, sectors that cannot be read, manifests that say what cannot be.

What was committed is recovered or refused, and a refusal changes nothing. Through the command line, in processes of
their own where a run is killed or its reads fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import interposed
import real_runs
from breadth import some
from needs import lacks
from real_runs import apart, here, result, words
from spillway.cli import main
from stored_bytes import RECORD, SUPERBLOCKS, Piece, blank_metadata, change_manifest, newest_commit, slots

KEYS = ["--max_steps", "6", "--save_strategy", "no", "--packing"]
PLACED = ["--placement", "weight=50%,state=path,grad=path,activation=dram"]
STEPS = 4  # that are begun before the process is killed: the last one may be lost
LIMIT = 600  # seconds that a process of its own may take at most

KILLED = """
import os, signal, sys
from spillway.run.session import EngineSession
gradients, left = EngineSession.gradients, [int(os.environ["STEPS"])]
def counted(*given):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return gradients(*given)
EngineSession.gradients = counted
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""


EACH = """
import json, sys
from spillway.cli import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print(codes)
"""


@dataclass(frozen=True)
class Stopped:
    """A run over two paths, and what the same run has when nothing stops it."""

    given: Path  # its inputs
    out: Path
    paths: tuple[Path, Path]
    expected: object

    @property
    def volumes(self) -> list[Path]:
        return [path / "spillway.volume" for path in self.paths]

    def storage(self) -> list[str]:
        return [word for path in self.paths for word in ("--storage", f"{path},capacity=512MiB")]

    def copied(self, where: Path) -> Stopped:
        for source in (self.out, *self.paths):
            shutil.copytree(source, where / source.name)
        return Stopped(self.given, where / "out", (where / "a", where / "b"), self.expected)

    def train(self, *more: str) -> int:
        return here(self.given, self.out, *KEYS, *self.storage(), *PLACED, *more)

    def resume(self) -> int:
        return main(["resume", str(self.out), *self.storage()])

    def verify(self) -> int:
        return main(["verify", str(self.out), *self.storage()])

    def finished(self) -> bool:
        return result(self.out) == self.expected


def sums(volumes: list[Path]) -> list[str]:
    return [hashlib.sha256(volume.read_bytes()).hexdigest() for volume in volumes]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    path = tmp_path_factory.mktemp("killed")
    given = real_runs.inputs(path / "given")
    assert here(given, path / "whole", *KEYS) == 0
    for name in ("a", "b"):
        (path / name).mkdir()
    run = Stopped(given, path / "out", (path / "a", path / "b"), result(path / "whole"))
    keys = words(given, run.out, *KEYS, *run.storage(), *PLACED)
    process = apart("-c", KILLED, *keys, env_more={"STEPS": str(STEPS)})
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -9, error
    return run


@pytest.fixture
def run(killed: Stopped, tmp_path: Path) -> Stopped:
    return killed.copied(tmp_path)


# ---- one path's metadata is blank


@pytest.mark.parametrize("blank", some([0, 1], [1]))
def test_a_path_whose_commits_are_gone_is_recovered_from_the_other(
    run: Stopped, blank: int, capfd: pytest.CaptureFixture[str]
) -> None:
    blank_metadata(run.volumes[blank])
    before = sums(run.volumes)
    assert run.verify() == 1
    assert "none is there, although another path holds some: " in (shown := capfd.readouterr().out)
    assert f"path:{blank}, {run.volumes[blank]} at byte 1048576" in shown
    assert sums(run.volumes) == before
    assert run.resume() == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert (
        f"path:{blank} at byte 1048576: the run's commits: none is there" in shown and "from the storage paths" in shown
    )
    assert run.finished()


def test_what_both_paths_have_lost_is_refused_and_nothing_is_made_anew(
    run: Stopped, capfd: pytest.CaptureFixture[str]
) -> None:
    for volume in run.volumes:
        blank_metadata(volume)
    before = sums(run.volumes)
    assert run.resume() == 2
    error = capfd.readouterr().err
    assert "its storage paths hold no finished step" in error and "Traceback" not in error
    assert sums(run.volumes) == before


def test_a_beginning_anew_that_was_interrupted_takes_no_earlier_steps_unasked(
    run: Stopped, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first volume is new and holds nothing yet, the second is still of before."""
    aside = tmp_path / "aside"
    shutil.copy(run.volumes[1], aside)
    keys = words(run.given, run.out, *KEYS, *run.storage(), *PLACED, "--overwrite")
    process = apart("-c", KILLED, *keys, env_more={"STEPS": "0"})
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -9, error
    blank_metadata(run.volumes[0])
    os.replace(aside, run.volumes[1])
    before = sums(run.volumes)
    for verb in (run.resume, lambda: run.train("--resume_from_checkpoint", "auto")):
        assert verb() == 2
        error = " ".join(capfd.readouterr().err.split())
        assert "being begun anew when that was interrupted" in error and "--overwrite" in error
        assert f"{run.paths[0]} holds nothing yet, and {run.paths[1]} holds steps of before" in error
        assert sums(run.volumes) == before
    assert run.train("--resume_from_checkpoint", "auto", "--overwrite") == 0
    assert run.finished()


# ---- sectors that cannot be read


@pytest.fixture(scope="module")
def preloaded() -> Path:
    return interposed.library("unreadable", "reads that fail stay untried")


def with_unreadable(
    library: Path, bad: list[tuple[int, int, Path]], *commands: list[str]
) -> tuple[list[int], str, str]:
    """`spillway` with these bytes (offset, number, file) unreadable: exit codes and what it said."""
    given = "\n".join(f"{offset} {count} {file.resolve()}" for offset, count, file in bad)
    return all_of(commands, {"LD_PRELOAD": str(library), "UNREADABLE": given})


def all_of(commands: Sequence[list[str]], env_more: Mapping[str, str]) -> tuple[list[int], str, str]:
    """One after the other in one process of their own."""
    process = apart("-c", EACH, json.dumps(commands), env_more=env_more)
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    *_, codes = shown.splitlines()
    return json.loads(codes), " ".join(shown.split()), " ".join(error.split())


def unreadable_copies(run: Stopped) -> list[tuple[int, int, Path]]:
    """Of everything that is there twice, one copy: a superblock of each path, the newest commit, all that path 0 holds
    of one chunk's snapshots."""
    volume, other = run.volumes
    chunk = next(slot.object for slot in slots(volume) if slot.magic == RECORD and slot.kind == 1)
    records = [slot for slot in slots(volume) if slot.magic == RECORD and (slot.kind, slot.object) == (1, chunk)]
    return [
        (SUPERBLOCKS[0], 512, volume),
        (SUPERBLOCKS[1] + 512, 512, other),
        (newest_commit(volume)[0] + 1024, 512, volume),
        *((slot.offset, 512, volume) for slot in records),
    ]


def test_one_copy_that_cannot_be_read_stops_nothing(run: Stopped, preloaded: Path) -> None:
    bad = unreadable_copies(run)
    alone = run.out.with_name("alone")
    verbs = [["verify", str(run.out)], ["export", str(run.out), "--to", str(alone)], ["resume", str(run.out)]]
    codes, shown, error = with_unreadable(preloaded, bad, *([*verb, *run.storage()] for verb in verbs))
    assert codes == [1, 0, 0], error
    assert (alone / "model.safetensors").is_file()
    assert "the copy of its superblock at byte 0 cannot be read" in shown
    if "no io_uring" not in shown:
        lacks("uring", "io_uring could not be taken away from the engine: reads of records went past the failing ones")
    for offset, count, file in bad:
        assert names(shown, run.volumes.index(file), file, offset, offset + count), (offset, shown)
    assert "which cannot be read" in shown
    assert run.finished()


def names(shown: str, number: int, file: Path, first: int, end: int) -> bool:
    """Whether a line of `verify` names bytes of that file, among them these."""
    lines = [line for line in shown.split("damaged: ") if f"path:{number}, {file} at byte" in line]
    for line in lines:
        count = int(line.split(" bytes on ")[0].split()[-1])
        at = int(line.split(" at byte ")[1].split()[0])
        if at <= first and end <= at + count:
            return True
    return False


def test_both_copies_of_a_superblock_that_cannot_be_read_are_refused(run: Stopped, preloaded: Path) -> None:
    bad = [(offset, 512, run.volumes[1]) for offset in SUPERBLOCKS]
    before = sums(run.volumes)
    verbs = [["verify", str(run.out)], ["resume", str(run.out)]]
    codes, shown, error = with_unreadable(preloaded, bad, *([*verb, *run.storage()] for verb in verbs))
    assert codes == [1, 2] and "Traceback" not in error, error
    assert f"both copies of the superblock: 4096 bytes on path:1, {run.volumes[1]}" in shown
    assert f"{run.volumes[1]} has a damaged superblock" in error
    assert sums(run.volumes) == before


# ---- manifests that say what cannot be

CRAFTED: dict[str, Callable[[list[list[Piece]]], None]] = {}


def crafted(change: Callable[[list[list[Piece]]], None]) -> None:
    CRAFTED[change.__name__] = change


@crafted
def more_pieces_than_the_chunk_has(chunks: list[list[Piece]]) -> None:
    weights = [piece for piece in chunks[0] if piece.part == 0]
    chunks[0][: len(weights)] = weights * 64


@crafted
def a_longer_piece(chunks: list[list[Piece]]) -> None:
    chunks[0][0].bytes = 1 << 20


@crafted
def a_piece_longer_than_one_can_be(chunks: list[list[Piece]]) -> None:
    chunks[0][0].bytes = 1 << 24


@crafted
def a_path_that_is_not_there(chunks: list[list[Piece]]) -> None:
    chunks[1][0].path = 60000


@crafted
def a_place_behind_the_volume(chunks: list[list[Piece]]) -> None:
    chunks[1][0].place = 1 << 30


@crafted
def a_part_that_is_not_there(chunks: list[list[Piece]]) -> None:
    chunks[1][0].part = 5


@crafted
def fewer_chunks(chunks: list[list[Piece]]) -> None:
    del chunks[1:]


@crafted
def one_place_twice(chunks: list[list[Piece]]) -> None:
    chunks[1][:] = [Piece(*vars(piece).values()) for piece in chunks[0]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in `out` and `storage` with one checkpoint, whose state lies on the path."""
    path = tmp_path_factory.mktemp("saved")
    given = real_runs.inputs(path / "given")
    keys = ["--max_steps", "2", *real_runs.on_path(path / "storage")]
    assert here(given, path / "out", *keys) == 0
    return path


def test_verify_of_a_cut_volume_goes_on_to_the_checkpoints(
    saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = Path(shutil.copytree(saved / "storage", tmp_path / "storage"))
    volume = storage / "spillway.volume"
    os.truncate(volume, volume.stat().st_size // 2)
    assert main(["verify", str(saved / "out"), "--storage", str(storage)]) == 1
    told = capfd.readouterr().out
    assert f"not read: {volume} was cut short" in told
    assert f"{saved / 'out' / 'checkpoint-2'} read: no damage." in told


def test_crafted_manifests_are_refused_by_their_names(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("xxhash", reason="no xxhash in this environment: crafted manifests stay untried")
    checkpoint, storage = Path("checkpoint-2"), ["--storage", str(saved / "storage")]
    for name, change in CRAFTED.items():
        shutil.copytree(saved / "out", tmp_path / name)
        manifest = tmp_path / name / checkpoint / "spillway" / "manifest.bin"
        change_manifest(manifest, lambda chunks: None)
        assert manifest.read_bytes() == (saved / "out" / checkpoint / "spillway" / "manifest.bin").read_bytes()
        change_manifest(manifest, change)
    to = ["--to", str(tmp_path / "alone")]
    exports = [
        ["export", str(tmp_path / name), "--checkpoint", str(tmp_path / name / checkpoint), *to, *storage]
        for name in CRAFTED
    ]
    codes, _, error = all_of(exports, {})
    assert codes == [2] * len(CRAFTED), error
    assert error.count("says what cannot be") == len(CRAFTED)
    for name in CRAFTED:
        assert f"{tmp_path / name / checkpoint}/spillway/manifest.bin: " in error
    assert not (tmp_path / "alone").exists()
    assert main(["verify", str(tmp_path / name), *storage]) == 1
