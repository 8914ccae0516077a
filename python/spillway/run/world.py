"""The processes of a run, as its loop sees them. A world of one is this process and nothing else: it asks nobody, waits
for nobody, and never imports torch.distributed. `run.processes` is a world of several."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from spillway._engine import Delay
from spillway.base import ranks
from spillway.base.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from spillway.machine.place import Place

T = TypeVar("T")


class World(Protocol):
    """All processes make the same calls in the same order. One that fails takes the others with it: its error is raised
    in all of them, at their next call, and told by rank 0 alone."""

    ranks: Ranks
    ended: bool  # the processes have ended together, by an error
    again: bool  # a launcher has started others before them, which they go on for
    held: Callable[[], AbstractContextManager[None]]  # what a call is made inside of

    @property
    def leads(self) -> bool:
        """True for rank 0, which writes `output_dir` and speaks to people."""

    def gather(self, value: T) -> list[T]:
        """The value of each process, by rank. Small values that can be pickled."""

    def agreed(self, make: Callable[[], T]) -> T:
        """The value that `make` returns on rank 0; the others do not call it."""

    def announce(self) -> None:
        """This process has failed: those that wait for bytes of it need not."""

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all processes with the first that failed, and raises what came of it."""

    def close(self) -> None:
        """Nobody goes before all have come to their end."""

    def serve(self, network: Any, voter: Any = None) -> AbstractContextManager[None]:
        """Inside, the engine's transfers through this port (_engine.Network) are made, and the votes of `voter`
        (_engine.Engine) on durable steps are counted."""

    def network(self) -> dict[str, float]:
        """As measured now: {"network": bytes per second that a process sends to other machines and receives, while all
        of its machine do, "network_inside": the same inside the machine, "network_latency": seconds of most messages}.
        What there is none of is left out."""

    def carry(self, backend: str, place: Place) -> None:
        """From here on the model's bytes between processes go as the key `ddp_backend` says; layers compute at `place`.
        InputError where they cannot."""

    def port(self) -> Any:
        """A new port for `serve`; None in a world of one."""

    def listen(self, lateness: Callable[[], Delay | None] | None, output_dir: Path | None = None) -> None:
        """While `serve` goes on this is asked what the others wait for this process for (_engine.Engine.lateness());
        None: no more. `output_dir`: of the run, for rank 0, where `spillway doctor` finds who is late."""

    def waited(self) -> dict[int, float]:
        """Seconds that this process has waited for each other rank in transfers, beyond what their bytes take. Before
        `serve` ends; empty in a world of one."""


class OneProcess:
    """A world of one."""

    def __init__(self, again: bool = False) -> None:
        self.ranks = ALONE
        self.ended = False
        self.again = again
        self.leads = True
        self.held: Callable[[], AbstractContextManager[None]] = nullcontext

    def gather(self, value: T) -> list[T]:
        return [value]

    def agreed(self, make: Callable[[], T]) -> T:
        return make()

    def announce(self) -> None:
        pass

    def fail(self, error: BaseException) -> NoReturn:
        raise error

    def close(self) -> None:
        pass

    def serve(self, network: Any, voter: Any = None) -> AbstractContextManager[None]:
        return nullcontext()

    def network(self) -> dict[str, float]:
        return {}

    def carry(self, backend: str, place: Place) -> None:
        pass

    def port(self) -> Any:
        return None

    def listen(self, lateness: Callable[[], Delay | None] | None, output_dir: Path | None = None) -> None:
        pass

    def waited(self) -> dict[int, float]:
        return {}


@contextmanager
def opened() -> Iterator[World]:
    """The world that a launcher has started, or that the process group of torch.distributed is where there is one."""
    world = joined()
    try:
        yield world
    except BaseException as error:
        world.fail(error)
    world.close()


def joined(stays: bool = False) -> World:
    """`opened`, for one who closes it. `stays`: the process group, for worlds that come after this one."""
    if not several():
        return OneProcess(ranks.restarted(os.environ))
    return import_module("spillway.run.processes").Processes(stays)  # type: ignore[no-any-return]


@contextmanager
def ended_together(world: World, end: Callable[[], None]) -> Iterator[None]:
    """Inside, what fails in a process of several ends all of them: `end` has closed what they share by then. Such
    calls may be made of each other."""
    try:
        yield
    except BaseException as error:
        if world.ranks.world == 1:
            raise
        if not world.ended:
            world.announce()
        with suppress(Exception):  # the first error is the one to tell
            end()
        if world.ended:
            raise
        world.fail(error)


def interleaved(parts: Sequence[Sequence[T]]) -> list[T]:
    """The parts of each process, by rank, in one order: the first of each, then the second of each, and so on."""
    most = max(map(len, parts))
    return [part[place] for place in range(most) for part in parts if place < len(part)]


def several() -> bool:
    """InputError where the environment contradicts itself."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    return ranks.of_environment(os.environ).world > 1
