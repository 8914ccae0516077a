"""Moves the bytes of the engine's transfers with torch.distributed, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

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
        """By rank. Any thread."""
        found: dict[int, float] = {}
        for (rank, size), (total, count) in list(self._sums.items()):
            found[rank] = found.get(rank, 0.0) + max(0.0, total - count * self._least[size])
        return found


class Service:
    """Serves a port until it is closed. One group, one thread, one order of transfers that is the same on all ranks, so
    that no rank waits for another in a circle."""

    def __init__(
        self,
        network: Any,
        group: Any = None,
        name: Callable[[int], str] = numbered,
        disturbed: Callable[[], None] = lambda: None,
    ) -> None:
        """`network`: _engine.Network. `group`: of torch.distributed, with a backend for host memory; None: all
        processes. `name`: of a rank, for people. `disturbed` is called when another process fails a transfer."""
        self._network, self._group, self._name, self._disturbed = network, group, name, disturbed
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

    def _moved(self, messages: list[tuple[int, bool, Any]]) -> str:
        """Why it failed, in words; empty: it did not."""
        messages = received_first(messages)
        peers = [peer for peer, _, _ in messages]
        peer = peers[0]
        waits: list[tuple[int, float]] = []
        try:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend if sends else dist.irecv, torch.from_dlpack(data), peer, self._group)
                    for peer, sends, data in messages
                ]
            )
            began = since = time.monotonic()
            for number, work in enumerate(works):
                peer = peers[number]
                self._waits = (began, sorted(set(peers[number:])))
                work.wait()
                before, since = since, time.monotonic()
                waits.append((peer, since - before))
            self._waits = None
            self.waited.add(waits, sum(data.nbytes for _, _, data in messages))
        except Exception as error:  # of whatever kind a backend's own are
            self._waits = None
            self._disturbed()
            reason = str(error).strip().partition("\n")[0]
            return f"{self._name(peer)} cannot be reached any more: {reason}"
        return ""


def received_first(messages: list[tuple[int, bool, Any]]) -> list[tuple[int, bool, Any]]:
    """As they are begun. gloo sends nothing before the other side has said that it receives, which it says through the
    connection that its own bytes go through: behind them, both directions would take turns."""
    return sorted(messages, key=lambda message: message[1])
