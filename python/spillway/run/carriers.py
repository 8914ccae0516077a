"""How torch.distributed moves messages between host memories: straight out of and into them, or by way of the GPU of
each process. Only bytes move; all adding is the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any, Protocol

import torch
import torch.distributed as dist

Message = tuple[int, bool, Any]  # the other rank, whether it is sent to it, and the bytes in host memory (DLPack)
Wait = Callable[[Sequence[int], Callable[[], Any]], None]  # calls; until then it is these ranks that are waited for
STAGED = 128 * 2**20  # bytes of a GPU that hold what is under way
LINE = 512  # bytes that parts begin at multiples of, there
SETS = 2  # of buffers: of one the bytes are copied while those of the other cross the network


class Carrier(Protocol):
    def move(self, messages: Sequence[Message], wait: Wait) -> None:
        """Returns when all have arrived and left. All processes make the same calls in one order, and what one sends
        another the other receives in the same call. Raises what the backend does."""


class HostBytes:
    """A carrier over a backend that takes host memory: gloo."""

    def __init__(self, group: Any = None) -> None:
        """`group`: of torch.distributed; None: all processes."""
        self._group = group

    def move(self, messages: Sequence[Message], wait: Wait) -> None:
        messages = received_first(messages)
        works = dist.batch_isend_irecv(
            [operation(peer, sends, torch.from_dlpack(data), self._group) for peer, sends, data in messages]
        )
        peers = [peer for peer, _, _ in messages]
        for number, work in enumerate(works):
            wait(peers[number:], work.wait)


class DeviceBytes:
    """A carrier over a backend that takes device memory: NCCL. Bytes are copied to the device, sent, and copied back,
    in parts. One part crosses the network while another is copied.

    A rank that is late is waited for on the host, so that the device computes meanwhile: transfers begin when all that
    take part in them have said so."""

    def __init__(self, group: Any, ready: Carrier, device: torch.device, world: int) -> None:
        """`ready`: of a byte from each to each, which says so. Takes STAGED bytes of the device."""
        self._group, self._ready = group, ready
        ways = 2 * (world - 1)
        self._part = max(LINE, STAGED // (SETS * ways) // LINE * LINE)
        shape = (SETS, ways, self._part)
        self._staged = torch.empty(shape, dtype=torch.uint8, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in range(SETS)] if device.type == "cuda" else []

    def move(self, messages: Sequence[Message], wait: Wait) -> None:
        peers = sorted({peer for peer, _, _ in messages})
        self._ready.move(greetings(peers), wait)
        ways: dict[tuple[int, bool], list[torch.Tensor]] = {}
        for peer, sends, data in received_first(messages):
            ways.setdefault((peer, sends), []).append(torch.from_dlpack(data))
        for number, each in enumerate(zip_longest(*(parts(views, self._part) for views in ways.values()))):
            with self._stream(number % SETS):
                self._exchange(self._staged[number % SETS], zip(ways, each, strict=True))
        for stream in self._streams:
            wait(peers, stream.synchronize)

    def _stream(self, number: int) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[number]) if self._streams else nullcontext()

    def _exchange(
        self, staged: torch.Tensor, round_: Iterable[tuple[tuple[int, bool], list[torch.Tensor] | None]]
    ) -> None:
        """A part of each way, in the order of this thread's stream. `staged`: (ways, bytes)."""
        operations, arriving = [], []
        for (peer, sends), views in round_:
            if views is None:
                continue
            lengths = [len(view) for view in views]
            buffer, staged = staged[0, : sum(lengths)], staged[1:]
            operations.append(operation(peer, sends, buffer, self._group))
            pairs = list(zip(buffer.split(lengths), views, strict=True))
            if sends:
                copy(pairs)
            else:
                arriving += [(view, place) for place, view in pairs]
        for work in dist.batch_isend_irecv(operations):
            work.wait()  # with NCCL the stream does
        copy(arriving)


def at_once(_: Sequence[int], call: Callable[[], Any]) -> None:
    """A Wait of which nobody is told."""
    call()


def greetings(peers: Sequence[int]) -> list[Message]:
    """A byte to each and one of each."""
    ways = [(peer, sends) for sends in (False, True) for peer in peers]
    tokens = torch.zeros(len(ways), dtype=torch.uint8).split(1)
    return [(*way, token) for way, token in zip(ways, tokens, strict=True)]


def operation(peer: int, sends: bool, data: torch.Tensor, group: Any) -> dist.P2POp:
    return dist.P2POp(dist.isend if sends else dist.irecv, data, peer, group)


def copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Into the first of each."""
    for to, of in pairs:
        to.copy_(of, non_blocking=True)


def parts(views: Iterable[torch.Tensor], size: int) -> Iterator[list[torch.Tensor]]:
    """The bytes of all, one after the other, in parts of so many bytes but for the last."""
    part: list[torch.Tensor] = []
    left = size
    for view in views:
        while len(view):
            part.append(view[:left])
            view, left = view[left:], left - len(part[-1])
            if left == 0:
                yield part
                part, left = [], size
    if part:
        yield part


def received_first(messages: Sequence[Message]) -> list[Message]:
    """As they are begun. gloo sends nothing before the other side has said that it receives, which it says through the
    connection that its own bytes go through: behind them, both directions would take turns."""
    return sorted(messages, key=lambda message: message[1])
