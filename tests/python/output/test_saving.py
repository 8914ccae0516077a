"""Saving as a user meets it: file systems that are full, processes that are killed in a save, checkpoints that were
moved away. Every run is the command or a script in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import interposed
import real_runs
from folders import PYTHONPATH
from needs import lacks
from real_runs import apart, last_checkpoint, names, words
from spillway.output import directory

LIMIT = 600  # seconds that a process of its own may take at most, on a machine that others use, too
KEYS = ["--max_steps", "4", "--logging_steps", "1"]
ON_PATH = "weight=path,state=path,grad=path,activation=path"
MIXED = "weight=50%,state=path,grad=path,activation=dram"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("saving"))


@pytest.fixture(scope="module")
def shim() -> Path:
    return interposed.library("full", "no write can be made to fail")


@pytest.fixture(scope="module")
def undisturbed(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert real_runs.here(given, out, *KEYS) == 0
    return out


def spillway(*command: str, **environment: str) -> tuple[int, str]:
    """Exit code, and all that was said."""
    process = apart("-m", "spillway", *command, env_more={"COLUMNS": "1000"} | environment)
    said = "".join(process.communicate(timeout=LIMIT))
    return process.returncode, said


def on(storage: Path, placement: str, durability: str, capacity: str = "256MiB") -> list[str]:
    storage.mkdir(exist_ok=True)
    return ["--storage", f"{storage},capacity={capacity}", "--placement", placement, "--durability", durability]


def full(shim: Path, place: Path, part: str = ".safetensors") -> dict[str, str]:
    return {"LD_PRELOAD": str(shim), "FULL_PLACE": str(place), "FULL_PART": part}


def model(place: Path) -> bytes:
    return (place / "model.safetensors").read_bytes()


# ---- a save that fails


@pytest.mark.parametrize(
    ("durability", "placement"),
    [
        ("none", ON_PATH),
        pytest.param("none", MIXED, marks=pytest.mark.nightly),
        pytest.param("checkpoint", ON_PATH, marks=pytest.mark.nightly),
        ("step", MIXED),
    ],
)
def test_a_failed_save_leaves_a_state_that_export_writes(
    given: Path, undisturbed: Path, shim: Path, tmp_path: Path, durability: str, placement: str
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    keys = [*KEYS, *on(tmp_path / "storage", placement, durability)]
    code, said = spillway(*words(given, out, *keys), **full(shim, out))
    assert code == 1, said
    assert "No space left" in said and f"spillway export --output_dir {out} --to DIR" in said, said
    assert (tmp_path / "storage" / "spillway.volume").is_file() and not list(out.glob("checkpoint-*"))
    code, said = spillway("export", "--output_dir", str(out), "--to", str(elsewhere))
    assert code == 0 and "step 4" in said, said
    assert model(elsewhere) == model(undisturbed)
    for name in ("residual", "exp_avg", "exp_avg_sq"):
        file = Path("spillway", f"{name}.safetensors")
        assert (elsewhere / file).read_bytes() == (undisturbed / "checkpoint-4" / file).read_bytes(), name
    again = words(given, tmp_path / "again", *KEYS, "--max_steps", "5", "--resume_from_checkpoint", str(elsewhere))
    code, said = spillway(*again)
    assert code == 0 and "going on after step 4" in said, said


@pytest.mark.nightly
def test_what_was_left_is_not_taken_for_another_run(given: Path, shim: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keys = [*KEYS, *on(tmp_path / "storage", ON_PATH, "none")]
    assert spillway(*words(given, out, *keys), **full(shim, out))[0] == 1
    before = (tmp_path / "storage" / "spillway.volume").stat().st_mtime_ns
    for how in ([], ["--resume_from_checkpoint", "auto"], ["--resume_from_checkpoint", "true"]):
        code, said = spillway(*words(given, out, *keys, *how))
        assert code == 2 and "spillway export" in said and "--overwrite" in said, said
    assert (tmp_path / "storage" / "spillway.volume").stat().st_mtime_ns == before
    assert spillway("export", str(out), "--to", str(tmp_path / "elsewhere"))[0] == 0
    code, said = spillway(*words(given, out, *keys, "--overwrite"))
    assert code == 0, said
    assert not list((tmp_path / "storage").iterdir()) and not (out / "spillway" / "left").exists()


def test_a_manifest_lies_beside_the_volume_where_output_dir_takes_no_file(
    given: Path, undisturbed: Path, shim: Path, tmp_path: Path
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    keys = [*KEYS, *on(tmp_path / "storage", ON_PATH, "none")]
    code, said = spillway(*words(given, out, *keys), FULL_ALSO="manifest.bin", **full(shim, out))
    assert code == 1 and "spillway export" in said, said
    assert names(tmp_path / "storage") == ["spillway.left", "spillway.volume"]
    assert spillway("export", str(out), "--to", str(elsewhere))[0] == 0
    assert model(elsewhere) == model(undisturbed)


def test_a_run_in_memory_says_what_becomes_of_it(given: Path, undisturbed: Path, shim: Path, tmp_path: Path) -> None:
    """The model without its state takes a sixth of the room; where that fails, too, nothing is left to do."""
    out = tmp_path / "out"
    code, said = spillway(*words(given, out, *KEYS), **full(shim, out, part="exp_avg"))
    assert code == 1 and "No space left" in said and f"the model of step 4 alone is saved in {out}" in said, said
    assert model(out) == model(undisturbed) and not list(out.glob(".tmp-*"))
    code, said = spillway(*words(given, tmp_path / "none", *KEYS), **full(shim, tmp_path / "none"))
    assert code == 1 and "No space left" in said and "lost with this process" in said, said


def test_a_run_in_memory_is_saved_in_a_storage_directory_that_has_room(
    given: Path, undisturbed: Path, shim: Path, tmp_path: Path
) -> None:
    out, keys = tmp_path / "out", [*KEYS, *on(tmp_path / "storage", "dram", "none")]
    code, said = spillway(*words(given, out, *keys), **full(shim, out))
    place = tmp_path / "storage" / "out-checkpoint-4"
    assert code == 1 and f"step 4 is saved in {place} instead" in said, said
    assert model(place) == model(undisturbed)
    code, said = spillway(
        *words(given, tmp_path / "on", *KEYS, "--max_steps", "5", "--resume_from_checkpoint", str(place))
    )
    assert code == 0 and "going on after step 4" in said, said


FAILING_LOOP = """
import sys
import spillway
from pathlib import Path
from test_loop import batches, keys
given, out, storage, elsewhere = map(Path, sys.argv[1:])
session = spillway.Session(keys(given, storage=f"{storage},capacity=256MiB", placement="path", durability="none",
                                output_dir=out)).open()
