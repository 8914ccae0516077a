"""Matrices that are only breadth: by default a few representatives, in `make nightly` all."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], representatives: Container[Any]) -> list[Any]:
    """For pytest.mark.parametrize, and for the `params` of a fixture."""
    return [value if value in representatives else pytest.param(*listed(value), marks=pytest.mark.nightly)
            for value in values]  # fmt: skip


def listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
