"""Which line of a run its processes go on with, and how another number of them takes over what one has left
(docs/decisions/0010-another-world.md). What is decided by what is found says the engine (`way_on`)."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway._engine import DurableStep, Engine, FoundShard, KeptLine, PlanSummary, RunLines, WayKind, WayOn, way_on
from spillway.base.sizes import size
from spillway.config.values import StoragePath
from spillway.errors import DoesNotFit, InputError
from spillway.output import directory, volumes
from spillway.output.base_files import BASE
from spillway.output.directory import Start
from spillway.output.identity import Identity
from spillway.output.volumes import ShardVolumes
from spillway.run.protocol import StartPoint
from spillway.run.world import World

if TYPE_CHECKING:
    from spillway.run.protocol import Recovery, SessionProtocol


@dataclass(frozen=True)
class Way:
    """How the processes go on."""

    kind: WayKind
    line: KeptLine  # that they go on from
    step: int = 0  # with `redeal` the arguments of Engine.redeal
    readers: Sequence[int] = ()
    places: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Source:
    """Volumes of a shard, the rank that reads them, and the step that is durable on them."""

    rank: int
    shard: ShardVolumes
    newest: DurableStep


class Lines:
    """The lines that run.json names. All processes make the same calls; rank 0 writes."""

    def __init__(
        self,
        identity: Identity,
        output_dir: Path,
        paths: Sequence[StoragePath],
        world: World,
        also: Sequence[str] = (),
    ) -> None:
        """`paths`: of this process. `also`: other places where the run's volumes may be."""
        self._identity, self._output_dir, self._paths, self._world = identity, output_dir, paths, world
        self._places = list(dict.fromkeys([*(path.place for path in paths), *also]))

    @property
    def change(self) -> bool:
        """True if another number of processes kept the line, or was being replaced."""
        return self._identity.world not in (0, self._world.ranks.world) or self._identity.before is not None

    @property
    def _before(self) -> KeptLine | None:
        before = self._identity.before
        return None if before is None else KeptLine(number=int(before["line"]), world=int(before["world"]))

    def start(self, session: SessionProtocol, start: Start) -> Recovery | None:
        """Starts the session. No volume is made before its run is known in `output_dir`, and which line of it is to be
        on all volumes."""
        several, durable = self._world.ranks.world > 1, session.planned.durability != "none"
        goes_on = start.durable or start.resume is not None
        base = self._identity.fixed.get(BASE) if goes_on else None
        start_point = StartPoint(start.resume, start.durable, start.fresh, start.held, base=base)
        if not durable:
            self._identity.processes = self._whereabouts() if several else []
        if durable and (several or self.change):
            if not start.durable and self._world.ranks.world == 1:
                self.renew()
            start_point = replace(start_point, line=partial(self._line, start), lines=self)
        elif not (self._world.leads and any(tier.name.startswith("path:") for tier in session.planned.tiers)):
            return session.start(start_point)
        with self._identity.claim(self._output_dir) if self._world.leads else nullcontext():
            return session.start(start_point)

    def _line(self, start: Start) -> int:
        """Another one, where the run does not go on with what is on the paths; in run.json before any volume is of
        it."""
        if not start.durable:
            self.renew()
        self.save()
        return self._identity.line

    def commit_start(self, session: SessionProtocol, state: dict[str, Any] | None, goes_on: bool, anew: bool) -> None:
        """The run is known in `output_dir`, and its first step is made durable with `state`; None: it is one that was
        durable. What other lines have left goes then. `goes_on`: it is not the run's first one; `anew`: what was there
        is given up."""
        if anew:
            begun = self._world.gather([str(volumes.volume(path)) for path in self._paths])
            volumes.give_up_others(self._paths, self._identity.run, {Path(each) for part in begun for each in part})
        if state is not None:
            session.commit(state)
        if goes_on or self._identity.shared:
            session.settle()
        if state is not None and self._identity.shared:
            self.settle()

    def _whereabouts(self) -> list[list[Any]]:
        """Identity.processes."""
        ranks, places = self._world.ranks, [str(Path(path.place).absolute()) for path in self._paths]
        return self._world.gather([socket.gethostname(), ranks.local_rank, ranks.local_world, places])

    def _processes_of(self, line: KeptLine | None) -> list[list[Any]]:
        known = self._identity
        replaced = known.before is not None and line == self._before
        return known.before["processes"] if replaced and known.before is not None else known.processes

    def look(self, engine: Engine) -> Way:
        """InputError where a shard is missed."""
        world, known = self._world, self._identity
        rank = world.ranks.rank
        every = world.gather(volumes.shards(self._places, known.run))
        readers = chosen(every, world.ranks.world)
        own = []
        for shard in readers:
            if readers[shard] == rank:
                newest = engine.durable_step_of(shard.world, shard.shard, shard.places)
                own.append((shard, newest.step, newest.line))
        sources = [
            Source(at, shard, DurableStep(step=step, line=line))
            for at, each in enumerate(world.gather(own))
            for shard, step, line in each
        ]
        shards = [FoundShard(world=it.shard.world, shard=it.shard.shard, newest=it.newest) for it in sources]
        lines = RunLines(now=KeptLine(number=known.line, world=known.world), before=self._before)
        way = way_on(lines, shards, world.ranks.world)
        if way.kind is WayKind.missing:
            raise InputError(self._missed(way))
        if way.kind is not WayKind.redeal:
            return Way(way.kind, way.line)
        chosen_sources = [choose_source(sources, way.line, shard) for shard in range(way.line.world)]
        places = [it.shard.places if it.rank == rank else () for it in chosen_sources]
        return Way(way.kind, way.line, way.step, [it.rank for it in chosen_sources], places)

    def require_other_devices(self, line: KeptLine) -> None:
        """InputError where what the processes of the line have left is on a block device of these: it has room for one
        volume."""
        own = [path.place for path in self._paths if Path(path.place).is_block_device()]
        run, world = self._identity.run, line.world
        held = [place for place in own if any(each.superblock.world == world for each in volumes.told_of([place], run))]
        if taken := [place for places in self._world.gather(held) for place in places]:
            raise InputError(
                f"storage_device: {', '.join(taken)} hold what {line.world} processes have left of the run, and a "
                f"block device has room for one volume, so {self._world.ranks.world} cannot take it over there; name "
                f"other devices or directories, or start {line.world} processes"
            )

    def require_room(self, plan: PlanSummary) -> None:
        """DoesNotFit where the volumes of all processes have no room beside those that are there."""
        peaks = [tier.planned_peak for tier in plan.tiers if tier.name.startswith("path:")]
        own = []
        for path, peak in zip(self._paths, peaks, strict=False):
            if Path(path.place).is_block_device():
                continue
            replaced = volumes.held(path) if volumes.volume(path).is_file() else 0
            where = os.stat(path.place)
            free = shutil.disk_usage(path.place).free
            own.append((socket.gethostname(), where.st_dev, path.place, peak - replaced, free))
        needed: dict[tuple[str, int], list[Any]] = {}
        for host, device, place, more, free in (each for part in self._world.gather(own) for each in part):
            entry = needed.setdefault((host, device), [0, free, host, place])
            entry[0] += more
        for more, free, host, place in needed.values():
            if more > free:
                raise DoesNotFit(
                    f"storage: {self._world.ranks.world} processes go on with what {self._identity.world} have left, "
                    f"and until they have it both need room: on the file system of {place} ({host}) the new volumes "
                    f"take {more} bytes ({size(more)}) and {free} are free, {more - free} too few. Nothing was "
                    f"written; free space there, give other paths, or go on with {self._identity.world} processes"
                )

    def begin(self, before: KeptLine | None) -> int:
        """A new line of this world, which is in run.json when this returns; `before`: what it begins with. Volumes that
        have its names are of no line that is needed, and are gone before: a process alone numbers none of its lines."""
        known = self._identity
        processes = self._processes_of(before)
        for there in volumes.of_run(self._paths, known.run):
            volumes.remove(there, known.run)
        self._world.gather(None)
        self.renew()
        known.before = None
        if before is not None:
            known.before = {"line": before.number, "world": before.world, "processes": processes}
        self.save()
        return known.line

    def restore(self, line: KeptLine) -> None:
        """The line goes on that was being replaced, or the one that is named already, whose volumes all have it."""
        known = self._identity
        if known.before is not None and line == self._before:
            known.line, known.world, known.processes = line.number, line.world, known.before["processes"]
            known.before = None
            self.save()

    def renew(self) -> None:
        """The run begins a line anew, or at a checkpoint."""
        known, world = self._identity, self._world.ranks.world
        known.line = self._world.agreed(lambda: 1 + secrets.randbelow(2**62)) if world > 1 else 0
        known.shared = known.shared or world > 1 or known.world > 1
        known.world, known.before, known.processes = world, None, []

    def save(self) -> None:
        self._identity.processes = self._whereabouts()
        self._world.agreed(lambda: self._identity.save(self._output_dir))

    def settle(self) -> None:
        """All processes have a step durable: what other numbers of them have left goes, and then its line."""
        host, own = socket.gethostname(), volumes.of_other_numbers(self._paths, self._identity.run, self._places)
        first: dict[tuple[str, str], int] = {}  # of those that reach it
        for rank, each in enumerate(self._world.gather([(host, str(there)) for there in own])):
            for there in each:
                first.setdefault(there, rank)
        for volume in own:
            if first[host, str(volume)] == self._world.ranks.rank:
                volumes.remove(volume, self._identity.run)
        self._world.gather(None)
        if self._identity.before is not None:
            self._identity.before = None
            self._world.agreed(lambda: self._identity.save(self._output_dir))

    def _missed(self, way: WayOn) -> str:
        line, told = way.line, []
        processes = self._processes_of(line)
        for shard in way.missing:
            host, _, _, where = processes[shard] if shard < len(processes) else ("?", 0, 0, ["?"])
            told.append(f"shard {shard} of {line.world}, last on {host} in {', '.join(where)}")
        checkpoint = self._world.agreed(lambda: directory.newest_alone(self._output_dir))
        back = f"--resume_from_checkpoint {checkpoint}" if checkpoint else "which there is none of"
        return (
            f"storage: no process reaches all volumes of {'; '.join(told)}, and without them the last step of the run "
            "cannot be had. Mount them where its processes look, or go back to the newest checkpoint that stands "
            f"alone, {back}"
        )


