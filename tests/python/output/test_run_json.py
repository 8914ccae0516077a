"""Every command names a damaged or missing output_dir/spillway/run.json, and the run that owns the volumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import real_runs
from native import file_bytes
from real_runs import apart, here, on_path, words
from spillway.cli import main
from spillway.output import identity
from spillway.output.directory_lock import LOCK
from spillway.output.identity import RUN

KEYS = ["--max_steps", "6", "--logging_steps", "1"]
LIMIT = 300  # seconds that a process of its own may take at most
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)
GONE = object()
DAMAGES: list[tuple[str, Any]] = [
    ("run", GONE), ("run", 7), ("run", ""), ("run", "another run"),
    ("fixed", GONE), ("fixed", []), ("fixed", {}), ("fixed", None),
    ("durability", GONE), ("durability", "stfp"), ("durability", "none"), ("durability", "checkpoint"),
    ("durability", None), ("durability", ["step"]),
    ("steps", GONE), ("steps", "6"), ("steps", 7), ("steps", -1),
    ("steps_per_epoch", GONE), ("steps_per_epoch", None), ("steps_per_epoch", 2),
    ("line", 5), ("line", "x"), ("shared", 1), ("shared", True), ("world", 2), ("world", "2"), ("world", -1),
    ("before", 4), ("before", {"line": 1}), ("processes", {}), ("processes", [["a"]]), ("processes", [1]),
    ("format", GONE), ("format", 9), ("format", "1"), ("digest", "x"), ("digest", None), ("more", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


def kill_run(inputs: Path, path: Path, *keys: str) -> Path:
    """Kills a run in its fifth step. `path` has its `out` and `storage`."""
    phrase = words(inputs, path / "out", *KEYS, *keys, *on_path(path / "storage"))
    process = apart("-c", KILLED, *phrase, env_more={"DIES_AFTER": "0.000001", "DIES_IN": "5"})
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -14, error
    return path


@pytest.fixture(scope="module")
def killed_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_run(inputs, tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def checkpointed_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed run with checkpoints whose state lies on the path."""
    return kill_run(inputs, tmp_path_factory.mktemp("saved"), "--save_steps", "2")


@pytest.fixture
def run_copy(killed_run: Path, tmp_path: Path) -> Path:
    for name in ("out", "storage"):
        shutil.copytree(killed_run / name, tmp_path / name)
    return tmp_path


def change_entry(out: Path, name: str, value: Any) -> None:
    content = json.loads((out / RUN).read_text())
    content[name] = value
    if value is GONE:
        del content[name]
    (out / RUN).write_text(json.dumps(content))


def read_refusal(place: Path, capfd: pytest.CaptureFixture[str], *more: str, verb: str = "resume") -> str:
    """The message of a refusal, which changes no file of the run."""
    (place / "out" / LOCK).unlink(missing_ok=True)  # the lock of the killed process
    before = file_bytes(place)
    code = main([verb, str(place / "out"), "--storage", str(place / "storage"), *more])
    error = capfd.readouterr().err
    assert code == 2, error
    assert file_bytes(place) == before
    for phrase in ("KeyError", "TypeError", "Traceback", "no finished step", "--overwrite"):
        assert phrase not in error, error
    return error


