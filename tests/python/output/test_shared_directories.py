"""Directories in which others can make files, too: no link is followed to somebody else's file, and what a run keeps is
for its user alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import held
import real_runs

SHORT = ["--max_steps", "2"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("somebody's thesis")
    return file


def run(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=held.LIMIT, env=environment)


def spillway(*words: str) -> tuple[int, str]:
    """Exit code, and what it said is wrong."""
    process = held.spillway(*words)
    _, error = process.communicate(timeout=held.LIMIT)
    return process.returncode, error


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_link_in_place_of_a_draft_is_refused(given: Path, tmp_path: Path, victim: Path) -> None:
    storage = tmp_path / "storage"
    words = real_runs.words(given, tmp_path / "out", *SHORT, *real_runs.on_path(storage))
    (storage / "spillway.volume.new").symlink_to(victim)
    code, error = spillway(*words)
    assert code == 2, error
    assert f"{storage / 'spillway.volume.new'} is not a regular file: move it away" in error
    assert victim.read_text() == "somebody's thesis" and not (tmp_path / "out").exists()


def test_links_in_place_of_what_the_doctor_makes_are_not_followed(tmp_path: Path, victim: Path) -> None:
    """The shell makes links with the number of the process that it becomes."""
    storage, temporary = tmp_path / "storage", tmp_path / "tmp"
    for place in (storage, temporary):
        place.mkdir()
    links = f"ln -s {victim} {storage}/spillway.probe.$$; ln -s {victim} {temporary}/.spillway-checkup-$$"
    command = f"{links}; exec {sys.executable} -m spillway doctor --storage {storage}"
    done = run("sh", "-c", command, environment=os.environ | {"TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "somebody's thesis"
    assert len(list(storage.iterdir())) == len(list(temporary.iterdir())) == 1


def test_links_in_place_of_small_files_are_not_followed_and_what_a_run_keeps_is_its_users_alone(
    given: Path, tmp_path: Path, victim: Path
) -> None:
    out, storage = tmp_path / "out", tmp_path / "storage"
    (out / "spillway").mkdir(parents=True)
    for name in ("run.json", "description.json", "settings.json"):
        (out / "spillway" / f".tmp-{name}").symlink_to(victim)
    words = real_runs.words(given, out, *SHORT, *real_runs.on_path(storage))
    before = os.umask(0o022)
    try:
        ended = spillway(*words)
        alone = spillway(*real_runs.words(given, tmp_path / "alone", *SHORT))
    finally:
        os.umask(before)
    assert ended[0] == alone[0] == 0, (ended, alone)
    assert victim.read_text() == "somebody's thesis"
    assert permissions(storage / "spillway.volume") == 0o600
    kept = [out / "checkpoint-2" / "spillway" / "manifest.bin"]
    kept += [tmp_path / "alone" / "checkpoint-2" / "spillway" / f"{n}.safetensors" for n in ("residual", "exp_avg")]
    for path in kept:
        assert {permissions(file) for file in path.parent.iterdir()} == {0o600}
        assert path.exists() and permissions(path.parent) == 0o700
    assert permissions(out / "model.safetensors") == permissions(out / "config.yaml") == 0o644