for step in batches(3):
    session.step(step)
try:
    session.save()
except spillway.SpillwayError as error:
    print(error)
if elsewhere.name == "saved":
    session.save(elsewhere)
session.close()
"""


@pytest.mark.parametrize("how", ["saved", "exported"])
def test_a_session_whose_save_fails_still_has_the_state(given: Path, shim: Path, tmp_path: Path, how: str) -> None:
    storage, out, place = tmp_path / "storage", tmp_path / "out", tmp_path / how
    storage.mkdir()
    script = ["-c", FAILING_LOOP, str(given), str(out), str(storage), str(place)]
    process = apart(*script, env_more={"PYTHONPATH": PYTHONPATH} | full(shim, out))
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    assert "No space left" in shown and "spillway export" in shown, shown
    if how == "saved":
        assert not list(storage.iterdir()) and (place / "spillway" / "files.json").is_file()
    else:
        code, said = spillway("export", str(out), "--to", str(place))
        assert code == 0 and "step 3" in said, said
    assert (place / "model.safetensors").is_file() and (place / "spillway" / "exp_avg.safetensors").is_file()


# ---- a file system that is too small


def test_a_plan_counts_what_is_saved(given: Path, tmp_path: Path) -> None:
    """Checkpoints of every one of a hundred thousand steps are more than any file system has."""
    keys = ["--max_steps", "100000", "--save_steps", "1", "--save_strategy", "steps"]
    for verb in ("plan", "train"):
        code, said = spillway(*words(given, tmp_path / "out", *keys, verb=verb))
        assert code == 3 and "does not fit on the file system of output_dir" in said, said
        assert "--save_total_limit" in said and "--save_steps" in said and not (tmp_path / "out").exists()
    code, said = spillway(*words(given, tmp_path / "out", *keys, "--save_total_limit", "2", verb="plan"), "--json")
    assert code == 0, said
    saving = json.loads(said[said.index("{") : said.rindex("}") + 1])["saving"]
    assert saving["checkpoints_at_once"] == 3 and saving["bytes"] >= 3 * saving["checkpoint_bytes"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place]).returncode:
        lacks("mount", "no file system can be mounted here (root is needed)")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_volume_leaves_room_for_what_is_saved(given: Path, small: Path) -> None:
    """It was given all that was free; now the model fits beside it, or the run is refused before it begins."""
    (small / "storage").mkdir()
    keys = [*KEYS, "--storage", str(small / "storage"), "--placement", ON_PATH, "--durability", "none"]
    keys += ["--activation_spill", "never"]  # or the volume is as large as the CPU was busy
    code, said = spillway(*words(given, small / "out", *keys))
    assert code == 0 and "Saving takes up to" in said, said
    assert model(small / "out")
    (volume,) = (
        tier for tier in json.loads((small / "out" / "plan.json").read_text())["tiers"] if tier["name"] == "path:0"
    )
    shutil.rmtree(small / "out")
    room = int(volume["planned_peak"] / 0.9) + (1 << 20)  # the volume fits, the checkpoint does not
    with open(small / "hog", "wb") as hog:
        os.posix_fallocate(hog.fileno(), 0, shutil.disk_usage(small).free - room)
    for verb in ("plan", "train"):
        code, said = spillway(*words(given, small / "out", *keys, verb=verb))
        assert code == 3 and str(small) in said and "output_dir" in said, said
    assert not (small / "out").exists() and not list((small / "storage").iterdir())


def test_a_file_system_that_fills_up_meanwhile(given: Path, undisturbed: Path, small: Path, tmp_path: Path) -> None:
    """Really full, from the first step on; what is left to small files goes on being written."""
    (small / "storage").mkdir()
    out = small / "out"
    keys = [*KEYS, "--storage", str(small / "storage"), "--placement", ON_PATH, "--durability", "none"]
    process = apart("-m", "spillway", *words(given, out, *keys))
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        pass
    with open(small / "hog", "wb") as hog:
        os.posix_fallocate(hog.fileno(), 0, max(1, shutil.disk_usage(small).free - (128 << 10)))
    said = "".join(process.communicate(timeout=LIMIT))
    if process.returncode == 0:
        pytest.skip("the run had ended before its file system was full")
    assert process.returncode == 1 and "spillway export" in said, said
    code, said = spillway("export", "--output_dir", str(out), "--to", str(tmp_path / "elsewhere"))
    assert code == 0, said
    assert model(tmp_path / "elsewhere") == model(undisturbed)


# ---- killed in a save

SAVING_TWICE = """
import os, shutil, signal, sys
import spillway
from pathlib import Path
from test_loop import batches, keys
given, place, snapshots, dies_at = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
WATCHED = ("open", "os.rename", "os.remove", "os.rmdir", "os.link", "os.mkdir", "shutil.rmtree", "exchange")
seen = 0
watching = False
def see(event, given):
    global seen, watching
    if not watching or event not in WATCHED or str(snapshots) in str(given):
        return
    watching = False
    seen += 1
    if seen == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if dies_at == 0 and place.is_dir():
        shutil.copytree(place, snapshots / str(seen))
    watching = True
