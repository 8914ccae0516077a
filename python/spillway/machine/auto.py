"""What `auto` is on this machine: where layers compute, and what they multiply in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.config.checks import check_gpu_memory
from spillway.machine import device, products

if TYPE_CHECKING:
    from spillway.config import Config


def settled(config: Config) -> Config:
    """`config` with `device: auto` as the GPU, where there is one and nothing speaks against it, and `compute_dtype:
    auto` as what is faster there. InputError where the first is the CPUs and gpu_memory was given."""
    if config.any_device:
        config = device.settled(config)
        check_gpu_memory(config)
    return products.settled(config)
