"""Says so while a storage path or a GPU answers nothing: a file system whose server is away blocks for as long as it
likes, and so does a GPU that hangs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from spillway._engine import Silence
from spillway.base import sizes

EVERY = 5.0  # seconds between two looks
PATIENCE = 30.0  # seconds without an answer before anything is said
BETWEEN = 1.0  # seconds between an answer and the next question to a path that is not open yet


def tell_person(words: str) -> None:
    print(f"note: {words}", file=sys.stderr, flush=True)


class SilenceWatch:
    """Asks from a thread of its own every few seconds. `ask` is a weak reference to what gives
    _engine.Engine.silence(): an engine that nobody holds any more is not kept alive."""

    def __init__(
        self,
        ask: Callable[[], Callable[[], Mapping[str, Silence]] | None],
        tell: Callable[[str], None] = tell_person,
        every: float | None = None,
        patience: float | None = None,
    ) -> None:
        """`every`, `patience`: EVERY, PATIENCE."""
        self._ask, self._tell = ask, tell
        self._every = EVERY if every is None else every
        self._patience = PATIENCE if patience is None else patience
        self._longest: dict[str, float] = {}  # of the paths that are silent, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Before what it asks closes. Once or more."""
        self._stop.set()
        self._thread.join()

    def all_answered(self) -> None:
        """After `close`, by one who knows that no path is silent any more: the end of a silence is told, too."""
        for name in list(self._longest):
            self._tell_end(name)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            silence = self._ask()
            if silence is None:
                return
            for name, answer in silence().items():
                self._look(name, answer)
            del silence

    def _look(self, name: str, answer: Silence) -> None:
        seconds = answer.silent_seconds
        if seconds >= self._patience:
            if name not in self._longest:
                self._tell(describe_lane(name, answer) if answer.device else describe_path(name, answer))
            self._longest[name] = seconds
        elif name in self._longest:
            self._tell_end(name)

    def _tell_end(self, name: str) -> None:
        self._tell(f"{name} answers again, after {self._longest.pop(name):.0f} s or more")


def describe_path(name: str, answer: Silence) -> str:
    return (
        f"{name} ({answer.volume}) has answered nothing for {answer.silent_seconds:.0f} s, with "
        f"{answer.under_way} requests under way: the run waits for it. If its drive or server does not come back, "
        "kill the run; nothing that was durable is lost"
    )


def describe_lane(name: str, answer: Silence) -> str:
    """Of a device's copies or updates."""
    of_bytes = f" of {sizes.size(answer.bytes)}" if answer.bytes else ""
    return (
        f"{answer.device} has not ended '{answer.task}'{of_bytes} for {answer.silent_seconds:.0f} s "
        f"({name}, {answer.under_way} under way): the run waits for it, or for the passes before it. If the GPU "
        "hangs (nvidia-smi does not answer, dmesg names an Xid), kill the run; nothing that was durable is lost"
    )


class Questions:
    """Paths that no engine has opened. The file system of each is asked for its space again and again, from a thread of
    its own: a question to a server that is away does not come back."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = {f"path:{number}": place for number, place in enumerate(places)}
        self._asked: dict[str, float] = {}  # when, of questions that wait for their answers
        self._over = threading.Event()
        for name, place in self._places.items():
            threading.Thread(target=self._ask, args=(name, place), name="question", daemon=True).start()

    def silence(self) -> dict[str, Silence]:
        """As _engine.Engine.silence()."""
        asked, now = dict(self._asked), time.monotonic()
        return {
            name: Silence(volume=place, under_way=int(name in asked), silent_seconds=now - asked.get(name, now))
            for name, place in self._places.items()
        }

    def end(self) -> None:
        """Does not wait for answers."""
        self._over.set()

    def _ask(self, name: str, place: str) -> None:
        while not self._over.is_set():
            self._asked[name] = time.monotonic()
            with suppress(OSError):  # an answer, too
                os.statvfs(place)
            del self._asked[name]
            self._over.wait(BETWEEN)


@contextmanager
def watched(places: Sequence[str], tell: Callable[[str], None] = tell_person) -> Iterator[None]:
    """Says while they are looked at or opened which of them answers nothing. The caller may be in the engine, or in the
    kernel, as long as it does not hold the interpreter's lock there."""
    if not places:
        yield
        return
    questions = Questions(places)
    watch = SilenceWatch(lambda: questions.silence, tell)
    try:
        yield
    finally:
        watch.close()
        questions.end()
    watch.all_answered()
