"""Bytes that a run has written to each of its storage paths: beside the state in a checkpoint, no part of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from spillway.base.documents import read_json
from spillway.base.files import PRIVATE, replace_text

FILE = "wear.json"

Written = dict[str, int]  # bytes by path


def save(state: Path, written: Written) -> None:
    """Beside a checkpoint's state; nothing where nothing was written."""
    if written:
        replace_text(state / FILE, json.dumps(written) + "\n", PRIVATE)


def read(state: Path) -> Written:
    """Empty where nothing is known."""
    try:
        return {str(name): int(count) for name, count in read_json(state / FILE).items()}
    except (OSError, ValueError, OverflowError, AttributeError, TypeError):
        return {}


def most(counts: Iterable[Written]) -> Written:
    """Per path the largest: what a run has written at least, whatever it goes back to."""
    found: Written = {}
    for written in counts:
        for name, count in written.items():
            found[name] = max(count, found.get(name, 0))
    return found


def total(before: Written, now: Written) -> Written:
    return {name: before.get(name, 0) + now.get(name, 0) for name in before | now}
