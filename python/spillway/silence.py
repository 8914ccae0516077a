"""Says so while a storage path answers nothing: a file system whose server is away blocks for as long as it likes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

PATIENCE = 30.0  # seconds without an answer before anything is said


def tell_person(words: str) -> None:
    print(f"note: {words}", file=sys.stderr, flush=True)


class SilenceWatch:
    """Asks from a thread of its own every few seconds. `ask` is a weak reference to what gives
    _engine.Engine.silence(): an engine that nobody holds any more is not kept alive."""

    def __init__(
        self,
        ask: Callable[[], Callable[[], str] | None],
        tell: Callable[[str], None] = tell_person,
        every: float = 5.0,
        patience: float = PATIENCE,
    ) -> None:
        self._ask, self._tell, self._every, self._patience = ask, tell, every, patience
        self._longest: dict[str, float] = {}  # of the paths that are silent, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Before what it asks closes. Once or more."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            silence = self._ask()
            if silence is None:
                return
            for name, path in json.loads(silence()).items():
                self._look(name, path["volume"], path["under_way"], path["silent_seconds"])
            del silence

    def _look(self, name: str, volume: str, under_way: int, seconds: float) -> None:
        if seconds >= self._patience:
            if name not in self._longest:
                self._tell(
                    f"{name} ({volume}) has answered nothing for {seconds:.0f} s, with {under_way} requests under way: "
                    "the run waits for it. If its drive or server does not come back, kill the run; nothing that was "
                    "durable is lost"
                )
            self._longest[name] = seconds
        elif name in self._longest:
            self._tell(f"{name} answers again, after {self._longest.pop(name):.0f} s or more")
