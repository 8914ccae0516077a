"""A world of several processes, over torch.distributed: what they tell each other beside the bytes of the model.

There are three groups, each with one thread and one order of calls, so that none waits for another in a circle: `data`
for the engine's transfers (`run.network`), `commit` for votes on durable steps, `control` for everything here. A call
is a round: every process sends rank 0 a value, or the error that ends it, and rank 0 sends all of them what it was
given, or the error. So errors need no calls of their own, and whoever is missing is known by name.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from spillway.base import ranks
from spillway.base.ranks import Ranks
from spillway.base.silence import tell_person
from spillway.errors import DoesNotFit, InputError, Interrupted, SpillwayError, first_line
from spillway.machine.place import Place
from spillway.run.carriers import Carrier, DeviceBytes, HostBytes, at_once, greetings
from spillway.run.lateness import Ask, Lateness
from spillway.run.meeting import group, meet
from spillway.run.network import LOOKS, Service
from spillway.run.votes import Votes

T = TypeVar("T")
PATIENCE = timedelta(hours=1)  # that a process waits for another one that is alive but sends nothing
LATE = 20.0  # seconds after which a person is told of a process that lets others wait
MEASURED, TRIES = 16 * 2**20, 5  # bytes that a measurement of the network moves, and how often
AGAIN = 600.0  # seconds after which this may be told again
LINGER = timedelta(seconds=5)  # that the others wait for rank 0 to end before they do
FAILED = "failed"  # in the store at which they met: somebody has failed
TOLD = "told"  # somebody has said that rank 0 is gone


@dataclass(frozen=True)
class Failure:
    """The reason why a process ended."""

    rank: int
    words: str
    code: int  # exit code
    follows: bool = False  # it came of another process's end
    gone: bool = False  # that process says nothing any more


class Processes:
    """See spillway.run.world.World."""

    def __init__(self, stays: bool = False) -> None:
        self.ended = False
        self.held: Callable[[], AbstractContextManager[None]] = nullcontext
        begins = not dist.is_initialized()
        self._store = meet()
        self._goes = begins and not stays  # the process group, when this is closed
        rank, size = dist.get_rank(), dist.get_world_size()
        self._control, data, self._commit = (
            group(self._store, name, PATIENCE) for name in ("control", "data", "commit")
        )
        self._groups = [self._control, data, self._commit]
        self._carrier: Carrier = HostBytes(data)
        self._disturbed = False  # what fails from now on does because of another process
        self._failed = False  # this process has
        self._closing = False  # nothing is to be done any more
        self._service: Service | None = None
        self._votes: Votes | None = None
        self._waits: tuple[float, list[int]] | None = None  # of a round: since when, for whom
        self._told: dict[tuple[int, ...], float] = {}  # when a person was told that others are late
        self._lateness = Lateness(self._store, rank, size, self.named)
        self.ranks = Ranks(rank, size)
        self.hosts: list[str] = ["?"] * size
        self.hosts = self.gather(socket.gethostname())
        self.ranks = placed(rank, self.hosts)
        machines = ranks.machines_of(self.gather((self.ranks.local_rank, self.ranks.local_world)))
        self.ranks = replace(self.ranks, machines=machines)
        self.again = any(self.gather(ranks.restarted(os.environ)))  # each agent of torchrun counts its own

    @property
    def leads(self) -> bool:
        return self.ranks.rank == 0

    def gather(self, value: T) -> list[T]:
        return self._round((value, None))

    def agreed(self, make: Callable[[], T]) -> T:
        return self.gather(make() if self.leads else None)[0]  # type: ignore[return-value]

    def announce(self) -> None:
        self._failed = True
        self._let_go()
        with suppress(Exception):  # of a store that is gone
            self._store.set(FAILED, str(self.ranks.rank))

    def carry(self, backend: str, place: Place) -> None:
        if backend != "nccl" or isinstance(self._carrier, DeviceBytes):
            return
        if why := next(filter(None, self.gather(without_nccl(place))), None):
            raise InputError(f"ddp_backend: {why}")
        try:
            self._groups.append(group(self._store, "data of devices", PATIENCE, backend))
            self._carrier = DeviceBytes(self._groups[-1], self._carrier, place.device, self.ranks.world)
            others = [rank for rank in range(self.ranks.world) if rank != self.ranks.rank]
            self._carrier.move(greetings(others), at_once)  # what NCCL takes of a GPU for each is not there for plans
        except RuntimeError as error:
            raise InputError(f"ddp_backend: nccl: {first_line(error)}; leave it out") from error

    @contextmanager
    def serve(self, network: Any, voter: Any = None) -> Iterator[None]:
        service = self._service = Service(network, self._carrier, self.named, self._was_disturbed)
        self._votes = None if voter is None else Votes(voter, self._commit, self._was_disturbed)
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(service, over), name="failures", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
            service.close()
            if self._votes is not None:
                self._votes.close()
            self._service = self._votes = None

    def network(self) -> dict[str, float]:
        """Each process sends to the next one and receives from the one before, all at once: of its machine, and of the
        same place on other machines, which is where the bytes of a step go."""
        rank, world, machines = self.ranks.rank, self.ranks.world, self.ranks.machines
        local = world // machines
        first = rank - rank % local
        rates: dict[str, float] = {}
        if local > 1:
            rates |= self._measured("network_inside", first + (rank + 1) % local, first + (rank - 1) % local)
        if machines > 1:
            rates |= self._measured("network", (rank + local) % world, (rank - local) % world)
        return rates

    def _measured(self, name: str, to: int, source: int) -> dict[str, float]:
        one, many = (seconds(functools.partial(passed_on, size, to, source, self._carrier)) for size in (1, MEASURED))
        return {name: MEASURED / min(many), "network_latency": statistics.median(one)}

    def port(self) -> Any:
        return import_module("spillway._engine").Network(self.ranks.rank, self.ranks.world)

    def listen(self, lateness: Ask | None, output_dir: Path | None = None) -> None:
        self._lateness.listen(lateness, output_dir if self.leads else None)

    def waited(self) -> dict[int, float]:
        return {} if self._service is None else self._service.waited.seconds()

    def named(self, rank: int) -> str:
        return f"rank {rank} ({self.hosts[rank]})"

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all processes with the first that failed; does not return."""
        if self.ended or not isinstance(error, Exception | KeyboardInterrupt):
            raise error
        failure = Failure(self.ranks.rank, *words_of(error), follows=self._disturbed)
        self._round((None, failure), error)
        raise AssertionError("a round with a failure has ended well")

    def close(self) -> None:
        """Nobody goes before all have come to their end; one that has gone already was at its own."""
        self._closing = True
        self.gather(None)
        for each in self._groups:
            dist.destroy_process_group(each)
        if self._goes:
            dist.destroy_process_group()

    # ---- rounds

    def _round(self, given: tuple[Any, Failure | None], cause: BaseException | None = None) -> list[Any]:
        with self.held():
            values, failure = self._led(given) if self.leads else self._followed(given)
            self.ended = failure is not None
        if failure is not None:
            raise self._error(failure) from cause
        return values

    def _led(self, given: tuple[Any, Failure | None]) -> tuple[list[Any], Failure | None]:
        answers, gone = [given], []
        for rank in range(1, self.ranks.world):
            self._waits = (time.monotonic(), [rank])
            try:
                answers.append(receive(rank, self._control))
            except RuntimeError:
                gone.append(rank)
        self._waits = None
        lost = [] if self._closing else [self._lost(rank) for rank in gone]
        failure = first_of([each for _, each in answers if each is not None], lost)
        reply = ([value for value, _ in answers] if failure is None else [], failure)
        for rank in range(1, self.ranks.world):
            if rank not in gone:
                with suppress(RuntimeError):  # of one that has gone meanwhile the next round knows
                    send(reply, rank, self._control)
        return reply

    def _followed(self, given: tuple[Any, Failure | None]) -> tuple[list[Any], Failure | None]:
        try:
            send(given, 0, self._control)
            reply: tuple[list[Any], Failure | None] = receive(0, self._control)
        except RuntimeError:
            return [], None if self._closing else self._lost(0)
        if reply[1] is not None:  # a launcher ends the others when one has gone, and rank 0 is to tell why
            with suppress(RuntimeError):
                dist.irecv(torch.zeros(1), 0, group=self._control).wait(LINGER)
        return reply

    def _lost(self, rank: int) -> Failure:
        return Failure(rank, "has ended without a word (killed, or its machine is gone)", 1, gone=True)

    def _error(self, failure: Failure) -> SpillwayError:
        """For this process; rank 0, or where that is gone the first to ask, is to tell it."""
        kind = {2: InputError, 3: DoesNotFit}.get(failure.code, SpillwayError)
        words = f"{self.named(failure.rank)}: {failure.words}" if failure.rank >= 0 else failure.words
        error = Interrupted(words, failure.code - 128) if failure.code > 128 else kind(words)
        error.at_once = True
        error.silent = not self.leads and not (failure.gone and failure.rank == 0 and self._tells_of_first())
        return error

    def _tells_of_first(self) -> bool:
        """True if this process speaks for those that outlive rank 0."""
        try:
            return bool(self._store.add(TOLD, 1) == 1)
        except Exception:  # the store was in rank 0
            return self.ranks.rank == 1

    # ---- transfers

    def _let_go(self) -> None:
        """Nobody will end what is under way."""
        if self._service is not None:
            self._service.abort()
        if self._votes is not None:
            self._votes.abort()

    def _was_disturbed(self) -> None:
        self._disturbed = True

    def _watch(self, service: Service, over: threading.Event) -> None:
        """Lets go of transfers that wait for one who has failed, and says once for whom this process waits long."""
        while not over.wait(LOOKS):
            waits = service.waits or self._waits
            self._lateness.look(waits)
            self._tell_late(waits)
            try:
                failed = self._store.check([FAILED])
            except Exception:  # the store is gone, and so is its process
                failed = True
            if failed:
                self._disturbed = self._disturbed or not self._failed
                self._let_go()
                return

    def _tell_late(self, waits: tuple[float, list[int]] | None) -> None:
        """Says for whom this process waits long; of the same ones not again for a while."""
        now = time.monotonic()
        if waits is None or now - waits[0] < LATE:
            return
        late = tuple(waits[1])
        if now - self._told.get(late, -AGAIN) >= AGAIN:
            named = self._lateness.why(late)
            tell_person(f"{self.named(self.ranks.rank)} has waited for {LATE:.0f} s for {named}")
            self._told[late] = now


