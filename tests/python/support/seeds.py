"""Where a test kills at random instants: another seed in each run, told at its start. SPILLWAY_SEED repeats it."""

from __future__ import annotations

import os
import random

NAME = "SPILLWAY_SEED"


def choose() -> None:
    """Before the tests begin, in the process that starts the others."""
    os.environ.setdefault(NAME, str(random.SystemRandom().getrandbits(32)))


def said() -> str:
    return f"{NAME}={os.environ[NAME]}"


def instants(test: str) -> random.Random:
    """The same for the same seed, whichever other tests there are."""
    return random.Random(f"{os.environ[NAME]} {test}")
