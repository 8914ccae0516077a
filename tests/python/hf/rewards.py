"""Reward functions for scripts, which name them by module and function."""

from __future__ import annotations

from typing import Any


def reward_fives(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of tokens whose number five divides."""
    return [sum(token % 5 == 0 for token in ids) / len(ids) for ids in completion_ids]
