"""The settings that bench/peers.py gives to DeepSpeed."""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import Any

import pytest

from folders import REPOSITORY

sys.path.append(str(REPOSITORY / "bench"))
peers: Any = importlib.import_module("peers")
COMPARISON = REPOSITORY / "docs" / "comparison.md"


def make_settings(words: list[str]) -> dict[str, Any]:
    return dict(peers.deepspeed_settings(peers.parser().parse_args(["deepspeed", *words]), adam=True))


@pytest.mark.parametrize("storage", [[], ["--storage", "/mnt/nvme"]])
def test_weights_beside_a_gpu_lie_in_host_memory(storage: list[str]) -> None:
    zero = make_settings(["--device", "cuda", *storage])["zero_optimization"]
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero["offload_optimizer"]["device"] == ("nvme" if storage else "cpu")


@pytest.mark.parametrize("words", [[], ["--storage", "/mnt/nvme"], ["--device", "cuda", "--stage", "2"]])
def test_weights_stay_where_they_compute_without_stage_3_beside_a_gpu(words: list[str]) -> None:
    assert "offload_param" not in make_settings(words)["zero_optimization"]


def test_weights_lie_on_the_drive_if_asked() -> None:
    words = ["--device", "cuda", "--storage", "/mnt/nvme", "--params-on-storage"]
    assert make_settings(words)["zero_optimization"]["offload_param"]["device"] == "nvme"


def test_command_of_the_comparison_page_keeps_weights_in_dram_and_the_optimizer_on_the_drive() -> None:
    (block,) = [part for part in COMPARISON.read_text().split("```") if "bench/peers.py deepspeed" in part]
    (line,) = [line for line in block.replace("\\\n", " ").splitlines() if "bench/peers.py" in line]
    _, script, _, *words = shlex.split(line)
    settings = make_settings(words)
    zero = settings["zero_optimization"]
    assert script == "bench/peers.py" and settings["bf16"] == {"enabled": True}
    assert (zero["offload_param"]["device"], zero["offload_optimizer"]["device"]) == ("cpu", "nvme")
