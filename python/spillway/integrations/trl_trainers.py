"""TRL's trainers whose losses are computed over a streamed model."""

from __future__ import annotations

import trl

from spillway.integrations.trainer import StreamedTraining


class SFTTrainer(StreamedTraining, trl.SFTTrainer):  # type: ignore[misc]
    """trl.SFTTrainer, over a model that `spillway.hf.load` made."""


class RewardTrainer(StreamedTraining, trl.RewardTrainer):  # type: ignore[misc]
    """trl.RewardTrainer, over a model that `spillway.hf.load(..., num_labels=1)` made."""


class GRPOTrainer(StreamedTraining, trl.GRPOTrainer):  # type: ignore[misc]
    """trl.GRPOTrainer, over a model that `spillway.hf.load` made. It generates with the whole model in DRAM
    or in GPU memory, or on a server: `load(..., generation=Server(URL))`."""


class DPOTrainer(StreamedTraining, trl.DPOTrainer):  # type: ignore[misc]
    """trl.DPOTrainer, over a model that `spillway.hf.load` made, which is its own reference before the first step."""
