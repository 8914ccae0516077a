"""Rules of output_dir, checkpoints put in place at once, and the rows of metrics.jsonl."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spillway.config import CONFIG_HEADER, Config, resolve
from spillway.errors import InputError
from spillway.output import checkpoints, directory, records, saved
from spillway.output.directory import RUN_STATE, Start


def configured(output_dir: Path, **keys: Any) -> Config:
    return resolve({"model": "of/hub", "output_dir": str(output_dir)}, keys)


def checkpoint(output_dir: Path, step: int, resumable: bool = True) -> Path:
    path = output_dir / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(f"weights {step}")
    (path / "config.json").write_text("{}")
    if resumable:
        (path / RUN_STATE).parent.mkdir()
        (path / RUN_STATE).write_text("{}")
    return path


def unexpected(manifest: bytes) -> None:
    raise AssertionError(f"nothing is pinned, but {manifest!r} was released")


def refused(config: Config) -> str:
    with pytest.raises(InputError) as caught:
        directory.decide(config)
    return str(caught.value)


@pytest.mark.parametrize("there", [False, True])
def test_an_empty_or_missing_directory_is_a_fresh_start(tmp_path: Path, there: bool) -> None:
    output_dir = tmp_path / "a" / "b"
    if there:
        output_dir.mkdir(parents=True)
        (output_dir / "notes.md").write_text("mine")
    for asked in (None, "auto"):
        start = directory.decide(configured(output_dir, resume_from_checkpoint=asked))
        assert start == Start(output_dir, None, clear=False)
    assert output_dir.exists() is there


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "model.safetensors", "config.json", "checkpoint-5"])
def test_a_run_is_refused_and_overwritten_only_when_asked(tmp_path: Path, name: str) -> None:
    if name.startswith("checkpoint"):
        checkpoint(tmp_path, 5, resumable=False)
    else:
        (tmp_path / name).write_text("{}")
    (tmp_path / "notes.md").write_text("mine")
    message = refused(configured(tmp_path))
    assert "output_dir" in message and name in message and "--overwrite" in message
    assert (tmp_path / name).exists()
    start = directory.decide(configured(tmp_path, overwrite=True))
    assert (tmp_path / name).exists()
    directory.prepare(start, fresh=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_a_run_that_ended_before_its_first_step_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG_HEADER)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    assert directory.decide(configured(tmp_path)).clear
    (tmp_path / "config.yaml").write_text("max_steps: 3\n")
    assert "config.yaml" in refused(configured(tmp_path))


def test_resume_finds_the_newest_checkpoint_that_can_be_resumed(tmp_path: Path) -> None:
    assert "no checkpoint" in refused(configured(tmp_path, resume_from_checkpoint=True))
    checkpoint(tmp_path, 9)
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 11, resumable=False)
    (tmp_path / ".tmp-checkpoint-12").mkdir()
    for asked in (True, "auto"):
        assert directory.decide(configured(tmp_path, resume_from_checkpoint=asked)) == Start(
            tmp_path, tmp_path / "checkpoint-10", fresh=False
        )
    assert "checkpoint-11" in refused(configured(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-11")))
    assert "no directory" in refused(configured(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-12")))


def test_auto_starts_afresh_after_a_crash_but_never_over_weights(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert directory.decide(configured(tmp_path, resume_from_checkpoint="auto")).clear
    (tmp_path / "model.safetensors").write_text("weights")
    assert "--overwrite" in refused(configured(tmp_path, resume_from_checkpoint="auto"))


def test_a_checkpoint_of_another_run_needs_an_empty_directory(tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path / "theirs", 5)
    ours = tmp_path / "ours"
    assert directory.decide(configured(ours, resume_from_checkpoint=str(theirs))).resume == theirs
    checkpoint(ours, 3)
    assert "another run" in refused(configured(ours, resume_from_checkpoint=str(theirs)))


def test_going_back_removes_what_came_later(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        checkpoint(tmp_path, step)
    rows = [{"step": step, "loss": 0.1 * step} for step in range(1, 8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 8, "lo')
    for name in ("model.safetensors", "summary.json", "notes.md"):
        (tmp_path / name).write_text("x")
    directory.prepare(Start(tmp_path, tmp_path / "checkpoint-4"), fresh=False)
    removed = checkpoints.go_back(tmp_path, 4, unexpected)
    assert removed == ["checkpoint-6", "3 rows of metrics.jsonl after step 4"]
    assert list(records.rows(tmp_path / "metrics.jsonl")) == rows[:4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-2",
        "checkpoint-4",
        "metrics.jsonl",
        "notes.md",
    ]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(configured(tmp_path / "file"))
    assert "is a file" in refused(configured(tmp_path / "file" / "below"))


def test_the_model_is_never_written_over(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, 5)
    assert "own directory" in refused(configured(model, model=str(model), overwrite=True))
    assert "would remove the model" in refused(configured(tmp_path, model=str(model), overwrite=True))
    assert model.exists()


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(text: str) -> Any:
        return lambda place: (place / "model.safetensors").write_text(text)

    def fail(place: Path) -> None:
        (place / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    written = checkpoints.write(tmp_path, 3, fill("first"), unexpected)
    with pytest.raises(OSError, match="No space"):
        checkpoints.write(tmp_path, 3, fail, unexpected)
    assert (written / "model.safetensors").read_text() == "first"
    checkpoints.write(tmp_path, 3, fill("second"), unexpected)
    assert (written / "model.safetensors").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_a_manifest_is_given_up_when_its_directory_is_gone(tmp_path: Path) -> None:
    seen: list[tuple[bytes, list[str]]] = []

    def release(manifest: bytes) -> None:
        seen.append((manifest, sorted(path.name for path in tmp_path.iterdir())))

    for step in (1, 2, 3):
        (checkpoint(tmp_path, step) / directory.MANIFEST).write_bytes(b"places of %d" % step)
    assert [step for step, _ in directory.manifests(tmp_path)] == [1, 2, 3]
    checkpoints.keep_newest(tmp_path, 2, release)
    assert seen.pop() == (b"places of 1", ["checkpoint-2", "checkpoint-3"])

    def fill(place: Path) -> None:
        (place / "spillway").mkdir()
        (place / directory.MANIFEST).write_bytes(b"new places")

    checkpoints.write(tmp_path, 3, fill, release)
    assert seen.pop() == (b"places of 3", ["checkpoint-2", "checkpoint-3"])
    checkpoints.go_back(tmp_path, 1, release)
    assert seen == [(b"new places", ["checkpoint-2"]), (b"places of 2", [])]


def test_a_folder_that_cannot_be_listed_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would get their names without having been flushed."""
    scandir = os.scandir

    def broken(place: Any) -> Any:
        if str(place).endswith("spillway"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))
        return scandir(place)

    def fill(place: Path) -> None:
        (place / "spillway").mkdir()
        (place / "spillway" / "run.json").write_text("{}")
        monkeypatch.setattr(os, "scandir", broken)

    with pytest.raises(OSError, match="spillway"):
        checkpoints.write(tmp_path, 3, fill, unexpected)
    assert not (tmp_path / "checkpoint-3").exists()


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 20, 100):
        checkpoint(tmp_path, step)
    checkpoints.keep_newest(tmp_path, None, unexpected)
    assert len(directory.checkpoints(tmp_path)) == 4
    checkpoints.keep_newest(tmp_path, 2, unexpected)
    assert [step for step, _ in directory.checkpoints(tmp_path)] == [20, 100]
    (tmp_path / "checkpoint-100" / directory.MANIFEST).write_bytes(b"places")
    checkpoints.keep_newest(tmp_path, 1, unexpected, keeps_whole=True)
    assert [step for step, _ in directory.checkpoints(tmp_path)] == [20, 100]
    checkpoint(tmp_path, 200)
    checkpoints.keep_newest(tmp_path, 1, lambda manifest: None, keeps_whole=True)
    assert [step for step, _ in directory.checkpoints(tmp_path)] == [200]


