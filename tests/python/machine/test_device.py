"""A compute device with memory of its own: the keys, the plan, and that no bit depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from native import GPU, file_bytes
from real_runs import here, inputs
from spillway import _engine
from spillway._engine import DeviceSettings, GpuProfile, Profile
from spillway.cli import doctor, main
from spillway.config import resolve
from spillway.machine import device
from spillway.output.records import rows

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
    passes = summary["device_passes"]
    assert passes["forward"]["passes"] == passes["backward"]["passes"] and passes["forward"]["passes"] % 4 == 0
    assert all(each["seconds"] > 0 for each in passes.values())
    assert "Passes on the device: forward " in page and ">on the device<" in page
    assert set(passes) == {"forward", "head_loss", "head_gradient", "backward"}


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
    assert "device" in shown and "to the device" in shown


def described(given: Path, name: str, **rates: float) -> list[str]:
    """Words for a profile of this machine, with a GPU and other rates."""
    profile = json.loads((given / "profile.json").read_text()) | {"gpus": [GPU]} | rates
    (given / name).write_text(json.dumps(profile))
    return ["--profile", str(given / name), "--device", "simulated"]


def test_a_profile_with_a_gpu_updates_blocks_there(
    given: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = described(given, "slow.json", update_elements_per_second=1e5, update_elements_per_second_all_cores=1e5)
    words = ["plan", "--model", str(given / "model"), "--dataset", str(given / "train.jsonl"), *slow]
    assert main(words) == 0
    assert "live there with their states" in capsys.readouterr().out
    assert here(given, given / "living", *slow, "--max_steps", "4", "--save_steps", "2") == 0
    same(given / "living", plain)
    plan = json.loads((given / "living" / "plan.json").read_text())
    assert plan["device_blocks"]["state_and_update"] > 0


def test_states_that_come_for_their_updates_change_no_bit(
    given: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = device.settings

    def asked(*given: Any) -> DeviceSettings | None:
        made = settings(*given)
        assert made is not None
        made.state, made.device_updated, made.grad = 0.0, 1.0, 0.5
        return made

    monkeypatch.setattr(device, "settings", asked)
    words = [*described(given, "gpu.json"), "--max_steps", "4", "--save_steps", "2"]
    assert here(given, given / "streamed", *words) == 0
    same(given / "streamed", plain)
    blocks = json.loads((given / "streamed" / "plan.json").read_text())["device_blocks"]
    assert blocks["streamed_state_and_update"] > 0 and blocks["state_and_update"] == 0
    page = (given / "streamed" / "report.html").read_text()
    assert "upload state" in page and "download weight" in page
    assert "4 upload their states for the update" in page


def test_a_run_takes_the_rates_of_its_own_gpu() -> None:
    gpus = [
        GpuProfile(
            name=str(index),
            to_gpu_bytes_per_second=1e9 + index,
            from_gpu_bytes_per_second=1e9,
            update_elements_per_second=1e9 * (index + 1),
        )
        for index in range(2)
    ]
    second = gpus[1]
    assert device.find_gpu(Profile(gpus=gpus), 1) == second
    assert device.find_gpu(Profile(gpus=gpus[::-1]), 1) == second  # by its name
    assert device.find_gpu(Profile(gpus=gpus), 2) is None
    for gpu in gpus:
        gpu.name = f"gpu-{gpu.name}"
    assert device.find_gpu(Profile(gpus=gpus), 1) == gpus[1]  # by its place


def test_memory_of_a_device_needs_one(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(given, given / "none", "--gpu_memory", "1GiB") == 2
    assert "gpu_memory" in capsys.readouterr().err


def test_a_profile_with_a_gpu_bounds_the_link() -> None:
    gpu = GpuProfile(to_gpu_bytes_per_second=2e9, from_gpu_bytes_per_second=1e9)
    config = resolve({"device": "simulated"}, {})
    bounded = device.settings(config, 8 << 30, Profile(gpus=[gpu], copy_bytes_per_second=9e9))
    assert bounded is not None and bounded.bounded
    assert (bounded.to_device, bounded.from_device) == (2e9, 1e9)
    assert bounded.memory == 2 << 30 and bounded.in_dram
    free = device.settings(config, 8 << 30, Profile(copy_bytes_per_second=9e9))
    assert free is not None and free.to_device == 6e9 and not free.bounded and free.update == 0
    gpu.update_elements_per_second = 7e9
    updating = device.settings(config, 8 << 30, Profile(gpus=[gpu]))
    assert updating is not None and updating.update == 7e9
    assert device.settings(resolve({}, {}), 8 << 30, Profile()) is None


def test_a_gpu_that_pytorch_does_not_see_is_spoken_of(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the driver lists it in /proc, beside a PyTorch that was built without CUDA."""
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ:   \t\t 33\n")
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert here(given, tmp_path / "out", verb="plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"the CPUs, and not NVIDIA H100: PyTorch {torch.__version__} " in said
    assert here(given, tmp_path / "out", "--device", "cpu", verb="plan") == 0
    assert "H100" not in capsys.readouterr().out
    assert doctor.gpu()[2].startswith(f"the NVIDIA driver knows NVIDIA H100, but PyTorch {torch.__version__} ")


def test_a_build_without_kernels_says_so_on_a_machine_with_a_gpu(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the first run, in a plan, and by `spillway doctor`."""
    why = "this build of Spillway has no kernels for a GPU, because CUDA's compiler (nvcc) was not found"
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(_engine, "gpu_kernels", lambda: False)
    assert doctor.kernels()[1] == "lesser" and "pip install nvidia-cuda-nvcc" in doctor.kernels()[2]
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H100\n")
    assert doctor.kernels()[1] == "missing" and "Until then NVIDIA H100 is not used" in doctor.kernels()[2]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H100")
    monkeypatch.setattr(_engine, "load_gpu_kernels", lambda index: (False, why))
    assert here(given, tmp_path / "out", "--max_steps", "1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"the CPUs, and not NVIDIA H100: {why}" in said
