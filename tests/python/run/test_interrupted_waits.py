"""Signals while the engine waits, where Python's handlers do not run: one ends what may be ended, two end anything."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import held
import real_runs
from held import STEPS, has_row, spillway

EITHER = (130, 143)  # of two signals that wait together the kernel gives either first
LOST = {
    "nothing": "there is nothing to save",
    "one": "every finished step, or all but the last, is on the storage paths",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def library() -> Path:
    return held.library()


def ended(process: Any) -> str:
    """What it said, however long it was to take."""
    try:
        return process.communicate(timeout=held.LIMIT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still there after {held.LIMIT} s: {process.communicate()}") from None


def interrupt_twice(process: Any) -> None:
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)


def test_one_signal_ends_the_making_of_a_volume(given: Path, library: Path, tmp_path: Path) -> None:
    """512 pieces of half a second each, some at a time: far from done when the signal comes."""
    out, storage = tmp_path / "out", tmp_path / "storage"
    slow = held.Held(library, tmp_path / "held", "pwrite", "spillway.volume.new", milliseconds=500)
    slow.hold()
    process = spillway(
        *real_runs.words(given, out, *STEPS, *real_runs.on_path(storage)), environment=slow.environment()
    )
    slow.wait(process)
    process.send_signal(signal.SIGINT)
    said = ended(process)
    assert process.returncode == 130, said
    assert "interrupted before the first step; there is nothing to save" in said and "Traceback" not in said
    assert not list(storage.iterdir()) and not out.exists()


def test_two_signals_end_a_process_that_waits_for_its_drive(given: Path, library: Path, tmp_path: Path) -> None:
    """While it makes its volume. The next run finds nothing in its way."""
    out, volume = tmp_path / "out", tmp_path / "storage" / "spillway.volume"
    words = real_runs.words(given, out, *STEPS, *real_runs.on_path(volume.parent))
    making = held.Held(library, tmp_path / "held", "pwrite", "spillway.volume.new")
    making.hold()
    process = spillway(*words, environment=making.environment())
    making.wait(process)
    interrupt_twice(process)
    said = ended(process)
    assert process.returncode in EITHER and f"stopping at once, {LOST['nothing']}" in said, said
    assert not volume.exists()
    again = spillway(*words, "--max_steps", "1", "--resume_from_checkpoint", "auto")
    assert "Traceback" not in ended(again) and again.returncode == 0


@pytest.mark.nightly
def test_two_signals_end_a_process_wherever_it_waits(given: Path, library: Path, tmp_path: Path) -> None:
    """In the middle of a step, and while its steps are read back: each time with what the second signal loses, and none
    of the steps that were durable."""
    out, volume = tmp_path / "out", tmp_path / "storage" / "spillway.volume"
    words = real_runs.words(given, out, *STEPS, *real_runs.on_path(volume.parent))
    training = held.Held(library, tmp_path / "training", "pwrite", "spillway.volume")
    process = spillway(*words, environment=training.environment())
    held.wait_for(process, lambda: has_row(out, 3))
    training.hold()
    training.wait(process)
    interrupt_twice(process)
    said = ended(process)
    assert process.returncode in EITHER and f"stopping at once, {LOST['one']}" in said, said

    reading = held.Held(library, tmp_path / "reading", "pread", "spillway.volume")
    reading.hold()
    for verb, second in (("resume", signal.SIGTERM), ("verify", signal.SIGINT)):
        process = spillway(verb, str(out), environment=reading.environment())
        reading.wait(process)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # two of one number may arrive as one
            process.send_signal(second)
            held.pause()
        said = ended(process)
        assert process.returncode in EITHER and f"stopping at once, {LOST['nothing']}" in said, said
        (reading.place / "reached").unlink()

    again = spillway("resume", str(out), "--max_steps", "4")
    assert "Traceback" not in ended(again) and again.returncode == 0
    assert has_row(out, 4)
