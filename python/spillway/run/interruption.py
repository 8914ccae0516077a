"""Ctrl-C, SIGTERM and SIGHUP: before the first step they end the run at once, afterwards at the end of the step in
progress. SIGHUP says that the terminal has gone: `nohup`, which ignores it, keeps the run going.

A second signal ends the process without saving. The engine sees to that from the signal's handler itself, since those
of Python run only when the main thread is not waiting for a drive; and its long loops let what these raise through.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from spillway.errors import Interrupted

if TYPE_CHECKING:
    from spillway._engine import SecondSignal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP = signal.SIGHUP  # the kernel and the shell may both send the signal, so a second one is ignored
AGAIN = "a second signal stops at once, without saving"
NOTHING_LOST = "there is nothing to save"


class Interruption:
    """A context that handles the three signals. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.signal = 0  # the first signal that asked for a graceful end; 0: none
        self.speaks = True  # and says so to a person
        self._graceful = False
        self._hung_up = False
        self._agreed: int | None = None  # what all processes of a world of several have heard of; None: there is one
        self._holds = False  # the first signal does not end what is under way, but what comes after it
        self._second: SecondSignal | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if in_main_thread():
            ours = SIGNALS if signal.getsignal(HANGUP) == signal.SIG_IGN else (*SIGNALS, HANGUP)
            self._before = {number: signal.signal(number, self._handle) for number in ours}
            self._second = second_signal(SIGNALS, NOTHING_LOST)
        return self

    def __exit__(self, *_: object) -> None:
        if self._second is not None:
            self._second.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish_steps(self) -> None:
        """From now on there is something to save: let the step in progress end first."""
        self._graceful = True
        self._at_second("the steps since the last checkpoint are not saved")

    def steps_are_durable(self) -> None:
        """From now on a second signal loses the step in progress, and the one before where it is being written."""
        self._at_second("every finished step, or all but the last, is on the storage paths")

    def all_is_saved(self) -> None:
        """From now on a second signal loses nothing."""
        self._at_second("all is saved")

    def __bool__(self) -> bool:
        return (self.signal if self._agreed is None else self._agreed) != 0

    def agree(self, signals: Sequence[int]) -> None:
        """`signals`: of every process of the run, which end after the same step, whichever has heard one."""
        self._agreed = max(signals)
        self.signal = self._agreed or self.signal

    @property
    def together(self) -> bool:
        """True if all processes of a world of several end because of a signal."""
        return bool(self._agreed)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, where the processes of a run speak with each other, no signal ends one of them alone."""
        before, self._holds = self.signal, True
        try:
            yield
        finally:
            self._holds = False
        if self.signal != before and not self._graceful:
            raise Interrupted(f"interrupted before the first step; {NOTHING_LOST}", self.signal)

    def _at_second(self, lost: str) -> None:
        if self._second is not None:
            self._second.say(last_words(lost))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP and (self._hung_up or self.signal):
            return
        self._hung_up |= number == HANGUP
        if not self._graceful and not self._holds:
            raise Interrupted(f"interrupted before the first step; {NOTHING_LOST}", number)
        self.signal = number
        if not self._graceful:
            return
        if self.speaks:
            say(f"interrupted: finishing the step in progress, then saving ({AGAIN})")


@contextmanager
def a_second_ends() -> Iterator[None]:
    """Inside, the first Ctrl-C raises KeyboardInterrupt, as ever, and a second one ends the process wherever it is."""
    second = second_signal((signal.SIGINT,), NOTHING_LOST) if in_main_thread() else None
    try:
        yield
    finally:
        if second is not None:
            second.close()


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def second_signal(signals: Sequence[int], lost: str) -> SecondSignal:
    from spillway._engine import SecondSignal

    return SecondSignal(list(signals), last_words(lost))


def last_words(lost: str) -> str:
    return f"\nspillway: interrupted twice: stopping at once, {lost}\n"


def say(text: str) -> None:
    """Safe inside a signal handler: no buffered stream, which the interrupted code may be writing to."""
    with suppress(OSError):  # the terminal has gone
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nspillway: {text}\n".encode())
