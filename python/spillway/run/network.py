"""Moves the bytes of the engine's transfers with torch.distributed, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from spillway.errors import first_line
from spillway.run.carriers import Carrier, HostBytes, Message

LOOKS = 0.5  # seconds between two looks at what has failed and who is late


def numbered(rank: int) -> str:
    return f"rank {rank}"


class Waited:
    """How long transfers took beyond the fastest one of as many bytes, by the rank that was waited for longest in each:
    what bytes take alone is nobody's lateness."""

    def __init__(self) -> None:
        self._least: dict[int, float] = {}  # by bytes: seconds
        self._sums: dict[tuple[int, int], tuple[float, int]] = {}  # by rank and bytes: seconds, transfers

    def add(self, waits: Sequence[tuple[int, float]], size: int) -> None:
        """`waits` of one transfer, one after the other: rank and seconds."""
        late, _ = max(waits, key=lambda wait: wait[1])
        seconds = sum(each for _, each in waits)
        self._least[size] = min(seconds, self._least.get(size, seconds))
        total, count = self._sums.get((late, size), (0.0, 0))
        self._sums[late, size] = (total + seconds, count + 1)

    def seconds(self) -> dict[int, float]:
        """The seconds of each rank, by rank. Any thread may call this."""
        totals: dict[int, float] = {}
        for (rank, size), (total, count) in list(self._sums.items()):
            totals[rank] = totals.get(rank, 0.0) + max(0.0, total - count * self._least[size])
        return totals


class Service:
    """Serves a port until it is closed. One group, one thread, one order of transfers that is the same on all ranks, so
    that no rank waits for another in a circle."""

    def __init__(
        self,
        network: Any,
        carrier: Carrier | None = None,
        name: Callable[[int], str] = numbered,
        disturbed: Callable[[], None] = lambda: None,
    ) -> None:
        """`network`: _engine.Network. `carrier`: None: by the process group of all. `name`: of a rank, for people.
        `disturbed` is called when another process fails a transfer."""
        self._network, self._carrier = network, carrier or HostBytes()
        self._name, self._disturbed = name, disturbed
        self._waits: tuple[float, list[int]] | None = None  # since when, for whom
        self.waited = Waited()
        self._aborted = False
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After the engine has closed. A transfer that nobody will end stays with its thread."""
        self._network.close()
        if not self._aborted:
            self._thread.join()

    def abort(self) -> None:
        """From another thread: whoever waits for a transfer gets an error."""
        self._aborted = True
        self._network.close()

    @property
    def waits(self) -> tuple[float, list[int]] | None:
        """Since when a transfer is under way (time.monotonic), and the ranks that it waits for."""
        return self._waits

    def _serve(self) -> None:
        """Nobody waits for a thread that has ended."""
        try:
            self._serve_all()
        finally:
            self._network.close()

    def _serve_all(self) -> None:
        while (transfer := self._network.next_transfer()) is not None:
            number, messages = transfer
            error = self._moved(messages)
            try:
                self._network.end_transfer(number, error)
            except ValueError:
                if not self._aborted:  # which has ended it
                    raise

    def _moved(self, messages: list[Message]) -> str:
        """Why it failed, in words; empty: it did not."""
        waits: list[tuple[int, float]] = []
        peer, began = messages[0][0], time.monotonic()

        def wait(peers: Sequence[int], call: Callable[[], Any]) -> None:
            nonlocal peer
            peer, since = peers[0], time.monotonic()
            self._waits = (began, sorted(set(peers)))
            call()
            waits.append((peer, time.monotonic() - since))

        try:
            self._carrier.move(messages, wait)
            self._waits = None
            self.waited.add(waits, sum(data.nbytes for _, _, data in messages))
        except Exception as error:  # of whatever kind a backend's own are
            self._waits = None
            self._disturbed()
            return f"{self._name(peer)} cannot be reached any more: {first_line(error)}"
        return ""