@pytest.mark.parametrize(
    ("name", "value"), DAMAGES, ids=[f"{name}-{'gone' if value is GONE else value}" for name, value in DAMAGES]
)
def test_damaged_entry_is_named_with_the_owner_of_the_volume(
    name: str, value: Any, run_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = json.loads((run_copy / "out" / RUN).read_text())["run"]
    change_entry(run_copy / "out", name, value)
    if name == "digest" and value is None:  # as an earlier release has written it
        assert main(["resume", str(run_copy / "out"), "--storage", str(run_copy / "storage")]) == 0
        return
    for resume in ("true", "auto"):
        error = read_refusal(run_copy, capfd, "--resume_from_checkpoint", resume)
        assert str(run_copy / "out" / RUN) in error
        if (name, value) not in [("format", 9), ("format", "1")]:
            assert "is damaged" in error or "cannot be read" in error
            volume = run_copy / "storage" / "spillway.volume"
            assert f"{volume} belongs to the run {run!r}" in error


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", bytes(300), b"[" * 100_000])
def test_unreadable_identity_is_named(content: bytes, run_copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run_copy / "out" / RUN).write_bytes(content)
    for verb in ("resume", "verify"):
        error = read_refusal(run_copy, capfd, verb=verb)
        assert f"{run_copy / 'out' / RUN} cannot be read" in error or "is damaged" in error
        assert "belongs to the run" in error


@pytest.mark.parametrize("kind", ["killed_run", "checkpointed_run"])
@pytest.mark.parametrize("asked", ["true", "auto"])
def test_missing_identity_is_named(
    kind: str, asked: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place: Path = request.getfixturevalue(kind)
    for name in ("out", "storage"):
        shutil.copytree(place / name, tmp_path / name)
    run = json.loads((tmp_path / "out" / RUN).read_text())["run"]
    (tmp_path / "out" / RUN).rename(tmp_path / "run.json")
    error = read_refusal(tmp_path, capfd, "--resume_from_checkpoint", asked)
    assert f"{tmp_path / 'out' / RUN} is missing" in error
    assert f"{tmp_path / 'storage' / 'spillway.volume'} belongs to the run {run!r}" in error
    for verb in ("verify", "export"):
        more = ["--to", str(tmp_path / "alone")] if verb == "export" else []
        error = read_refusal(tmp_path, capfd, *more, verb=verb)
        assert f"{tmp_path / 'out' / RUN} is missing" in error and f"belongs to the run {run!r}" in error
    (tmp_path / "run.json").rename(tmp_path / "out" / RUN)
    assert main(["resume", str(tmp_path / "out"), "--storage", str(tmp_path / "storage")]) == 0


@pytest.mark.parametrize(("name", "value"), [("run", "another run"), ("durability", "none")])
def test_identity_of_an_earlier_release_is_checked_against_volume_and_plan(
    name: str, value: str, run_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = json.loads((run_copy / "out" / RUN).read_text())["run"]
    change_entry(run_copy / "out", "digest", GONE)
    change_entry(run_copy / "out", name, value)
    storage = ["--storage", str(run_copy / "storage")]
    error = read_refusal(run_copy, capfd)
    assert str(run_copy / "out" / RUN) in error and f"belongs to the run {run!r}" in error
    assert main(["resume", str(run_copy / "out"), *storage, "--resume_from_checkpoint", "auto"]) == 2
    assert run in capfd.readouterr().err


def test_entry_of_a_wrong_type_is_named(tmp_path: Path) -> None:
    identity.Identity("a run", {"seed": 4}, "step", 12, 6).save(tmp_path)
    change_entry(tmp_path, "steps", "x")
    with pytest.raises(identity.InputError, match='`steps` is "x"; expects a count'):
        identity.load(tmp_path)


def test_identity_without_a_digest_is_read(tmp_path: Path) -> None:
    written = identity.Identity("a run", {"seed": 4}, "step", 12, 6)
    written.save(tmp_path)
    change_entry(tmp_path, "steps", 13)
    with pytest.raises(identity.InputError, match="remove its entry `digest`"):
        identity.load(tmp_path)
    change_entry(tmp_path, "digest", GONE)
    loaded = identity.load(tmp_path)
    assert loaded is not None and loaded.steps == 13


def test_overwrite_replaces_a_damaged_identity(run_copy: Path, inputs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run_copy / "out" / RUN).write_bytes(b"{")
    more = [*KEYS, "--storage", str(run_copy / "storage"), "--overwrite"]
    assert here(inputs, run_copy / "out", *more) == 0, capfd.readouterr().err
    assert identity.load(run_copy / "out") is not None