def volumes_of(
    paths: Sequence[StoragePath], known: Identity | None, also: Sequence[str], world: World
) -> tuple[list[Path], list[Path]]:
    """The volumes of all processes, and those that another number of processes of the run has left. `paths`: of this
    process; `known`, `also`: as `known_runs.load_existing_run` says it."""
    others = volumes.of_other_numbers(paths, known.run, also) if known and also else []
    presence = world.gather((volumes.present(paths), others))
    there, left = ([path for each in presence for path in each[which]] for which in (0, 1))
    return there, left


def checkpoints_alone(world: int, shared: bool) -> bool:
    """True if checkpoints stand alone: another number of processes may continue the run and replace its volumes.
    `shared`: several have continued it."""
    return world > 1 or shared or "TORCHELASTIC_RUN_ID" in os.environ


def chosen(every: Sequence[Sequence[ShardVolumes]], processes: int) -> dict[ShardVolumes, int]:
    """Which rank reads each shard: of those that reach it the one that is likeliest to keep much of it."""
    reached: dict[ShardVolumes, list[int]] = {}
    for rank, shards in enumerate(every):
        for shard in shards:
            reached.setdefault(shard, []).append(rank)
    return {
        shard: min(ranks, key=lambda rank: (abs(rank - shard.shard * processes // shard.world), rank))
        for shard, ranks in reached.items()
    }


def choose_source(sources: Sequence[Source], line: KeptLine, shard: int) -> Source:
    """The source of a line's shard."""
    of_line = [
        it for it in sources if (it.shard.world, it.shard.shard, it.newest.line) == (line.world, shard, line.number)
    ]
    return max(of_line, key=lambda it: it.newest.step)