sys.addaudithook(see)
from spillway.output import checkpoints
exchange = getattr(checkpoints, "exchange", None)
def exchanged(*names):
    sys.audit("exchange", *names)
    found = exchange(*names)
    sys.audit("exchange", *names)
    return found
checkpoints.exchange = exchanged
session = spillway.Session(keys(given)).open()
for number, step in enumerate(batches(2)):
    session.step(step)
    watching = number == 1
    session.save(place)
    watching = False
    shutil.copytree(place, snapshots / f"save {number + 1}")
print(seen)
session.close()
"""


def twice(given: Path, place: Path, snapshots: Path, dies_at: int) -> tuple[int, str, str]:
    """Exit code, and what was said."""
    snapshots.mkdir()
    script = ["-c", SAVING_TWICE, str(given), str(place), str(snapshots), str(dies_at)]
    process = apart(*script, env_more={"PYTHONPATH": PYTHONPATH})
    shown, error = process.communicate(timeout=LIMIT)
    return process.returncode, shown, error


def content(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_a_save_over_another_is_there_whole_or_not_at_all(given: Path, tmp_path: Path) -> None:
    """The directory as it is at every call that opens, makes, renames or removes a file in the second save; and at some
    of them the process is killed for real."""
    snapshots = tmp_path / "snapshots"
    code, shown, error = twice(given, tmp_path / "place", snapshots, dies_at=0)
    assert code == 0, error
    calls = int(shown)
    first, second = content(snapshots / "save 1"), content(snapshots / "save 2")
    assert first != second and calls > 20
    ends = [content(snapshots / str(number)) for number in range(1, calls + 1) if (snapshots / str(number)).exists()]
    assert len(ends) == calls and all(found in (first, second) for found in ends)
    last_of_first = max(number for number, found in enumerate(ends, start=1) if found == first)
    for number, instant in enumerate((calls // 2, last_of_first, last_of_first + 1, calls)):
        place = tmp_path / f"killed {number}"
        assert twice(given, place, tmp_path / f"none {number}", dies_at=instant)[0] == -signal.SIGKILL
        assert content(place) in (first, second), instant
    keys = ["--resume_from_checkpoint", str(place), *KEYS]
    code, said = spillway(*words(given, tmp_path / "on", *keys))
    assert code == 2 and "the run was started with" in said, said  # it is read, and is of another one


def test_a_mixture_of_two_saves_is_refused_by_name(given: Path, undisturbed: Path, tmp_path: Path) -> None:
    assert real_runs.here(given, tmp_path / "shorter", "--max_steps", "2") == 0
    other, mixed = last_checkpoint(tmp_path / "shorter"), tmp_path / "mixed"
    for name in ("model.safetensors", "spillway/exp_avg.safetensors", "spillway/run.json"):
        shutil.copytree(undisturbed / "checkpoint-4", mixed)
        shutil.copyfile(other / name, mixed / name)
        again = words(given, tmp_path / "again", *KEYS, "--max_steps", "5", "--resume_from_checkpoint", str(mixed))
        code, said = spillway(*again)
        assert code == 2 and str(mixed) in said and Path(name).name in said, said
        assert not (tmp_path / "again").exists()
        (mixed / "spillway" / "files.json").unlink()  # as a release before this one left it
        if name == "model.safetensors":
            assert spillway(*again)[0] == 0
            shutil.rmtree(tmp_path / "again")
        shutil.rmtree(mixed)


@pytest.mark.parametrize(
    ("durability", "there"),
    [
        ("none", (".old-checkpoint-2", ".tmp-checkpoint-2")),
        pytest.param("none", (".old-checkpoint-2",), marks=pytest.mark.nightly),
        ("step", (".old-checkpoint-2", ".tmp-saving/checkpoint-2")),
    ],
)
def test_a_checkpoint_that_lost_its_name_gets_it_back(
    given: Path, tmp_path: Path, durability: str, there: tuple[str, ...]
) -> None:
    """As a process leaves it that is killed between two renames: the old one as .old-, the new one as .tmp-."""
    out, keys = tmp_path / "out", [*KEYS, *on(tmp_path / "storage", ON_PATH, durability)]
    code, said = spillway(*words(given, out, *keys, "--max_steps", "2"))
    assert code == 0, said
    expected = content(out / "checkpoint-2")
    for name in there:
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copytree(out / "checkpoint-2", out / name)
    shutil.rmtree(out / "checkpoint-2")
    code, said = spillway(*words(given, out, *keys, "--resume_from_checkpoint", "true"))
    assert code == 0 and "going on after step 2" in said, said
    assert [step for step, _ in directory.checkpoints(out)] == [2, 4] and not list(out.glob(".old-*"))
    assert content(out / "checkpoint-2") == expected


# ---- checkpoints that were moved away


@pytest.mark.parametrize("durability", ["none", "step"])
def test_a_checkpoint_that_was_moved_and_linked_stays_where_it_is(given: Path, tmp_path: Path, durability: str) -> None:
    out, archive = tmp_path / "out", tmp_path / "archive"
    keys = [*on(tmp_path / "storage", ON_PATH, durability), "--save_steps", "1", "--save_strategy", "steps"]
    keys += ["--logging_steps", "1"]
    assert spillway(*words(given, out, *keys, "--max_steps", "2"))[0] == 0
    shutil.move(out / "checkpoint-1", archive)
    (out / "checkpoint-1").symlink_to(archive)
    before = content(archive)
    more = [*keys, "--resume_from_checkpoint", "true", "--max_steps", "4", "--save_total_limit", "2"]
    code, said = spillway(*words(given, out, *more))
    assert code == 0 and "checkpoint-1 is a link" in said and str(archive) in said, said
    assert [path.name for _, path in directory.checkpoints(out)] == ["checkpoint-3", "checkpoint-4"]
    assert model(archive) == before["model.safetensors"]
    if durability == "none":
        assert content(archive) == before
        again = words(given, tmp_path / "again", "--max_steps", "2", "--resume_from_checkpoint", str(archive))
        assert spillway(*again)[0] == 0
    else:  # whose places are used again
        assert "spillway" not in names(archive) and not os.path.lexists(out / "checkpoint-1")
        assert spillway("verify", str(out))[0] == 0


def test_going_back_passes_over_links(given: Path, tmp_path: Path) -> None:
    out, archive = tmp_path / "out", tmp_path / "archive"
    keys = ["--save_steps", "1", "--save_strategy", "steps", "--max_steps", "3", "--logging_steps", "1"]
    assert spillway(*words(given, out, *keys))[0] == 0
    expected = model(out)
    shutil.move(out / "checkpoint-3", archive)
    (out / "checkpoint-3").symlink_to(archive)
    code, said = spillway(*words(given, out, *keys, "--resume_from_checkpoint", str(out / "checkpoint-1")))
    assert code == 0 and "checkpoint-3 is a link" in said, said
    assert model(archive) == expected == model(out) and not (out / "checkpoint-3").is_symlink()