def test_the_final_model_is_linked_and_old_shards_go(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_text("old")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "notes.md").write_text("mine")
    source = checkpoint(tmp_path, 7)
    (source / "trainer_state.json").write_text("{}")
    for _ in range(2):
        checkpoints.publish(source, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-7",
        "config.json",
        "model.safetensors",
        "notes.md",
    ]
    assert (tmp_path / "model.safetensors").samefile(source / "model.safetensors")
    assert not (tmp_path / "config.json").samefile(source / "config.json")


def test_no_list_of_digests_names_an_index_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is gone durably before the first index goes: a power cut keeps either name, whichever went first."""
    index, listed = tmp_path / "model.safetensors.index.json", tmp_path / saved.FILES
    listed.parent.mkdir()
    for path in (index, listed):
        path.write_text("{}")
    flushed: list[tuple[Path, bool, bool]] = []
    monkeypatch.setattr(directory, "flush", lambda path: flushed.append((path, listed.exists(), index.exists())))
    directory.remove_lists(tmp_path)
    assert flushed == [(listed.parent, False, True), (tmp_path, False, False)]


def test_floats_survive_the_file(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 2.0**-1074, 1e22, 5e-324, float(2**53)]
    metrics = records.Metrics(tmp_path / "metrics.jsonl")
    for value in values:
        metrics.add({"step": 1, "loss": value})
    metrics.close()
    assert [row["loss"] for row in records.rows(tmp_path / "metrics.jsonl")] == values
