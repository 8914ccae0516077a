"""What a command is at, on one line of a terminal that gives way to what comes after it. No thread draws it: what is
measured meanwhile is left alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_shown = False  # whether there is a line for it
CLEAR = "\r\x1b[2K"


def say(words: str) -> None:
    """Nothing where nobody looks: outside of `shown`, and where standard error is no terminal."""
    if _shown:
        sys.stderr.write(f"{CLEAR}{words} ...")
        sys.stderr.flush()


def clear() -> None:
    """Before somebody else writes."""
    if _shown:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()


@contextmanager
def shown() -> Iterator[None]:
    global _shown
    _shown = sys.stderr.isatty()
    try:
        yield
    finally:
        clear()
        _shown = False
