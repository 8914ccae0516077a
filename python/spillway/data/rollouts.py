"""Sampled completions ready for training, with their advantages by TRL's definitions."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillway.config import Config
from spillway.data.dataset import Builder
from spillway.data.encode import Encoded, EncodedGroup
from spillway.data.preferences import Preferences
from spillway.errors import InputError
from spillway.model.batches.batch import Batch, Sampled

SMALLEST = 1e-4  # added to a standard deviation, as TRL does
NO_SPREAD = 1e-8  # a standard deviation that counts as zero


@dataclass
class Rollouts(Preferences):
    """Completions in file order, one a row, which fill whole steps. `dropped`: completions of the last groups, which
    fill none. `reference`: of each label token its log-probability."""

    old: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # of each label token
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # [rows + 1]: in `old`
    advantages: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # of each row
    figures: list[dict[str, float]] = field(default_factory=list)  # of each step's rows, by TRL's names

    def __len__(self) -> int:
        return len(self.rows)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for values in (self.old, self.advantages):
            digest.update(values.astype("<f8").tobytes())
        return f"rollouts-{self.rows.fingerprint()}-{digest.hexdigest()}"

    def value_starts(self) -> NDArray[np.int64]:
        return self.starts

    def order_values(self, values: list[float]) -> list[float]:
        return values

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        """The rows of these indices, of one step, as one micro-batch."""
        import torch

        spans = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in pairs])
        step = int(pairs[0]) * len(self.figures) // len(self)
        sampled = Sampled(
            torch.from_numpy(self.old[spans]), torch.from_numpy(self.advantages[pairs]), self.figures[step]
        )
        reference = None if self.reference is None else torch.from_numpy(self.reference[spans])
        return replace(self.rows.batch(pairs), reference=reference, rows_each=1, sampled=sampled)


@dataclass
class GroupBuilder:
    """Collects groups of one size. `ends`: tokens that end a completion; none: each has ended. `step`: completions of a
    step; 0: as the configuration says."""

    config: Config
    pad: int
    ends: frozenset[int]
    step: int = 0
    _rows: list[Encoded] = field(default_factory=list)
    _rewards: list[float] = field(default_factory=list)
    _old: array[float] = field(default_factory=lambda: array("d"))
    _starts: list[int] = field(default_factory=lambda: [0])
    _lengths: list[int] = field(default_factory=list)
    _truncated: list[bool] = field(default_factory=list)
    _size: int = 0  # completions of each group
    _first: str = ""  # the row that says so

    def __post_init__(self) -> None:
        self.step = self.step or int(self.config.per_device_train_batch_size * self.config.gradient_accumulation_steps)

    def add(self, group: EncodedGroup) -> None:
        """InputError for a group that no step can take."""
        if not self._size:
            self._size, self._first = len(group.rows), group.where
            self.check_size(group)
        if len(group.rows) != self._size:
            raise InputError(
                f"{group.where}: the group has {len(group.rows)} completions, that of {self._first} has {self._size}; "
                "expects groups of one size"
            )
        for row, reward, old in zip(group.rows, group.rewards, group.old, strict=True):
            self.keep(group.where, row, reward, old)

    def check_size(self, group: EncodedGroup) -> None:
        if self.step % self._size:
            raise InputError(
                f"{group.where}: the group has {self._size} completions, and a step takes {self.step} "
                "(per_device_train_batch_size times gradient_accumulation_steps); a group lies in one step, so expects "
                f"a multiple of {self._size}"
            )

    def keep(self, where: str, row: Encoded, reward: float, old: tuple[float, ...]) -> None:
        if row.labelled[0]:
            raise InputError(f"{where}: the prompt has no token, so nothing predicts the first one of a completion")
        if len(row.ids) > self.config.max_length:
            raise InputError(
                f"{where}: prompt and completion have {len(row.ids)} tokens, and max_length is "
                f"{self.config.max_length}; raise it, since a completion that is cut is another one than was rewarded"
            )
        self._lengths.append(sum(row.labelled))
        truncated = bool(self.ends) and row.ids[-1] not in self.ends
        if truncated and self.config.mask_truncated_completions:
            row, old = Encoded(row.ids, [False] * len(row.ids)), ()
        self._rows.append(row)
        self._rewards.append(reward)
        self._truncated.append(truncated)
        self._old.extend(old)
        self._starts.append(len(self._old))

    def finish(self) -> Rollouts:
        whole = len(self._rows) // self.step * self.step
        if not whole:
            raise InputError(
                f"dataset: {self.config.dataset} holds {len(self._rows)} completions, and a step takes {self.step} "
                "(per_device_train_batch_size times gradient_accumulation_steps); lower one of the two"
            )
        rows = Builder(self.config.max_length, False, False, self.pad)
        for row in self._rows[:whole]:
            rows.keep(row.ids, bytes(row.labelled))
        steps = [slice(first, first + self.step) for first in range(0, whole, self.step)]
        rewards = np.array(self._rewards[:whole])
        return Rollouts(
            rows.finish(),
            len(self._rows) - whole,
            has_reference=self.config.has_reference,
            old=np.array(self._old[: self._starts[whole]]),
            starts=np.array(self._starts[: whole + 1], dtype=np.int64),
            advantages=compute_advantages(rewards, self._size, self.step, self.config.scale_rewards),
            figures=[self.describe(step, rewards[step]) for step in steps],
        )

    def describe(self, step: slice, rewards: NDArray[np.float64]) -> dict[str, float]:
        """The figures that TRL logs for the completions of a step."""
        lengths, truncated = np.array(self._lengths[step]), np.array(self._truncated[step])
        ended = lengths[~truncated] if not truncated.all() else np.zeros(1)
        spreads = spread_of(rewards, self.step if self.config.scale_rewards == "batch" else self._size)
        figures = {
            "reward": rewards.mean(),
            "reward_std": rewards.std(ddof=1),
            "frac_reward_zero_std": (spreads < NO_SPREAD).mean(),
            "completions/clipped_ratio": truncated.mean(),
        }
        for name, values in (("length", lengths), ("terminated_length", ended)):
            figures |= {f"completions/{kind}_{name}": getattr(values, kind)() for kind in ("mean", "min", "max")}
        return {name: float(value) for name, value in figures.items()}


def compute_advantages(rewards: NDArray[np.float64], size: int, step: int, scale: Any) -> NDArray[np.float64]:
    """How far each reward lies above the mean of its group of `size`, in standard deviations of the group or of the
    `step` rewards of its step, as `scale_rewards` says."""
    groups = rewards.reshape(-1, size)
    differences = (groups - groups.mean(1, keepdims=True)).ravel()
    if scale == "none":
        return differences
    return differences / (spread_of(rewards, step if scale == "batch" else size) + SMALLEST)


def spread_of(rewards: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The standard deviation of the `size` consecutive rewards that each reward belongs to."""
    return np.repeat(rewards.reshape(-1, size).std(1, ddof=1), size)


def find_ends(tokenizer: Any) -> frozenset[int]:
    """The tokens by which a completion is known to have ended."""
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return frozenset(token for token in ends if token is not None)
