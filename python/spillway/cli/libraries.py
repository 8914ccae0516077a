"""The libraries' own words on the terminal."""

from __future__ import annotations

import os
import sys


def quiet_libraries() -> None:
    """The libraries' own chatter off, unless a person asked for it; progress of downloads is for terminals."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
