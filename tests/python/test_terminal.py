"""Runs whose terminal goes away train to the end: a log has their messages, and no volume a standard descriptor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import real_runs
from real_runs import metrics, on_path, words
from spillway.output.identity import LOG

STEPS = 4
LIMIT = 300  # seconds that a process of its own may take at most


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


def run_shell(redirected: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs the spillway command with what a shell puts behind it."""
    line = f"set -o pipefail; {shlex.join([sys.executable, '-m', 'spillway', *command])} {redirected}"
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=LIMIT, check=False
    )


@pytest.mark.parametrize(
    "redirected",
    [
        "| head -n 1",
        "> /dev/full",
        pytest.param("2> /dev/full", marks=pytest.mark.nightly),
        pytest.param("> /dev/full 2>&1", marks=pytest.mark.nightly),
        pytest.param("2>&1 | head -n 1", marks=pytest.mark.nightly),
    ],
)
def test_run_goes_on_without_its_terminal(inputs: Path, tmp_path: Path, redirected: str) -> None:
    out = tmp_path / "out"
    done = run_shell(redirected, *words(inputs, out, "--max_steps", str(STEPS)))
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in metrics(out) if "loss" in row] == list(range(1, STEPS + 1))
    assert (out / "model.safetensors").is_file() and (out / "summary.json").is_file()
    if redirected.startswith(("|", ">")):
        log = (out / LOG).read_text()
        assert log.count("cannot be written") == 1 and "The run goes on" in log
        assert f"The model is in {out}" in log.replace("\n", "")


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", pytest.param("2>&-", marks=pytest.mark.nightly)])
def test_volume_never_has_a_standard_descriptor(inputs: Path, tmp_path: Path, closed: str) -> None:
    out, storage = tmp_path / "out", tmp_path / "storage"
    done = run_shell(closed, *words(inputs, out, "--max_steps", str(STEPS), *on_path(storage)))
    assert done.returncode == 0, done.stderr
    verified = run_shell("", "verify", str(out))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_plan_that_cannot_be_written_names_standard_output(inputs: Path, tmp_path: Path) -> None:
    done = run_shell("> /dev/full", *words(inputs, tmp_path / "out", verb="plan"), "--json")
    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_plan_into_a_pipe_that_closes_ends_in_silence(inputs: Path, tmp_path: Path) -> None:
    done = run_shell("| head -c 1 > /dev/null", *words(inputs, tmp_path / "out", verb="plan"))
    assert done.stderr == ""


def test_configuration_nested_too_deep_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("model: " + "[" * 5000)
    done = run_shell("", "train", str(tmp_path / "deep.yaml"))
    assert done.returncode == 2
    assert "deep.yaml" in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
