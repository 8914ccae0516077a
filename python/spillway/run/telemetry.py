"""Measurements of a session: bytes over paths and links, peaks, waits; and the process's memory held to the plan."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spillway._engine import Counters, DeviceCounters, PlanSummary
from spillway.base.documents import make_document
from spillway.machine import nodes, process_memory
from spillway.machine.place import Place
from spillway.output import wear
from spillway.report.experts import ENTRY
from spillway.run import experts_met
from spillway.run.engine_spec import PlannedEngine
from spillway.run.protocol import PathBytes

HOLES, SHARE_OF_HOLES = 24 * 2**20, 0.1  # bytes by which the heap grows in one pass at most, as seen, or part of work
IN_THE_HEAP = ("working set", "saved activations", "logits")  # classes of a plan's bytes that PyTorch takes
REGROWTH = 4 * 2**20  # bytes since the heap was given back that make it worth doing again: it takes a tenth of a second
WHOLE = 2  # rounds begun since a trim, of which one has ended
SHARE_OF_TIME, RESERVE = 0.05, 2.0  # of the time that passes, what trims for the plan may take; seconds that add up


class Telemetry:
    """The telemetry of one engine, over its counters."""

    def __init__(
        self,
        planned: PlannedEngine,
        place: Place,
        notices: Iterable[str],
        recorded: experts_met.Recorded | None = None,
    ) -> None:
        """`recorded`: experts that the run's steps met before."""
        self.written_before: wear.Written = {}  # by the run's earlier processes
        self._engine, self._plan, self._place = planned.engine, planned.summary, place
        self._experts_planned: dict[str, Any] = planned.plan.get(ENTRY, {})  # of plan.json
        self._notices = list(notices)
        self._told: set[str] = set()
        self._path_bytes: PathBytes = {}
        self._link_bytes: dict[str, int] = {}
        self._node_updates: dict[str, dict[str, float]] = {}
        self._experts: experts_met.Counts = {}
        self._recorded = recorded
        self._counted_steps = 0  # those with experts on demand
        self._peak = 0
        self._held = 0  # bytes of the device that PyTorch had taken before

    def begin(self) -> None:
        """Starts the count for steps: from here on, all traffic is of steps."""
        counters = self._counters()
        self._path_bytes, self._link_bytes = read_paths(counters), self._read_link(counters)
        self._experts = experts_met.read_counts(counters)

    def bound_device(self, most: int) -> None:
        """From here on PyTorch takes no more than so many bytes of the device, besides what this process had there."""
        self._held = self._place.watch_peak()
        self._place.bound(self._held + most)

    def count_step(self) -> dict[str, Any]:
        """Fields of StepResult: what has moved since the last call."""
        counters = self._counters()
        return {
            "path_bytes": self._new_path_bytes(counters),
            "link_bytes": self._new_link_bytes(counters),
            "written": self._sum_written(counters),
            "node_updates": self._new_node_updates(counters),
            "experts_met": self._new_experts_met(counters),
        }

    def written(self) -> wear.Written:
        """Bytes written by the run, in this process and before it."""
        return self._sum_written(self._counters())

    def _sum_written(self, counters: Counters) -> wear.Written:
        return wear.total(self.written_before, {name: path.written for name, path in counters.paths.items()})

    def measured(self) -> dict[str, Any]:
        """Peaks, bytes and stalls of this process so far; see spillway.run.protocol.SessionProtocol."""
        counters = self._counters()
        paths, device = counters.paths, counters.device
        self._peak = max(self._peak, process_memory.peak())
        places = nodes.where(self._plan, self._engine)
        tiers = nodes.measured_peaks(self._plan, places, self._peak)
        for name, path in paths.items():
            tiers[name] = volume_bytes(path.volume)
        if device is not None:
            tiers["device"] = device.memory + self._place.peak() - self._held
        return {
            "tiers": tiers,
            **({"nodes": make_document(places)} if places else {}),
            "process_peak": self._peak,
            "path_bytes": read_paths(counters),
            **({"link_bytes": link} if (link := self._read_link(counters)) else {}),
            "written": self._sum_written(counters),
            **experts_met.summarise_met(experts_met.read_counts(counters), self._experts_planned),
            "stall_seconds": counters.stall_seconds,
            "waits": counters.waits,
            **({"device_passes": count_passes(device)} if device is not None and device.passes else {}),
            "flushes": {name: {"count": path.syncs, "seconds": path.sync_seconds} for name, path in paths.items()},
        }

    def note(self, words: Iterable[str]) -> None:
        """For the next `notices`."""
        self._notices += words

    def list_plan_notices(self) -> list[str]:
        """Notices of the plan, before the engine has started."""
        return list(self._notices)

    def notices(self) -> list[str]:
        """New notices about the paths: no O_DIRECT, a retired path."""
        counters = self._counters()
        notices = [path.notice for path in counters.paths.values() if path.notice]
        notices += [counters.device.notice] if counters.device is not None and counters.device.notice else []
        notices += self._notices
        notices += [outage.reason for outage in counters.outages or []]
        new = [notice for notice in notices if notice not in self._told]
        self._told.update(new)
        return new

    def _counters(self) -> Counters:
        return self._engine.counters()

    def _new_path_bytes(self, counters: Counters) -> PathBytes:
        before, self._path_bytes = self._path_bytes, read_paths(counters)
        return {
            name: {direction: count - before.get(name, {}).get(direction, 0) for direction, count in now.items()}
            for name, now in self._path_bytes.items()
        }

    def _read_link(self, counters: Counters) -> dict[str, int]:
        """Bytes over a device's link so far; empty without one that has memory of its own."""
        device = counters.device
        if device is None or self._plan.device_bytes_per_step is None:
            return {}
        return {"to_device": device.to_device, "from_device": device.from_device}

    def _new_link_bytes(self, counters: Counters) -> dict[str, int]:
        before, self._link_bytes = self._link_bytes, self._read_link(counters)
        return {way: now - before.get(way, 0) for way, now in self._link_bytes.items()}

    def _new_node_updates(self, counters: Counters) -> dict[str, dict[str, float]]:
        """Nothing where DRAM is one tier."""
        if len(nodes.names(self._plan)) < 2:
            return {}
        before, self._node_updates = self._node_updates, count_updates(counters)
        return {
            name: {kind: count - before.get(name, {}).get(kind, 0) for kind, count in now.items()}
            for name, now in self._node_updates.items()
        }

    def _new_experts_met(self, counters: Counters) -> float | None:
        """The mean over layers; None where no layer has experts on demand."""
        before, self._experts = self._experts, experts_met.read_counts(counters)
        shares = experts_met.compute_shares(self._experts, before)
        self._counted_steps += 1 if shares else 0
        return statistics.mean(shares.values()) if shares else None

    def record_experts(self, output_dir: Path) -> None:
        """Writes the counts of the run's steps to its directory; nothing where no step was counted."""
        if self._counted_steps == 0:
            return
        counts, tokens = dict(self._engine.count_asked_pieces()), self._experts_planned["tokens"]
        before = self._recorded or experts_met.Recorded(tokens, 0, {name: [0] * len(it) for name, it in counts.items()})
        before.add(self._counted_steps, counts).write(output_dir)


