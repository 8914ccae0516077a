"""Who is late among the processes of a run, and for what: each says it in the store at which they met, where those that
wait for it read it, and rank 0 keeps it in the run's directory for `spillway doctor` and `spillway report`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spillway._engine import Delay
from spillway.base.files import write_json
from spillway.base.sizes import duration
from spillway.output import identity

KEY = "late/{}"  # in the store, by rank: words, or nothing
SAID = 5.0  # seconds after which a process says that it is late
EVERY = 5.0  # seconds between two looks at all of them

Ask = Callable[[], Delay | None]  # _engine.Engine.lateness()
Waits = tuple[float, list[int]]  # since when, for which ranks


class Lateness:
    """Reports of one process, asked and told from a thread that watches. `name`: the name of a rank, for people."""

    def __init__(self, store: Any, rank: int, world: int, name: Callable[[int], str]) -> None:
        self._store, self._rank, self._world, self._name = store, rank, world, name
        self._asking = threading.Lock()
        self._ask: Ask | None = None
        self._place: Path | None = None
        self._last = ""  # what this process has said
        self._looked = 0.0

    def listen(self, ask: Ask | None, output_dir: Path | None = None) -> None:
        """From now on `ask` is asked; None: no more, and nobody is in it. `output_dir`: where rank 0 tells of all."""
        with self._asking:
            self._ask = ask
            self._place = None if output_dir is None else output_dir / identity.LATE
        if ask is None:
            self._say("")

    def look(self, waits: Waits | None) -> None:
        """`waits`: for whom this process waits itself."""
        with self._asking:
            if self._ask is None:
                return
            words = late_words(self._ask()) or self.waiting(waits)
            self._say(words)
            now = time.monotonic()
            if self._place is not None and now - self._looked >= EVERY:
                self._looked = now
                self._keep(self._place)

    def why(self, ranks: Sequence[int]) -> str:
        """The names of the ranks, each with the reason it gave."""
        reasons = self._read_reasons(ranks)
        return "; ".join(self._name(rank) + (f": {reasons[rank]}" if rank in reasons else "") for rank in ranks)

    def waiting(self, waits: Waits | None) -> str:
        if waits is None or (seconds := time.monotonic() - waits[0]) < SAID:
            return ""
        return f"waits for {', '.join(map(self._name, waits[1]))}, {duration(seconds)}"

    def _say(self, words: str) -> None:
        if words == self._last:
            return
        with suppress(Exception):  # of a store that is gone
            self._store.set(KEY.format(self._rank), words)
            self._last = words

    def _read_reasons(self, ranks: Sequence[int]) -> dict[int, str]:
        reasons: dict[int, str] = {}
        with suppress(Exception):
            for rank in ranks:
                key = KEY.format(rank)
                if self._store.check([key]) and (words := self._store.get(key).decode()):
                    reasons[rank] = words
        return reasons

    def _keep(self, place: Path) -> None:
        """A file while anybody is late."""
        late = self._read_reasons(range(self._world))
        with suppress(OSError):
            if not late:
                place.unlink(missing_ok=True)
            elif place.parent.is_dir():
                told = [{"rank": self._name(rank), "words": words} for rank, words in late.items()]
                write_json(place, {"at": time.time(), "late": told})


def account(rank: int, measured: dict[str, Any], waited: dict[int, float]) -> dict[str, Any]:
    """The account that summary.json holds of each process. `measured`: by its session; `waited`: World.waited()."""
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "waits": measured.get("waits", {}),
        "waited_for": {str(other): seconds for other, seconds in sorted(waited.items())},
    }


def late_words(delay: Delay | None) -> str:
    """Empty: nobody has waited for long."""
    if delay is None or delay.seconds < SAID:
        return ""
    return f"{delay.task} waits for {delay.waits_for}, {duration(delay.seconds)}"