def placed(rank: int, hosts: list[str]) -> Ranks:
    """As the launcher says it; else by who else is on this machine."""
    said = ranks.of_environment(os.environ) if "LOCAL_WORLD_SIZE" in os.environ else ranks.ALONE
    if (said.rank, said.world) == (rank, len(hosts)):
        return said
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return Ranks(rank, len(hosts), here.index(rank), len(here))


def first_of(failures: list[Failure], lost: list[Failure]) -> Failure | None:
    """The one that the others came of. What all say alike is nobody's own; and a launcher stops the others when one
    has gone."""
    own = [failure for failure in failures if not (failure.follows or (lost and failure.code > 128))]
    ordered = [*own, *lost, *failures]
    if not ordered:
        return None
    alike = len(own) > 1 and not lost and len({(failure.words, failure.code) for failure in own}) == 1
    return Failure(-1, own[0].words, own[0].code) if alike and len(own) == len(failures) else ordered[0]


def words_of(error: BaseException) -> tuple[str, int]:
    """The words that are told of an error, and its exit code, as on the command line."""
    if isinstance(error, SpillwayError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; nothing was started", 128 + signal.SIGINT
    return f"{type(error).__name__}: {error}", 1


def without_nccl(place: Place) -> str:
    """Why this process has no NCCL; empty where it has."""
    if not place.on_gpu:
        return "nccl takes bytes by way of GPUs, and layers compute on the CPUs; give --device cuda, or leave it out"
    if not dist.is_nccl_available():
        return f"PyTorch {torch.__version__} was built without nccl; leave it out"
    return ""


def passed_on(size: int, to: int, source: int, carrier: Carrier) -> None:
    """So many bytes from each process to another."""
    given, taken = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    carrier.move([(source, False, taken), (to, True, given)], at_once)


def seconds(call: Callable[[], None]) -> list[float]:
    """The duration of each of several calls."""
    durations = []
    for _ in range(TRIES):
        began = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began)
    return durations


def send(value: Any, peer: int, group: Any) -> None:
    content = bytearray(pickle.dumps(value))
    dist.send(torch.tensor([len(content)]), peer, group=group)
    dist.send(torch.frombuffer(content, dtype=torch.uint8), peer, group=group)


def receive(peer: int, group: Any) -> Any:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, peer, group=group)
    content = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(content, peer, group=group)
    return pickle.loads(content.numpy().tobytes())
