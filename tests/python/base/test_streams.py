"""Runs whose terminal goes away train to the end: a log has their messages, and no volume a standard descriptor. Verbs
whose output has no place to go say so."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import real_runs
from real_runs import apart, metrics, on_path, words
from spillway.output.identity import LOG

LIMIT = 300  # seconds
FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), {0})"
PIPE = "ends = os.pipe(); os.close(ends[0]); os.dup2(ends[1], {0})"
TERMINAL = "ends = os.openpty(); os.dup2(ends[1], {0}); os.close(ends[0])"
CLOSED = "os.close({0}); sys.{1} = sys.__{1}__ = None"
GONE = {"full": FULL, "pipe": PIPE, "terminal": TERMINAL, "closed": CLOSED}
NAMES = {0: "stdin", 1: "stdout", 2: "stderr"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    out = tmp_path_factory.mktemp("expected") / "out"
    assert real_runs.here(inputs, out, "--max_steps", "3") == 0
    return metrics(out)


def command(way: str, descriptors: tuple[int, ...], *told: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command with these descriptors gone."""
    lost = "\n".join(GONE[way].format(descriptor, NAMES[descriptor]) for descriptor in descriptors)
    script = f"import os, sys\n{lost}\nfrom spillway.cli import main\nsys.exit(main({list(told)!r}))"
    process = apart("-c", script)
    shown, error = process.communicate(timeout=LIMIT)
    return process.returncode, shown, error


def run_shell(redirected: str, *told: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with what a shell puts behind it."""
    line = f"set -o pipefail; {shlex.join([sys.executable, *told])} {redirected}"
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=LIMIT, check=False
    )


def check_run(out: Path, expected: list[dict[str, object]]) -> None:
    """The run went to its end."""
    assert metrics(out) == expected and (out / "model.safetensors").is_file() and (out / "summary.json").is_file()


def check_log(out: Path) -> None:
    """The messages that standard output has lost, and of the loss one."""
    log = (out / LOG).read_text()
    assert log.count("cannot be written") == log.count("standard output cannot be written") == 1, log
    assert "The run goes on" in log and "step 2/3" in log and f"The model is in {out}" in log.replace("\n", ""), log


@pytest.mark.parametrize("way", GONE)
def test_run_without_its_terminal_goes_on_to_the_end(
    inputs: Path, tmp_path: Path, expected: list[dict[str, object]], way: str
) -> None:
    out = tmp_path / "out"
    code, _, error = command(way, (1, 2), *words(inputs, out, "--max_steps", "3", "--logging_steps", "1"))
    assert code == 0 and not error
    check_run(out, expected)
    if way != "closed":
        check_log(out)


@pytest.mark.parametrize("way", ["full", "pipe"])
def test_loss_of_standard_output_is_told_once_on_standard_error(
    inputs: Path, tmp_path: Path, expected: list[dict[str, object]], way: str
) -> None:
    out = tmp_path / "out"
    code, _, error = command(way, (1,), *words(inputs, out, "--max_steps", "3", "--logging_steps", "1"))
    assert code == 0 and error.startswith("note: standard output cannot be written") and error.count("\n") == 1, error
    check_run(out, expected)
    check_log(out)


@pytest.mark.nightly
@pytest.mark.parametrize("way", GONE)
def test_run_without_standard_error_goes_on_to_the_end(
    inputs: Path, tmp_path: Path, expected: list[dict[str, object]], way: str
) -> None:
    out = tmp_path / "out"
    code, shown, _ = command(way, (2,), *words(inputs, out, "--max_steps", "3", "--logging_steps", "1"))
    assert code == 0 and "The model is in" in shown
    check_run(out, expected)


@pytest.mark.parametrize("redirected", ["| head -n 1", pytest.param("2>&1 | head -n 1", marks=pytest.mark.nightly)])
def test_run_into_a_pipe_that_closes_goes_on_to_the_end(
    inputs: Path, tmp_path: Path, expected: list[dict[str, object]], redirected: str
) -> None:
    out = tmp_path / "out"
    told = words(inputs, out, "--max_steps", "3", "--logging_steps", "1")
    done = run_shell(redirected, "-m", "spillway", *told)
    assert done.returncode == 0, done.stderr
    check_run(out, expected)
    if redirected.startswith("|"):
        check_log(out)


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", pytest.param("2>&-", marks=pytest.mark.nightly)])
def test_closed_descriptors_are_never_a_volume(inputs: Path, tmp_path: Path, closed: str) -> None:
    """Everything that prints writes into /dev/null, and the volume verifies."""
    out, places, script = tmp_path / "out", tmp_path / "places", tmp_path / "script.py"
    numbers = range(3) if closed.startswith("<") else (2,)
    told = words(inputs, out, "--max_steps", "3", "--save_steps", "2", *on_path(tmp_path / "storage"))
    script.write_text(f"""
import os, sys
from spillway.cli import main
from spillway.run.session import EngineSession
step = EngineSession.step
def looked(*given):
    with open({str(places)!r}, "w") as stream:
        stream.write(" ".join(os.readlink(f"/proc/self/fd/{{number}}") for number in range(3)))
    for number in {[number for number in numbers if number]}:
        os.write(number, b"x" * 4096)
    return step(*given)
EngineSession.step = looked
sys.exit(main({told!r}))
""")
    done = run_shell(closed, str(script))
    assert done.returncode == 0, done.stderr
    found = places.read_text().split()
    assert [found[number] for number in numbers] == ["/dev/null"] * len(numbers), found
    assert real_runs.main(["verify", str(out)]) == 0


def test_command_with_every_stream_closed_by_the_shell(tmp_path: Path) -> None:
    program = f"{sys.executable} -m spillway train --nonesuch 1"
    done = subprocess.run(["sh", "-c", f"{program} <&- >&- 2>&-; echo $?"], capture_output=True, text=True)
    assert done.stdout == "2\n" and not done.stderr
    done = subprocess.run(["sh", "-c", f"{program} <&- >&-"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("spillway: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["--help", "train --help-all", "--version", "doctor"])
def test_output_of_a_verb_on_a_full_disk_is_named(verb: str) -> None:
    code, _, error = command("full", (1,), *verb.split())
    assert code == 1 and error == "spillway: standard output: No space left on device\n", error


def test_plan_on_a_full_disk_is_named_and_a_closed_pipe_is_quiet(inputs: Path, tmp_path: Path) -> None:
    told = words(inputs, tmp_path / "out", verb="plan")
    for more in ([], ["--json"]):
        code, _, error = command("full", (1,), *told, *more)
        assert code == 1 and error == "spillway: standard output: No space left on device\n", error
        assert command("pipe", (1,), *told, *more)[::2] == (1, "")
    assert command("full", (2,), *told)[0] == 0


def test_plan_into_a_pipe_that_closes_ends_in_silence(inputs: Path, tmp_path: Path) -> None:
    done = run_shell("| head -c 1 > /dev/null", "-m", "spillway", *words(inputs, tmp_path / "out", verb="plan"))
    assert done.stderr == ""


@pytest.mark.parametrize("way", GONE)
def test_error_without_standard_error_keeps_its_exit_code(way: str) -> None:
    assert command(way, (1, 2), "train", "--learning_rat", "1")[0] == 2


def test_output_in_a_narrow_encoding_is_escaped(inputs: Path, tmp_path: Path) -> None:
    told = words(inputs, tmp_path / "größe", "--max_steps", "1")
    script = f"""
import io, sys
sys.stdout = sys.__stdout__ = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="ascii")
from spillway.cli import main
sys.exit(main({told!r}))
"""
    process = apart("-c", script)
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and not error and "gr\\xf6\\xdfe" in shown


@pytest.mark.parametrize("ignored", [False, True], ids=["plain", "nohup"])
def test_hangup_saves_the_state_and_nohup_ignores_it(inputs: Path, tmp_path: Path, ignored: bool) -> None:
    """The kernel and the shell send a signal each."""
    out = tmp_path / "out"
    told = words(inputs, out, "--max_steps", "4")
    script = f"""
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
from spillway.cli import main
from spillway.run.session import EngineSession
step, count = EngineSession.step, 0
def hung_up(*given):
    global count
    count += 1
    if count == 2:
        for _ in range(3): os.kill(os.getpid(), signal.SIGHUP)
    return step(*given)
