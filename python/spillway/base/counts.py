"""How a number of things is said to a person."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """ "1 core", "2 processes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
