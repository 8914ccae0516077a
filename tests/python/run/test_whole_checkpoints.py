"""Checkpoints of `save_whole_steps` in runs of the real engine with state on a path: the path goes, the run goes on."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import real_runs
from real_runs import here, kill_after, metrics, names, on_path, result, words
from spillway.cli import main
from spillway.config import Config
from spillway.output import checkpoints, unsaved
from spillway.run.session import EngineSession

KEYS = ["--max_steps", "10", "--save_steps", "2", "--save_whole_steps", "3", "--logging_steps", "1", "--packing"]
LORA = ["--method", "lora", "--lora_r", "4", "--lora_target_modules", "q_proj", "--lora_dropout", "0.3"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in memory, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert here(inputs, out, *KEYS) == 0
    return out


def kill_in_step(step: int, inputs: Path, tmp_path: Path, *more: str) -> Path:
    """The output directory of a run on a path that is killed in this step."""
    out = tmp_path / "out"
    kill_after("step", words(inputs, out, *KEYS, *on_path(tmp_path / "storage"), *more), calls=step)
    return out


def list_manifests(out: Path) -> list[str]:
    return sorted(path.parent.parent.name for path in out.glob("checkpoint-*/spillway/manifest.bin"))


def lose_path(tmp_path: Path) -> None:
    """A new drive is mounted in the place of the old one."""
    shutil.rmtree(tmp_path / "storage")
    (tmp_path / "storage").mkdir()


@pytest.mark.parametrize("more", [[], pytest.param(LORA, marks=pytest.mark.nightly)], ids=["full", "lora"])
def test_a_copy_goes_on_without_the_path_to_the_same_bits(inputs: Path, tmp_path: Path, more: list[str]) -> None:
    assert here(inputs, tmp_path / "whole", *KEYS, *more) == 0
    out = kill_in_step(8, inputs, tmp_path, *more)
    assert list_manifests(out) == ["checkpoint-2", "checkpoint-4"]
    shutil.copytree(out / "checkpoint-6", tmp_path / "copy")
    shutil.rmtree(out)
    shutil.rmtree(tmp_path / "storage")
    go_on = ["--resume_from_checkpoint", str(tmp_path / "copy")]
    assert here(inputs, tmp_path / "again", *KEYS, *more, *go_on) == 0
    rows, files, _ = result(tmp_path / "whole")
    assert result(tmp_path / "again")[:2] == (rows[6:], files)


def test_the_run_itself_goes_on_with_an_empty_path(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = kill_in_step(9, inputs, tmp_path)
    assert list_manifests(out) == ["checkpoint-2", "checkpoint-4", "checkpoint-8"]
    lose_path(tmp_path)
    assert main(["resume", str(out)]) == 2
    assert f"stands alone: --resume_from_checkpoint {out / 'checkpoint-6'}" in capfd.readouterr().err
    assert names(tmp_path / "storage") == [] and len(list_manifests(out)) == 3
    back = ["--resume_from_checkpoint", str(out / "checkpoint-6")]
    kill_after("step", ["resume", str(out), *back], calls=3)  # what the new volumes hold goes on, too
    assert list_manifests(out) == ["checkpoint-8"] and (out / "checkpoint-2" / "spillway.given_up").is_dir()
    assert main(["resume", str(out)]) == 0
    assert "going on after step 8, from the storage paths" in capfd.readouterr().out
    assert result(out) == result(whole)


def test_a_damaged_checkpoint_leaves_the_others_as_they_are(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = kill_in_step(9, inputs, tmp_path)
    (tmp_path / "storage").rename(tmp_path / "away")
    (tmp_path / "storage").mkdir()
    back = ["resume", str(out), "--resume_from_checkpoint", str(out / "checkpoint-6")]
    weights = out / "checkpoint-6" / "model.safetensors"
    content = weights.read_bytes()
    at = len(content) // 2
    weights.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert main(back) == 2
    assert "model.safetensors is not the file that was saved" in capfd.readouterr().err
    assert names(tmp_path / "storage") == [] and len(list_manifests(out)) == 3
    weights.write_bytes(content)
    kill_after("start", back)  # the new volumes are there, and nothing was committed to them
    assert main(back) == 0
    assert "checkpoint-4 stays as a model" in " ".join(capfd.readouterr().out.split())
    assert result(out) == result(whole)


def test_a_damaged_manifest_names_the_checkpoint_to_remove(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = kill_in_step(5, inputs, tmp_path)
    (out / "checkpoint-2" / "spillway" / "manifest.bin").write_bytes(bytes(64))
    assert main(["resume", str(out)]) == 2
    assert f"remove {out / 'checkpoint-2'}: its state cannot be found without the file" in capfd.readouterr().err
    shutil.rmtree(out / "checkpoint-2")
    assert main(["resume", str(out)]) == 0
    assert result(out) == result(whole)


def test_an_unmounted_path_is_not_taken_for_a_lost_one(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = kill_in_step(7, inputs, tmp_path)  # the newest checkpoint stands alone
    (tmp_path / "storage").rename(tmp_path / "away")
    (tmp_path / "storage").mkdir()
    assert main(["resume", str(out)]) == 2
    assert f"mount them again, or go back to a checkpoint that stands alone: --resume_from_checkpoint {out}" in (
        capfd.readouterr().err
    )
    assert names(tmp_path / "storage") == [] and list_manifests(out) == ["checkpoint-2", "checkpoint-4"]
    (tmp_path / "storage").rmdir()
    (tmp_path / "away").rename(tmp_path / "storage")
    assert main(["resume", str(out)]) == 0
    assert result(out) == result(whole)


def test_a_run_that_gave_up_its_volumes_goes_on_for_more_steps(inputs: Path, tmp_path: Path) -> None:
    """Its last checkpoint stands alone, and no path held anything later."""
    storage = [*on_path(tmp_path / "storage"), "--lr_scheduler_type", "constant"]
    assert here(inputs, tmp_path / "whole", *KEYS, "--lr_scheduler_type", "constant") == 0
    out = tmp_path / "out"
    assert here(inputs, out, *KEYS, *storage, "--max_steps", "6", "--save_steps", "6") == 0
    assert names(tmp_path / "storage") == [] and list_manifests(out) == []
    longer = words(inputs, out, *KEYS, *storage, "--save_steps", "10", "--resume_from_checkpoint", "auto")
    kill_after("step", longer, calls=2)
    (tmp_path / "storage").rename(tmp_path / "away")
    (tmp_path / "storage").mkdir()
    assert main(["resume", str(out)]) == 2
    (tmp_path / "storage").rmdir()
    (tmp_path / "away").rename(tmp_path / "storage")
    assert main(["resume", str(out)]) == 0
    assert metrics(out) == metrics(tmp_path / "whole")


def test_one_of_two_lost_paths_is_answered_by_removing_the_other_volume(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    out = kill_in_step(7, inputs, tmp_path, "--storage", f"{other},capacity=256MiB")
    shutil.rmtree(other)
    other.mkdir()
    back = ["resume", str(out), "--resume_from_checkpoint", str(out / "checkpoint-6")]
    assert main(back) == 2
    assert "If a drive is lost, remove the volumes of the others" in capfd.readouterr().err
    shutil.rmtree(tmp_path / "storage")
    (tmp_path / "storage").mkdir()
    assert main(back) == 0
    assert result(out) == result(whole)


def test_durable_checkpoints_and_those_that_stand_alone_take_turns(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = kill_in_step(8, inputs, tmp_path, "--durability", "checkpoint")
    assert list_manifests(out) == ["checkpoint-2", "checkpoint-4"]
    assert main(["resume", str(out)]) == 0
    assert f"going on after step 6, from {out / 'checkpoint-6'}" in capfd.readouterr().out
    assert result(out) == result(whole)
    assert main(["resume", str(out), "--resume_from_checkpoint", str(out / "checkpoint-4")]) == 0
    assert result(out) == result(whole) and metrics(out) == metrics(whole)
    assert main(["verify", str(out)]) == 0


def test_a_lost_volume_and_a_full_output_dir_leave_a_whole_checkpoint(
    inputs: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, storage, asked = tmp_path / "out", tmp_path / "storage", []
    commit, write, with_room = EngineSession.commit, checkpoints.write, unsaved.with_room

    def lose(session: EngineSession, state: dict[str, Any]) -> None:
        commit(session, state)
        if state["step"] == 7:
            (storage / "spillway.volume").unlink()

    def fill_up(output_dir: Path, step: int, *more: Any) -> Path:
        if step == 7:
            raise OSError(errno.ENOSPC, "No space left on device", str(output_dir))
        return write(output_dir, step, *more)

    def note(config: Config, needed: int) -> list[Path]:
        asked.append(needed)
        return with_room(config, needed)

    monkeypatch.setattr(EngineSession, "commit", lose)
    monkeypatch.setattr(checkpoints, "write", fill_up)
    monkeypatch.setattr(unsaved, "with_room", note)
    keys = ["--max_steps", "10", "--logging_steps", "1", "--packing", *on_path(storage)]
    assert here(inputs, out, *keys, "--save_whole_steps", "10", "--json", verb="plan") == 0
    planned = json.loads(capfd.readouterr().out)["saving"]["checkpoint_bytes"]
    assert here(inputs, out, *keys) == 1
    saved = storage / "out-checkpoint-7"
    assert f"step 7 is saved in {saved} instead" in " ".join(capfd.readouterr().err.split())
    assert len(asked) == 1 and asked[0] >= 0.95 * planned
    monkeypatch.undo()
    more = ["--max_steps", "10", "--logging_steps", "1", "--packing"]
    assert here(inputs, tmp_path / "again", *more, "--resume_from_checkpoint", str(saved)) == 0
    rows, files, _ = result(whole)
    assert result(tmp_path / "again")[:2] == (rows[7:], files)


def test_the_plan_counts_the_state_in_checkpoints_that_stand_alone(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def plan(*more: str) -> tuple[int, int]:
        keys = ["--max_steps", "4", "--save_steps", "1", *on_path(tmp_path / "storage"), *more]
        assert here(inputs, tmp_path / "out", *keys, "--json", verb="plan") == 0
        saving = json.loads(capfd.readouterr().out)["saving"]
        return saving["bytes"], saving["weights"]

    (manifests, weights), (one, _) = plan(), plan("--save_whole_steps", "4")
    two, _ = plan("--save_whole_steps", "2")
    state = one - manifests
    assert state > weights and two - one == pytest.approx(state, rel=0.01)
