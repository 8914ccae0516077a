"""The parts that the processes of a run have left, read by one process: an engine for each, which exchange what they
read inside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from spillway.base.ranks import Ranks
from spillway.config import Config
from spillway.output import volumes
from spillway.output.identity import Identity

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """The state that one process has left on its storage paths."""

    config: Config  # with its paths
    host: str  # that it was on
    run: str

    def __str__(self) -> str:
        return f"shard {self.config.ranks.rank} ({self.host})"

    @property
    def missing(self) -> list[Path]:
        """Volumes that cannot be reached from here."""
        there = volumes.of_run(self.config.paths, self.run)
        return [each for each in map(volumes.volume, self.config.paths) if each not in there]

    def port(self) -> Any:
        """To the other shards; None where there are none."""
        ranks = self.config.ranks
        return import_module("spillway._engine").Network(ranks.rank, ranks.world) if ranks.world > 1 else None


def shards_of(config: Config, known: Identity) -> list[Shard]:
    """The shards by number; a run of one process has one."""
    if not known.several:
        return [Shard(config, "", known.run)]
    world = len(known.processes)
    return [
        Shard(config.among(Ranks(rank, world, local_rank, local_world)), host, known.run)
        for rank, (host, local_rank, local_world, _) in enumerate(known.processes)
    ]


def unreached(shards: Sequence[Shard]) -> list[str]:
    """In words, what cannot be read from here."""
    return [
        f"{shard} has no volume of the run at {', '.join(map(str, missing))}"
        for shard in shards
        if (missing := shard.missing)
    ]


class Exchange:
    """Moves bytes between ports of this process: what one sends is kept until the other takes it."""

    def __init__(self, ports: Sequence[Any]) -> None:
        """`ports`: by rank, _engine.Network."""
        world = range(len(ports))
        self._ports = ports
        self._boxes = {(one, other): SimpleQueue[bytes | None]() for one in world for other in world if one != other}

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all calls, made at once, one for each port; raises the error of the first call that fails."""
        count = len(calls)
        if count == 1:
            return [calls[0]()]
        with ThreadPoolExecutor(2 * count) as pool:
            for rank in range(count):
                pool.submit(self._serve, rank)
            made = [pool.submit(call) for call in calls]
            try:
                done, _ = wait(made, return_when=FIRST_EXCEPTION)
                first = [each for each in done if each.exception()][:1]
            finally:
                self._close()
        return [each.result() for each in [*first, *made]][len(first) :]

    def _close(self) -> None:
        """Nobody waits any more."""
        for port in self._ports:
            port.close()
        for box in self._boxes.values():
            box.put(None)

    def _serve(self, rank: int) -> None:
        """Nobody waits for a thread that has ended."""
        try:
            self._serve_all(rank, self._ports[rank])
        finally:
            self._close()

    def _serve_all(self, rank: int, port: Any) -> None:
        while (transfer := port.next_transfer()) is not None:
            number, messages = transfer
            for peer, sends, data in messages:
                if sends:
                    self._boxes[rank, peer].put(data.tobytes())
            whole = all([sends or self._take(self._boxes[peer, rank], data) for peer, sends, data in messages])
            port.end_transfer(number, "" if whole else "another part of the run could not be read")

    def _take(self, box: SimpleQueue[bytes | None], data: Any) -> bool:
        content = box.get()
        if content is not None:
            data[:] = np.frombuffer(content, dtype=np.uint8)
        return content is not None