def read_paths(counters: Counters) -> PathBytes:
    return {name: {"read": path.read, "written": path.written} for name, path in counters.paths.items()}


def count_passes(device: DeviceCounters) -> dict[str, dict[str, float]]:
    """Number and seconds of the passes on a device, by kind, as files have them."""
    return {kind: {"passes": it.passes, "seconds": it.seconds} for kind, it in device.passes.items()}


def count_updates(counters: Counters) -> dict[str, dict[str, float]]:
    """Elements and seconds of updates by tier of host memory, as files have them."""
    return {name: {"elements": it.elements, "seconds": it.seconds} for name, it in counters.updates.items()}


class Allowance:
    """Seconds that trims may take: a reserve at the start, which a share of the time that passes fills up again."""

    def __init__(self) -> None:
        self._left, self._counted = RESERVE, time.perf_counter()

    def is_left(self) -> bool:
        now = time.perf_counter()
        self._left = min(RESERVE, self._left + SHARE_OF_TIME * (now - self._counted))
        self._counted = now
        return self._left > 0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Takes off the seconds for which it is open."""
        began = time.perf_counter()
        yield
        self._left -= time.perf_counter() - began


class Bound:
    """A limit of the process's size, and the mark above which a look trims for it.

    If one round of passes reaches the mark again after a trim, that size is working set, and the mark rises by half of
    the room below the limit. If a pass exceeds the limit, the mark falls below the size from which it grew. If no trim
    could have prevented that, the limit no longer counts, and the mark follows the working set.
    """

    def __init__(self, limit: int, margin: int) -> None:
        self.mark = limit - margin  # largest size without a trim
        self._limit = limit
        self._ceiling: int | None = limit  # of the mark; None: no trim holds the limit

    def learn(self, size: int, last: int, in_use: int) -> None:
        """A pass has left the process with `size` bytes, after `last`; a trim leaves `in_use`."""
        if self._ceiling is None or size <= self._limit:
            return
        if last - in_use <= max(REGROWTH, size - self._limit):
            self._ceiling = None
        else:
            self._ceiling = self.mark = min(self.mark, self._ceiling, last - 1)

    def raise_mark(self, size: int) -> None:
        if self._ceiling is None:
            self.mark = max(self.mark, size + REGROWTH)
        else:
            self.mark = min(size + max(0, self._limit - size) // 2, self._ceiling)


class HeapWatch:
    """Holds the process to its plan: products of many shapes wear holes into the heap, which a trim gives back.

    A trim costs time, and passes take their working set again. A look therefore trims above marks alone. Trims for the
    plan's peak share an allowance of time. Trims for the memory budget, which may be larger, do not.
    """

    def __init__(self, plan: PlanSummary, work_bytes: int) -> None:
        peak, heap = nodes.memory_peak(plan), plan.tiers[0]
        margin = max(HOLES, int(SHARE_OF_HOLES * work_bytes))
        self._watches = peak > 0
        self._plan = Bound(peak, margin)
        self._budget = Bound(peak + heap.capacity - heap.planned_peak, margin)
        self._allowance = Allowance()
        self._last = 0  # size after the last look
        self._rounds = WHOLE  # begun since the last trim
        parts = (part for part in plan.bytes if part.tier == heap.name and part.class_ in IN_THE_HEAP)
        self._room = sum(part.bytes for part in parts)
        self.in_use = 0  # bytes of the process that stayed when the heap was given back last

    def give_back(self) -> None:
        process_memory.give_back()
        self._measure()

    def begin_round(self) -> None:
        """Before the passes of a step or of an evaluation."""
        self._rounds += 1

    def look(self) -> None:
        """Between two passes."""
        if not self._watches:
            return
        size = process_memory.resident()
        for bound in (self._plan, self._budget):
            bound.learn(size, self._last, self.in_use)
        passed = [bound for bound in (self._plan, self._budget) if size > bound.mark]
        if size > self.in_use + REGROWTH and passed and (self._budget in passed or self._allowance.is_left()):
            with self._allowance.spend():
                self._trim(passed[-1].mark)
            for bound in passed if self._rounds < WHOLE else ():
                bound.raise_mark(size)
            self._rounds, size = 0, self.in_use
        self._last = size

    def _trim(self, mark: int) -> None:
        """Gives back what is free; collects garbage only if that is not enough, since it takes most of the time."""
        process_memory.trim()
        if process_memory.resident() > mark:
            process_memory.give_back()
        self._measure()

    def _measure(self) -> None:
        process_memory.reserve(self._room)
        self.in_use = process_memory.resident()


def volume_bytes(volume: str | None) -> int:
    """Bytes that a volume's file holds on its file system."""
    try:
        return os.stat(volume).st_blocks * 512 if volume else 0
    except OSError:
        return 0
