"""Keys that the reference marks with the same bits: a run with another value has the losses, norms and weights of a run
without the key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import real_runs
from folders import REPOSITORY
from native import file_bytes
from real_runs import here, metrics, storage_in

sys.path.append(str(REPOSITORY / "scripts"))
from reference_sections import SAME_BITS  # noqa: E402

STEPS = ["--max_steps", "4", "--max_grad_norm", "0.5"]
SPILL = ["--activation_recompute", "none", "--activation_spill", "all"]
VALUES: dict[str, list[str]] = {  # the key, and keys that it needs
    "logging_steps": ["--logging_steps", "2"],
    "eval_steps": ["--eval_steps", "2"],
    "eval_on_start": ["--eval_on_start", "--eval_strategy", "epoch"],
    "save_steps": ["--save_steps", "1"],
    "save_whole_steps": ["--save_whole_steps", "2"],
    "save_total_limit": ["--save_total_limit", "1", "--save_steps", "1"],
    "save_only_model": ["--save_only_model"],
    "dram_budget": ["--dram_budget", "3GiB"],
    "placement": ["--placement", "path"],
    "window": ["--window", "1"],
    "activation_recompute": ["--activation_recompute", "all"],
    "activation_spill": SPILL,
    "storage": ["--placement", "state=path"],
    "durability": ["--durability", "checkpoint", "--placement", "path"],
    "update_schedule": ["--update_schedule", "early", "--speculative_updates"],
    "speculative_updates": ["--speculative_updates"],
    "replay_steps": ["--replay_steps", "1"],
    "replay_action": ["--replay_action", "continue", "--replay_steps", "1"],
    "memory_file": ["--memory_file", "FILES=64MiB"],
}
FIELDS = ("loss", "grad_norm", "learning_rate", "tokens")
STORED = {"placement", "storage", "durability", "activation_spill"}
EVALUATED = {"eval_steps", "eval_on_start"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def plain(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run in DRAM, without any of the keys."""
    out = tmp_path_factory.mktemp("plain") / "out"
    assert here(inputs, out, *STEPS) == 0
    return out


def read_steps(out: Path) -> dict[int, dict[str, float]]:
    return {row["step"]: {name: row[name] for name in FIELDS} for row in metrics(out) if "loss" in row}


def test_each_marked_key_is_trained_with() -> None:
    assert {*SAME_BITS} == VALUES.keys()


@pytest.mark.parametrize("key", VALUES)
def test_another_value_has_the_bits_of_a_run_without_the_key(
    key: str, inputs: Path, plain: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    given = [word.replace("FILES", str(tmp_path / "files")) for word in VALUES[key]]
    given += storage_in(tmp_path / "storage") if key in STORED else []
    given += ["--eval_dataset", str(inputs / "held_out.jsonl")] if key in EVALUATED else []
    assert here(inputs, tmp_path / "out", *STEPS, *given) == 0, capfd.readouterr().err
    steps, expected = read_steps(tmp_path / "out"), read_steps(plain)
    assert steps and (key == "logging_steps" or steps == expected)
    assert file_bytes(tmp_path / "out")["model.safetensors"] == file_bytes(plain)["model.safetensors"]


def test_a_key_without_the_mark_changes_bits(inputs: Path, plain: Path, tmp_path: Path) -> None:
    assert here(inputs, tmp_path / "out", *STEPS, "--seed", "7") == 0
    assert read_steps(tmp_path / "out") != read_steps(plain)
