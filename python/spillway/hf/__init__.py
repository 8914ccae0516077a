"""Hugging Face models as a stream of layers, and transformers' Trainer over it:

from spillway.hf import Trainer, load

model = load("./Qwen2.5-1.5B", storage="/mnt/nvme/spillway", dram_budget="4GiB")
trainer = Trainer(model=model, ...)   # as before
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.integrations.loading import load
    from spillway.integrations.server import Server
    from spillway.integrations.trainer import StreamedTraining, Trainer
    from spillway.integrations.trl_answers import KTOTrainer
    from spillway.integrations.trl_experimental import CPOTrainer, ORPOTrainer
    from spillway.integrations.trl_trainers import DPOTrainer, GRPOTrainer, RewardTrainer, SFTTrainer

__all__ = [
    "CPOTrainer",
    "DPOTrainer",
    "GRPOTrainer",
    "KTOTrainer",
    "ORPOTrainer",
    "RewardTrainer",
    "SFTTrainer",
    "Server",
    "StreamedTraining",
    "Trainer",
    "load",
]


def __getattr__(name: str) -> Any:
    """Each is loaded when it is asked for: accelerate and TRL are needed by nothing else."""
    if name == "load":
        from spillway.integrations.loading import load

        return load
    if name == "Server":
        from spillway.integrations.server import Server

        return Server
    if name in ("Trainer", "StreamedTraining"):
        from spillway.integrations import trainer

        return getattr(trainer, name)
    if name in ("ORPOTrainer", "CPOTrainer"):
        from spillway.integrations import trl_experimental

        return getattr(trl_experimental, name)
    if name == "KTOTrainer":
        from spillway.integrations.trl_answers import KTOTrainer

        return KTOTrainer
    if name in ("SFTTrainer", "DPOTrainer", "RewardTrainer", "GRPOTrainer"):
        from spillway.integrations import trl_trainers

        return getattr(trl_trainers, name)
    raise AttributeError(f"module 'spillway.hf' has no attribute {name!r}")
