"""A storage path whose server is slow, goes away, comes back, is in trouble or dies, beside one of this machine,
through the `spillway` command. The server is a file system of this machine's, which waits when it is told to
(served.c)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import held
import real_runs
import warm
from needs import lacks
from served import Server, Unserved, program, served

SLOW = 20e6  # bytes a second
STEPS = 20  # far from the last when the third has its row
SILENT, BACK = "has answered nothing for", "path:0 answers again"
# The command with less patience: what it says of a silence and when is the same but for the seconds.
IMPATIENT = (
    "import sys\nfrom spillway.base import silence\nsilence.EVERY, silence.PATIENCE = 0.05, 0.5\n"
    "from spillway.cli import main\nsys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def server_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return program(tmp_path_factory.mktemp("served"))
    except Unserved as why:
        lacks("fuse", str(why))


@pytest.fixture
def server(server_program: Path, tmp_path: Path) -> Iterator[Server]:
    with served(server_program, tmp_path / "backing", tmp_path / "remote") as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same run in memory."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert real_runs.here(given, out, "--max_steps", str(STEPS)) == 0
    return real_runs.result(out)


def words(given: Path, out: Path, server: Server) -> list[str]:
    """Half of it lies on the server."""
    local = out.parent / "local"
    local.mkdir(exist_ok=True)
    paths = [word for place in (server.directory, local) for word in ("--storage", f"{place},capacity=64MiB")]
    placed = ["--placement", "weight=50%,state=path,grad=path,activation=dram", "--durability", "step"]
    return real_runs.words(given, out, "--max_steps", str(STEPS), *paths, *placed)


def impatient(*command: str) -> Any:
    return real_runs.apart("-c", IMPATIENT, *command, forked=True)


def has_begun(process: Any, out: Path) -> Any:
    """The process, when it has finished some steps."""
    held.wait_for(process, lambda: held.has_row(out, 3))
    return process


def underway(given: Path, out: Path, server: Server) -> Any:
    return has_begun(real_runs.apart("-m", "spillway", *words(given, out, server)), out)


def said_by(process: Any) -> str:
    return str(process.communicate(timeout=held.LIMIT)[1])


def finished(process: Any) -> str:
    said = said_by(process)
    assert process.returncode == 0, said
    return said


def failed(process: Any, words: str) -> None:
    said = said_by(process)
    assert process.returncode == 1 and words in said, said


def resume(out: Path) -> Any:
    return real_runs.apart("-m", "spillway", "resume", str(out))


def waited(said: str, server: Server) -> bool:
    """The path was named while it was waited for, and when it was back."""
    return f"path:0 ({server.directory}" in said and SILENT in said and BACK in said


def has_said(process: Any, what: str) -> bool:
    """Of a forked process that lives."""
    with open(f"/proc/{process.pid}/fd/2", "rb") as stream:
        return what.encode() in stream.read()


def test_a_slow_server_that_goes_away_is_named_and_waited_for_and_a_run_killed_meanwhile_resumes(
    given: Path, tmp_path: Path, server: Server, undisturbed: Any
) -> None:
    server.limit(SLOW)
    out = tmp_path / "out"
    first = has_begun(impatient(*words(given, out, server)), out)
    server.go_away()
    server.wait_for_request()
    held.wait_for(first, lambda: has_said(first, SILENT))
    server.come_back()
    held.wait_for(first, lambda: has_said(first, BACK) and held.has_row(out, 5))
    server.go_away()
    server.wait_for_request()
    first.kill()
    server.come_back()
    assert waited(said_by(first), server) and first.returncode == -9
    finished(resume(out))
    assert real_runs.result(out) == undisturbed


@pytest.fixture
def begun(given: Path, tmp_path: Path, server: Server) -> Path:
    """The output_dir of a run that was killed after some steps."""
    out = tmp_path / "out"
    process = underway(given, out, server)
    process.kill()
    process.wait()
    return out


@pytest.mark.nightly
@pytest.mark.parametrize("verb", ["resume", "verify"])
def test_a_server_that_is_away_when_a_run_is_looked_for_is_named(
    verb: str, begun: Path, server: Server, undisturbed: Any
) -> None:
    server.go_away()
    process = impatient(verb, str(begun))
    server.wait_for_request()
    held.wait_for(process, lambda: has_said(process, SILENT))
    server.come_back()
    assert waited(finished(process), server)
    if verb == "resume":
        assert real_runs.result(begun) == undisturbed


@pytest.mark.nightly
@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO], ids=["stale", "eio"])
def test_a_server_in_trouble_ends_the_run_by_name_and_it_resumes(
    error: int, given: Path, tmp_path: Path, server: Server, undisturbed: Any
) -> None:
    out = tmp_path / "out"
    process = underway(given, out, server)
    server.fail(error)
    failed(process, str(server.directory))
    failed(resume(out), f"{server.directory} does not answer")
    server.fail(0)
    finished(resume(out))
    assert real_runs.result(out) == undisturbed


@pytest.mark.nightly
def test_a_server_that_dies_is_begun_anew_and_its_run_resumes(
    given: Path, tmp_path: Path, server: Server, server_program: Path, undisturbed: Any
) -> None:
    out = tmp_path / "out"
    process = underway(given, out, server)
    server.kill()
    failed(process, str(server.directory))
    server.close()
    with served(server_program, tmp_path / "backing", server.directory):
        finished(resume(out))
        assert real_runs.result(out) == undisturbed


@pytest.mark.nightly
def test_the_installed_command_says_after_half_a_minute_what_it_waits_for(
    given: Path, tmp_path: Path, server: Server, undisturbed: Any
) -> None:
    out, told = tmp_path / "out", tmp_path / "told"
    command = [str(Path(sys.executable).with_name("spillway")), *words(given, out, server)]
    with open(told, "wb") as stream:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, env=os.environ | warm.ONE_THREAD)
    has_begun(process, out)
    server.go_away()
    server.wait_for_request()
    held.wait_for(process, lambda: SILENT in told.read_text())
    server.come_back()
    assert process.wait(held.LIMIT) == 0  # most often before the next look, so that nothing more is said
    assert f"path:0 ({server.directory}" in told.read_text()
    assert real_runs.result(out) == undisturbed
