"""Runs whose steps are durable, through `spillway.cli.main` with the fake session: nothing is lost."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_runs
from breadth import some
from fake_runs import Run
from fake_session import FakeSession
from spillway.output.records import rows
from spillway.output.state import RunState

KEYS = ["--eval_steps", "2", "--logging_steps", "3", "--save_steps", "4", "--learning_rate", "1e-3"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "storage").mkdir()
    return tmp_path / "storage"


@pytest.fixture
def run(inputs: Path, out: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with fake_runs.runs(inputs, out, monkeypatch) as call:

        def on_storage(*words: str, verb: str = "train", **more: Any) -> int:
            given = ["--storage", str(storage), "--eval_dataset", str(inputs / "held_out.jsonl")]
            return call(*(given if verb == "train" else []), *words, verb=verb, **more)

        yield on_storage


def metrics(path: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "path_bytes"} for row in rows(path / "metrics.jsonl")]


def final(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def checkpoints(path: Path) -> list[str]:
    return sorted((name for name in names(path) if "checkpoint" in name), key=lambda name: int(name.split("-")[-1]))


def pinned(storage: Path) -> int:
    return len(json.loads((storage / "spillway.volume").read_text())["pinned"])


def whole(run: Run, out: Path, storage: Path, tmp_path: Path, *keys: str) -> Path:
    """The same run, never interrupted; moved out of the way."""
    assert run(*keys) == 0
    os.rename(out, tmp_path / "whole")
    (storage / "spillway.volume").unlink()
    FakeSession.opened.clear()
    return tmp_path / "whole"


def same(out: Path, other: Path) -> None:
    assert final(out) == final(other) and metrics(out) == metrics(other) and checkpoints(out) == checkpoints(other)
    for name in checkpoints(out):
        for file in ("model.safetensors", "trainer_state.json", "spillway/run.json"):
            assert (out / name / file).read_bytes() == (other / name / file).read_bytes(), (name, file)


MOMENTS = [f"{kind}:{step}" for kind in ("step", "commit") for step in (1, 2, 3, 4, 7, 12)]
MOMENTS += ["evaluate:2", "evaluate:4", "save:4", "save:8", "save:12", "commit:0"]
EACH_KIND = ["step:1", "step:3", "commit:0", "commit:1", "commit:4", "commit:12", "evaluate:2", "save:4", "save:12"]


@pytest.mark.parametrize("moment", some(MOMENTS, EACH_KIND))
def test_a_crash_anywhere_loses_no_finished_step(
    run: Run, out: Path, storage: Path, tmp_path: Path, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = whole(run, out, storage, tmp_path, *KEYS)
    assert run(*KEYS, fake_fail=moment) == 1
    assert names(storage) == ([] if moment == "commit:0" else ["spillway.volume"])
    capsys.readouterr()
    kind, _, number = moment.partition(":")
    step = int(number) - (kind == "step")
    how = "auto" if step == 0 else "true"
    assert run("--resume_from_checkpoint", how, *KEYS) == 0
    shown = capsys.readouterr().out
    if step:
        assert f"Recovered step {step}." in shown
        assert f"going on after step {step}, from the storage paths" in shown
    assert FakeSession.opened[-1].steps - len(FakeSession.opened[-1].steps_here) == step
    same(out, other)


def test_a_signal_needs_no_checkpoint(
    run: Run, out: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = whole(run, out, storage, tmp_path, *KEYS)
    assert run(*KEYS, fake_signal="step:5:SIGTERM") == 143
    error = capsys.readouterr().err
    assert "step 5 of 12 is saved on its storage paths" in error and f"spillway resume {out}" in error
    assert checkpoints(out) == ["checkpoint-4"] and 5 in FakeSession.opened[-1].settled
    assert run(verb="resume") == 0
    same(out, other)


def test_with_durability_checkpoint_a_signal_saves_and_a_crash_goes_back(
    run: Run, out: Path, storage: Path, tmp_path: Path
) -> None:
    keys = [*KEYS, "--durability", "checkpoint"]
    other = whole(run, out, storage, tmp_path, *keys)
    assert run(*keys, fake_signal="step:5:SIGINT") == 130
    assert checkpoints(out) == ["checkpoint-4", "checkpoint-5"]
    assert run(verb="resume", fake_fail="step:10") == 1
    assert checkpoints(out)[-1] == "checkpoint-8"
    assert run(verb="resume") == 0
    assert len(FakeSession.opened[-1].steps_here) == 4
    assert final(out) == final(other) and metrics(out) == metrics(other)


def test_every_listed_checkpoint_can_be_gone_back_to(run: Run, out: Path, storage: Path) -> None:
    assert run(*KEYS) == 0
    before = final(out), metrics(out), checkpoints(out)
    assert pinned(storage) == 3 and before[2] == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]
    for name in ("checkpoint-8", "checkpoint-4"):
        assert run("--resume_from_checkpoint", str(out / name), verb="resume") == 0
        assert (final(out), metrics(out), checkpoints(out)) == before
        assert pinned(storage) == 3


def test_a_checkpoint_that_goes_gives_up_its_places_when_it_is_gone(run: Run, out: Path, storage: Path) -> None:
    original = FakeSession.release
    seen = []

    def release(session: FakeSession, manifest: bytes) -> None:
        seen.append([path.read_bytes() for path in out.rglob("manifest.bin")].count(manifest))
        original(session, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeSession, "release", release)
        assert run("--save_steps", "2", "--save_total_limit", "2") == 0
    assert FakeSession.opened[-1].keeping.checkpoints == 3
    assert checkpoints(out) == ["checkpoint-10", "checkpoint-12"] and pinned(storage) == 2
    assert seen == [0] * 4
    assert run("--resume_from_checkpoint", str(out / "checkpoint-10"), verb="resume") == 0
    assert FakeSession.opened[-1].released and pinned(storage) == 2


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ([], 0),
        (["--save_steps", "5"], 2),
        (["--save_steps", "6"], 1),
        (["--save_steps", "1", "--save_total_limit", "3"], 4),
        (["--save_steps", "5", "--save_total_limit", "3"], 2),
        (["--save_strategy", "epoch"], 1),
        (["--save_steps", "2", "--save_only_model"], 0),
        (["--save_steps", "2", "--durability", "none"], 0),
        (["--save_steps", "2", "--save_whole_steps", "4"], 3),
        (["--save_whole_steps", "4"], 0),
    ],
)
def test_how_many_checkpoints_the_plan_holds_room_for(run: Run, keys: list[str], count: int) -> None:
    assert run(*keys) == 0
    keeping = FakeSession.opened[-1].keeping
    assert keeping.checkpoints == count and keeping.keep is ("none" not in keys)


def test_checkpoints_that_stand_alone_pass_the_limit_until_a_newer_one_is_there(
    run: Run, out: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--save_steps", "2", "--save_whole_steps", "5", "--save_total_limit", "1"]
    assert run(*keys, fake_fail="step:9") == 1
    assert checkpoints(out) == ["checkpoint-5", "checkpoint-8"] and pinned(storage) == 1
    assert run(verb="resume") == 0
    assert checkpoints(out) == ["checkpoint-10", "checkpoint-12"] and pinned(storage) == 1
    assert (out / "checkpoint-10" / "spillway" / "state.json").exists()
    capsys.readouterr()
    assert run(*keys, "--save_only_model", "--overwrite") == 2
    assert "save_whole_steps: its checkpoints hold the state, and save_only_model" in capsys.readouterr().err


def test_a_checkpoint_that_stands_alone_goes_on_when_the_volume_is_gone(
    run: Run, out: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [*KEYS, "--save_whole_steps", "5"]
    other = whole(run, out, storage, tmp_path, *keys)
    assert run(*keys, fake_fail="step:9") == 1
    assert checkpoints(out) == ["checkpoint-4", "checkpoint-5", "checkpoint-8"]
    (storage / "spillway.volume").unlink()
    capsys.readouterr()
    for asked in ("true", "auto"):
        assert run("--resume_from_checkpoint", asked, verb="resume") == 2
        assert f"--resume_from_checkpoint {out / 'checkpoint-5'}" in capsys.readouterr().err
    assert run("--resume_from_checkpoint", str(out / "checkpoint-5"), verb="resume", fake_fail="step:11") == 1
    assert "checkpoint-4 stays as a model" in " ".join(capsys.readouterr().out.split())
    assert not (out / "checkpoint-4" / "spillway").exists() and pinned(storage) == 1
    assert run(verb="resume") == 0
    assert final(out) == final(other) and metrics(out) == metrics(other)


def test_a_run_that_is_there_is_refused_and_overwritten_when_asked(
    run: Run, out: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--logging_steps", "10", fake_fail="step:3") == 1
    assert names(out) == ["config.yaml", "metrics.jsonl", "plan.json", "spillway"]
    capsys.readouterr()
    before = (storage / "spillway.volume").read_bytes()
    assert run() == 2
    error = capsys.readouterr().err
    assert "holds a run already (spillway.volume)" in error and "--resume_from_checkpoint true" in error
    assert "--overwrite" in error and (storage / "spillway.volume").read_bytes() == before
    assert run("--overwrite") == 0
    assert len(FakeSession.opened[-1].steps_here) == 12


def test_nothing_to_resume_is_bad_input_and_auto_starts_afresh(
    run: Run, out: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--resume_from_checkpoint", "true") == 2
    assert "no checkpoint to resume from" in capsys.readouterr().err and not out.exists()
    assert run("--resume_from_checkpoint", "auto", fake_fail="step:3") == 1
    content = json.loads((storage / "spillway.volume").read_text())
    (storage / "spillway.volume").write_text(json.dumps(content | {"newest": None}))
    assert run("--resume_from_checkpoint", "true") == 2
    assert "storage paths hold no finished step" in capsys.readouterr().err
    assert names(storage) == ["spillway.volume"]
    assert run("--resume_from_checkpoint", "auto") == 0
    assert len(FakeSession.opened[-1].steps_here) == 12


def test_a_run_that_never_began_leaves_nothing(run: Run, out: Path, storage: Path) -> None:
    for moment in ("start:0", "commit:0"):
        assert run(fake_fail=moment) == 1
        assert names(storage) == [] and not (out / "metrics.jsonl").exists()
    assert run("--overwrite", fake_signal="start:0:SIGINT") == 130
    assert names(storage) == []
    assert run() == 0


def test_a_moved_directory_finds_its_volumes(run: Run, out: Path, storage: Path, tmp_path: Path) -> None:
    other = whole(run, out, storage, tmp_path, *KEYS)
    assert run(*KEYS, fake_fail="step:6") == 1
    os.rename(out, tmp_path / "moved")
    assert run(verb="resume", at=tmp_path / "moved") == 0
    same(tmp_path / "moved", other)
    first, second = (session.keeping.run for session in FakeSession.opened)
    assert first == second and first.startswith(str(out))


def test_a_copied_checkpoint_is_no_more_than_its_places(
    run: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*KEYS) == 0
    shutil.copytree(out / "checkpoint-4", tmp_path / "kept" / "checkpoint-4")
    words = ["--resume_from_checkpoint", str(tmp_path / "kept" / "checkpoint-4")]
    assert run(*words, "--output_dir", str(tmp_path / "new"), "--storage", str(tmp_path)) == 2
    assert "spillway export" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.parametrize(("key", "value"), [("seed", "1"), ("max_length", "32"), ("durability", "none")])
def test_what_a_resume_cannot_change(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    """Found without any checkpoint, before anything is opened."""
    assert run(fake_fail="step:3") == 1
    capsys.readouterr()
    assert run(f"--{key}", value, verb="resume") == 2
    assert capsys.readouterr().err.startswith(f"spillway: {key}: the run")
    assert len(FakeSession.opened) == 1


def test_a_resume_keeps_the_durability_it_had(run: Run) -> None:
    assert run("--durability", "checkpoint", "--save_steps", "4", fake_fail="step:6") == 1
    assert run("--durability", "step", verb="resume", fake_fail="step:8") == 1
    assert run(verb="resume") == 0
    assert [session.config.durability for session in FakeSession.opened] == ["checkpoint", "step", "step"]
    assert len(FakeSession.opened[-1].steps_here) == 12 - 7


def test_the_end_says_what_stays_and_how_to_free_it(
    run: Run, out: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    shown = capsys.readouterr().out
    assert f"Its state stays in {storage / 'spillway.volume'} (" in shown and "deleting the checkpoint dir" in shown
    assert names(storage) == ["spillway.volume"]
    assert run("--overwrite", "--save_only_model") == 0
    assert "Its state stays" not in capsys.readouterr().out and names(storage) == []
    assert not list(out.rglob("manifest.bin"))
    assert run("--overwrite", "--durability", "none") == 0
    assert names(storage) == [] and (out / "checkpoint-12" / "spillway" / "state.json").exists()


def test_a_finished_run_can_be_taken_further(run: Run, out: Path, storage: Path, tmp_path: Path) -> None:
    keys = ["--lr_scheduler_type", "constant"]
    other = whole(run, out, storage, tmp_path, *keys)
    assert run(*keys, "--max_steps", "5") == 0
    assert run("--max_steps", "-1", verb="resume") == 0
    assert final(out) == final(other) and len(FakeSession.opened[-1].steps_here) == 7


def test_an_interrupted_run_that_keeps_models_only_goes_on(run: Run, out: Path, storage: Path, tmp_path: Path) -> None:
    keys = ["--save_only_model", "--save_steps", "4"]
    other = whole_only(run, out, storage, tmp_path, *keys)
    assert run(*keys, fake_signal="step:6:SIGINT") == 130
    assert checkpoints(out) == ["checkpoint-4"] and names(storage) == ["spillway.volume"]
    assert run(verb="resume", fake_fail="save:12") == 1
    assert run(verb="resume") == 0
    assert final(out) == final(other) and metrics(out) == metrics(other) and names(storage) == []


def whole_only(run: Run, out: Path, storage: Path, tmp_path: Path, *keys: str) -> Path:
    assert run(*keys) == 0 and names(storage) == []
    os.rename(out, tmp_path / "whole")
    return tmp_path / "whole"


def test_wear_is_shown_and_counted_over_the_life_of_a_run(
    run: Run, out: Path, storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--storage", f"{storage},endurance=1MB"]
    assert run(fake_fail="step:5") == 1
    capsys.readouterr()
    assert run(*keys, "--storage", f"{storage},endurance=1MB", verb="resume") == 2  # twice the same
    assert run(*keys, verb="resume") == 0
    shown = capsys.readouterr().out
    assert "500 B written (5.86 KiB in all, 0.60 % of its rated endurance)" in shown
    summary = json.loads((out / "summary.json").read_text())
    assert summary["written"] == {"path:0": 12 * 500} and summary["endurance_used"] == {"path:0": 0.006}
    assert summary["durability"] == "step"


def test_the_first_error_is_the_one_that_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = FakeSession.close

    def failing(session: FakeSession) -> None:
        close(session)
        raise OSError(5, "what was committed cannot be flushed", "drive")

    monkeypatch.setattr(FakeSession, "close", failing)
    assert run(fake_fail="step:3") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert run("--overwrite") == 1
    assert "cannot be flushed" in capsys.readouterr().err


def test_losses_listed_by_an_earlier_release_are_read(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.7, 1e-17]
    content = {"format": 1, "step": 4, "epoch": 0.5, "tokens_seen": 9, "losses": values, "fixed": {"seed": 1}}
    (tmp_path / "spillway").mkdir()
    (tmp_path / "spillway" / "run.json").write_text(json.dumps(content))
    state = RunState.load(tmp_path)
    assert (state.step, state.fixed, state.losses.value()) == (4, {"seed": 1}, math.fsum(values) / 4)
    state.save(tmp_path)
    assert RunState.load(tmp_path) == state
