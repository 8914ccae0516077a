"""The compute device of a run: which it is, how much of it may be used, and how fast its link is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.config import Config

SHARE = 4  # of dram_budget that a simulated device has where nothing is said
PASSES = 1.5  # a simulated copy's time in plain copies: its target is poisoned first


def settings(config: Config, dram_budget: int, profile: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine plans and opens it with; {}: visits compute in host memory."""
    if config.device == "cpu":
        return {}
    return {
        "name": config.device,
        "memory": config.gpu_memory or dram_budget // SHARE,
        "in_dram": True,
        **link(profile),
    }


def link(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes per second of each direction, and whether a simulated device is to be no faster."""
    for gpu in profile.get("gpus", []):
        rates = {"to_device": gpu["to_gpu_bytes_per_second"], "from_device": gpu["from_gpu_bytes_per_second"]}
        if all(rates.values()):
            return rates | {"bounded": True}
    memory = profile.get("copy_bytes_per_second", 0.0) / PASSES
    return {"to_device": memory, "from_device": memory, "bounded": False}
