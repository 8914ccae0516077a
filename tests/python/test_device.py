"""A compute device with memory of its own: the keys, the plan, and that no bit depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from native import file_bytes
from real_runs import here, inputs
from spillway import device
from spillway.cli import main
from spillway.config import resolve
from spillway.records import rows

MOVING = ("--device", "simulated", "--max_steps", "4", "--save_steps", "2")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module")
def plain(given: Path) -> Path:
    assert here(given, given / "plain", "--max_steps", "4", "--save_steps", "2") == 0
    return given / "plain"


def same(run: Path, other: Path) -> None:
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert file_bytes(run / "checkpoint-4" / "spillway") == file_bytes(other / "checkpoint-4" / "spillway")
    for one, another in zip(rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True):
        assert one["loss"] == another["loss"] and one["grad_norm"] == another["grad_norm"]


def test_a_simulated_device_changes_no_bit(given: Path, plain: Path) -> None:
    out = given / "roomy"
    assert here(given, out, *MOVING) == 0
    same(out, plain)
    plan = json.loads((out / "plan.json").read_text())
    tier = next(tier for tier in plan["tiers"] if tier["name"] == "device")
    assert 0 < tier["planned_peak"] <= tier["capacity"]
    assert plan["device_bytes_per_step"]["from_device"] > 0
    assert sum(entry["bytes"] for entry in plan["bytes"] if entry["tier"] == "device") == tier["planned_peak"]
    summary = json.loads((out / "summary.json").read_text())
    found = next(found for found in summary["tiers"] if found["name"] == "device")
    assert found["measured_peak"] == tier["planned_peak"]
    page = (out / "report.html").read_text()
    assert "to_device" in page and "upload weight" in page


def test_a_small_device_and_a_storage_path_change_no_bit(given: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    storage = given / "storage"
    storage.mkdir()
    words = [*MOVING, "--storage", f"{storage},capacity=256MiB", "--placement", "path", "--durability", "none"]
    assert here(given, given / "tiny", *words, "--gpu_memory", "4KiB") == 3
    message = capsys.readouterr().err
    assert "does not fit on the device" in message
    least = message.split("--gpu_memory ")[1].split(",")[0]
    assert here(given, given / "small", *words, "--gpu_memory", least) == 0
    assert (given / "small" / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    for one, another in zip(rows(given / "small" / "metrics.jsonl"), rows(plain / "metrics.jsonl"), strict=True):
        assert one["loss"] == another["loss"] and one["grad_norm"] == another["grad_norm"]


def test_the_plan_names_what_goes_there(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", str(given / "model"), "--dataset", str(given / "train.jsonl")]
    assert main([*words, "--profile", str(given / "profile.json"), "--device", "simulated"]) == 0
    shown = capsys.readouterr().out
    assert "device" in shown and "go to the device" in shown


def test_memory_of_a_device_needs_one(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(given, given / "none", "--gpu_memory", "1GiB") == 2
    assert "gpu_memory" in capsys.readouterr().err


def test_a_profile_with_a_gpu_bounds_the_link() -> None:
    gpu = {"to_gpu_bytes_per_second": 2e9, "from_gpu_bytes_per_second": 1e9}
    config = resolve({"device": "simulated"}, {})
    bounded = device.settings(config, 8 << 30, {"gpus": [gpu], "copy_bytes_per_second": 9e9})
    assert (bounded["to_device"], bounded["from_device"], bounded["bounded"]) == (2e9, 1e9, True)
    assert bounded["memory"] == 2 << 30 and bounded["in_dram"]
    free = device.settings(config, 8 << 30, {"copy_bytes_per_second": 9e9})
    assert free["to_device"] == 6e9 and not free["bounded"]
    assert device.settings(resolve({}, {}), 8 << 30, {}) == {}