EngineSession.step = hung_up
sys.exit(main({told!r}))
"""
    process = apart("-c", script)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == (0 if ignored else 128 + signal.SIGHUP), error
    assert (out / ("checkpoint-4" if ignored else "checkpoint-2")).is_dir()
    if not ignored:
        assert real_runs.main(["resume", str(out)]) == 0 and (out / "checkpoint-4").is_dir()


def test_train_of_the_library_outlives_its_terminal_and_gives_the_streams_back(inputs: Path, tmp_path: Path) -> None:
    told = dict(zip(*[iter(word.removeprefix("--") for word in words(inputs, tmp_path / "out")[1:])] * 2, strict=True))
    script = f"""
import os, sys
{PIPE.format(1)}
import spillway
before = sys.stdout
spillway.train({told | {"max_steps": 1}!r})
assert sys.stdout is before
"""
    process = apart("-c", script)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and "Traceback" not in error, error
    assert (tmp_path / "out" / LOG).is_file()


@pytest.mark.parametrize("measured", [True, False])
def test_limit_of_file_sizes_below_the_volume_does_not_fit(inputs: Path, tmp_path: Path, measured: bool) -> None:
    """Named before anything is written, while the machine is measured or when the volume is made."""
    told = words(inputs, tmp_path / "out", "--max_steps", "1", *on_path(tmp_path / "storage"))
    if measured:
        told = [word for word in told if word not in ("--profile", str(inputs / "profile.json"))]
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, 300 << 10))
from spillway.cli import main
sys.exit(main({told!r}))
"""
    process = apart("-c", script)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 3 and "300.0 KiB (ulimit -f)" in error and error.count("\n") == 1, error
    assert real_runs.names(tmp_path / "storage") == []


def test_limit_of_file_sizes_below_the_model_does_not_fit(inputs: Path, tmp_path: Path) -> None:
    """Before the first step, which the save after it would lose."""
    told = words(inputs, tmp_path / "out", "--max_steps", "1")
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))
from spillway.cli import main
sys.exit(main({told!r}))
"""
    process = apart("-c", script)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 3 and "16.0 KiB (ulimit -f)" in error, error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory"])
@pytest.mark.parametrize("name", ["run.yaml", "profile.json", "template.jinja"])
def test_file_of_another_kind_is_named_without_waiting(
    inputs: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / name
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(place))
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    keys = {"run.yaml": (), "profile.json": ("--profile",), "template.jinja": ("--chat_template_path",)}[name]
    assert real_runs.here(inputs, tmp_path / "out", *keys, str(place), "--max_steps", "1") == 2
    error = capsys.readouterr().err
    assert name in error and error.count("\n") == 1 and not (tmp_path / "out").exists(), error
