"""The reward functions of a run's user, which have the form of TRL's."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillway.errors import InputError, SpillwayError, first_line

EXPECTED = "expects MODULE.FUNCTION, such as rewards.score for the function score in rewards.py"


def load_functions(names: Sequence[str]) -> list[Callable[..., Any]]:
    """The functions of these names. The working directory is searched first. InputError for one that is not there."""
    sys.path.insert(0, os.getcwd())
    try:
        return [load_function(name) for name in names]
    finally:
        sys.path.remove(os.getcwd())


def load_function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    if not module:
        raise InputError(f"reward_funcs: {name!r} names no module; {EXPECTED}")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # a module raises whatever it likes
        raise InputError(
            f"reward_funcs: {module} cannot be imported from {os.getcwd()}: {first_line(error)}; {EXPECTED}, and start "
            "in its directory or put that in PYTHONPATH"
        ) from error
    if not callable(function) or inspect.isclass(function) or inspect.iscoroutinefunction(function):
        what = "is missing" if function is None else "is no plain function"
        raise InputError(f"reward_funcs: {attribute} {what} in {module}; {EXPECTED}")
    return function  # type: ignore[no-any-return]


def score(functions: Sequence[Callable[..., Any]], rows: int, given: Mapping[str, Any]) -> NDArray[np.float64]:
    """[functions, rows] of rewards. NaN: a function has none for the row. `given`: named arguments of each function.

    Raises SpillwayError for a function that fails or gives something else than a number for each row."""
    rewards = np.array([call(function, rows, given) for function in functions])
    if (lost := np.isnan(rewards).all(0)).any():
        raise SpillwayError(f"reward_funcs: no function has a reward for completion {int(lost.argmax()) + 1} of a step")
    return rewards


def call(function: Callable[..., Any], rows: int, given: Mapping[str, Any]) -> list[float]:
    name = name_function(function)
    try:
        values = list(function(**given))
    except Exception as error:
        raise SpillwayError(f"reward_funcs: {name} failed: {type(error).__name__}: {first_line(error)}") from error
    if len(values) != rows:
        raise SpillwayError(f"reward_funcs: {name} gave {len(values)} rewards for {rows} completions")
    try:
        rewards = [math.nan if each is None else float(each) for each in values]
    except (TypeError, ValueError):
        raise SpillwayError(f"reward_funcs: {name} gave something else than numbers: {values!r:.80}") from None
    if wrong := [
        each for each, value in zip(rewards, values, strict=True) if value is not None and not math.isfinite(each)
    ]:
        raise SpillwayError(
            f"reward_funcs: {name} gave the reward {wrong[0]}; expects finite numbers, or None for none"
        )
    return rewards


def name_function(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def describe(functions: Sequence[Callable[..., Any]], rewards: NDArray[np.float64]) -> dict[str, float]:
    """TRL's figures of each function."""
    figures = {}
    for function, values in zip(functions, rewards, strict=True):
        known, name = values[~np.isnan(values)], name_function(function)
        if len(known):
            figures[f"rewards/{name}/mean"] = float(known.mean())
            figures[f"rewards/{name}/std"] = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    return figures
