"""A tiny task of examples/grpo, whose reward is a format: the mean reward rises, and a run that is killed twice ends
with the bits of one that is not."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
import warm
from folders import REPOSITORY
from needs import package

package("datasets", "TRL needs datasets")
package("trl", "TRL is not installed")
EXAMPLE = REPOSITORY / "examples" / "grpo"
LIMIT = 600  # seconds that a program may take at most
RISE = 0.2  # of the mean reward, at least


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("task"))
    tiny.jsonl(place / "prompts.jsonl", [{"prompt": sentence} for sentence in tiny.SENTENCES])
    return place


def count_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def wait_until(reached: Callable[[], bool], process: Any) -> None:
    began = time.monotonic()
    while not reached():
        assert process.poll() is None and time.monotonic() < began + LIMIT
        time.sleep(0.01)


def start(given: Path, place: Path, *more: str) -> Any:
    (place / "storage").mkdir(parents=True, exist_ok=True)
    return warm.python(
        EXAMPLE / "streamed.py", given / "model", given / "prompts.jsonl", place / "out", place / "storage", *more,
        env={"PYTHONPATH": str(EXAMPLE), "HF_HOME": str(given / "home")},
    )  # fmt: skip


def finish(process: Any) -> None:
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]


def find_rewards(place: Path) -> list[float]:
    history = json.loads((place / "out" / "trainer_state.json").read_text())["log_history"]
    return [row["reward"] for row in history if "reward" in row]


def test_two_lines_differ() -> None:
    plain, streamed = ((EXAMPLE / name).read_text().splitlines()[1:] for name in ("plain.py", "streamed.py"))
    assert sum(one != other for one, other in zip(plain, streamed, strict=True)) == 2


def test_a_script_killed_twice_teaches_the_format_with_the_same_bits(given: Path, tmp_path: Path) -> None:
    finish(start(given, tmp_path / "whole"))
    rewards = find_rewards(tmp_path / "whole")
    assert len(rewards) == 30
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + RISE
    log = tmp_path / "killed" / "out" / "spillway" / "trainer_log.jsonl"
    for number, lines in enumerate((4, 15)):
        process = start(given, tmp_path / "killed", *(["resume"] if number else []))
        wait_until(lambda lines=lines: count_lines(log) >= lines, process)  # type: ignore[misc]
        process.kill()
        process.communicate(timeout=LIMIT)
        assert process.returncode == -signal.SIGKILL
    finish(start(given, tmp_path / "killed", "resume"))
    assert find_rewards(tmp_path / "killed") == rewards
    weights = [(tmp_path / name / "out" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
