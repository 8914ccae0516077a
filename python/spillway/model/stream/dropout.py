"""Random numbers of training: dropout, and what else draws."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from spillway.machine.place import HOST, Place


class Dropout:
    """Random numbers that are a function of (seed, step, micro-batch, stage), so that a recomputed layer drops alike.

    Always, in training: not only dropout draws (some routers do). Leaves PyTorch's own generator as it was.
    """

    def __init__(self, seed: int, place: Place = HOST) -> None:
        self._seed = seed
        self._place = place
        self._step = 0
        self._training = False

    def step(self, step: int, training: bool) -> AbstractContextManager[None]:
        self._step, self._training = step, training
        forked: AbstractContextManager[None] = torch.random.fork_rng(devices=self._place.forked(), enabled=training)
        return forked

    def seed(self, micro_batch: int, stage: int) -> None:
        if self._training:
            self._place.seed(mixed(self._seed, self._step, micro_batch, stage))


def mixed(*numbers: int) -> int:
    """A 63-bit number from several, well spread (splitmix64's finaliser over a running sum)."""
    mask = (1 << 64) - 1
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1
