"""Ctrl-C and SIGTERM: before the first step they end the run at once, afterwards at the end of the step in progress.

A second signal ends the process without saving.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from spillway.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which the two signals are ours; outside the main thread, where they cannot be, it does nothing."""

    def __init__(self) -> None:
        self.signal = 0  # the first signal that asked for a graceful end; 0: none
        self._graceful = False
        self._saved = False
        self._lost = "the steps since the last checkpoint are not saved"
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish_steps(self) -> None:
        """From now on there is something to save: let the step in progress end first."""
        self._graceful = True

    def steps_are_durable(self) -> None:
        """From now on a second signal loses the step in progress, and the one before where it is being written."""
        self._lost = "every finished step, or all but the last, is on the storage paths"

    def all_is_saved(self) -> None:
        """From now on a second signal loses nothing."""
        self._saved = True

    def __bool__(self) -> bool:
        return self.signal != 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._graceful:
            raise Interrupted("interrupted before the first step; there is nothing to save", number)
        if self.signal:
            lost = "all is saved" if self._saved else self._lost
            say(f"interrupted twice: stopping at once, {lost}")
            os._exit(128 + number)
        self.signal = number
        say("interrupted: finishing the step in progress, then saving (a second signal stops at once, without saving)")


def say(text: str) -> None:
    """Safe inside a signal handler: no buffered stream, which the interrupted code may be writing to."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nspillway: {text}\n".encode())
