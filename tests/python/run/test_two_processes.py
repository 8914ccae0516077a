"""Two processes of one run on one storage path: a supervisor starts the second while the first is ending."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import held
import real_runs
from held import STEPS, has_row, spillway
from spillway.output.directory_lock import LOCK


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


def test_a_second_process_goes_on_in_a_file_that_has_a_name(given: Path, tmp_path: Path) -> None:
    """The first process is interrupted before its first step and removes its volume. The second process waits for the
    lock of the directory. Its durable steps survive a kill."""
    out, volume = tmp_path / "out", tmp_path / "storage" / "spillway.volume"
    auto = ["--resume_from_checkpoint", "auto"]
    words = real_runs.words(given, out, *STEPS, *auto, *real_runs.on_path(volume.parent))
    loading = held.Held(held.library(), tmp_path / "held", "pread", "model.safetensors")
    loading.hold()
    first = spillway(*words, environment=loading.environment())
    loading.wait(first)
    assert volume.exists()
    second = spillway(*words)
    held.wait_for(second, lambda: held.has_open(second, out / LOCK))
    first.send_signal(signal.SIGTERM)
    loading.let_go()
    assert "before the first step" in first.communicate(timeout=held.LIMIT)[1]
    assert first.returncode == 143
    held.wait_for(second, lambda: has_row(out, 4))
    second.kill()
    second.communicate()
    assert volume.exists()
    again = spillway("resume", str(out), "--max_steps", "6")
    shown, error = again.communicate(timeout=held.LIMIT)
    assert again.returncode == 0, error
    found = re.search(r"recovered step (\d+) from the storage paths", shown)
    assert found and int(found[1]) >= 3
    assert has_row(out, 6)
