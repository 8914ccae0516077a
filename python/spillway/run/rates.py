"""The learning rate of every step: transformers' own schedules, asked for a number instead of driving an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

from spillway.config import Config
from spillway.errors import InputError

Rate = Callable[[int], float]  # steps done so far -> learning rate of the next step


def warmup(config: Config, steps: int) -> int:
    return int(config.warmup_steps) if config.warmup_steps >= 1 else math.ceil(steps * config.warmup_steps)


def schedule(config: Config, steps: int) -> Rate:
    """The rate that transformers' Trainer would use; with warm-up that of step 0 is 0."""
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    try:
        scheduler = get_scheduler(
            config.lr_scheduler_type,
            optimizer,
            num_warmup_steps=warmup(config, steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(config.lr_scheduler_kwargs or {}),
        )
        factor = scheduler.lr_lambdas[0]
        factor(0)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"lr_scheduler_kwargs: {config.lr_scheduler_type} does not take {config.lr_scheduler_kwargs}: {error}"
        ) from None
    return lambda step: float(config.learning_rate * factor(step))
