"""The order of prompts of a streamed GRPOTrainer, by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class PromptOrder(torch.utils.data.Sampler[int]):
    """TRL's sampler, whose permutation of an epoch follows from the epoch alone. TRL's own draws one after the other,
    so a resumed process would begin with the permutation of the first epoch."""

    def __init__(self, sampler: Any, trainer: Any) -> None:
        """`sampler`: trl.trainer.utils.RepeatSampler."""
        self._sampler, self._trainer = sampler, trainer

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        sampler = self._sampler
        if sampler.shuffle:
            sampler.generator.manual_seed(self._trainer.args.seed)
            for _ in range(int(self._trainer.state.epoch or 0)):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return iter(sampler)
