"""The last step as its timeline tells it: what each lane did when, and what memory held meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spillway._engine import lanes, task_kinds

PROCESSES = {1: "measured", 2: "predicted"}


@dataclass(frozen=True)
class Span:
    """One task, in seconds from the start of the step. Updates left over from the step before may begin before it."""

    name: str
    start: float
    end: float

    def over(self, first: float, unit: float) -> Span:
        """The span counted from `first`, in units of so many seconds."""
        return Span(self.name, (self.start - first) / unit, (self.end - first) / unit)

    @property
    def kind(self) -> str:
        """What it is, without which one."""
        return max((known for known in KINDS if self.name.startswith(known)), key=len, default="other")


# Kinds of tasks, with which their names begin, and their colours, as the page's variables: the engine's own table.
KINDS = {**dict(task_kinds()), "other": "c8"}
# Numbers of lanes' threads in the trace, from 1 on; after them come the updates of further nodes.
LANES = {number: name for number, (name, _) in enumerate(lanes(), start=1)}
LANES_OF_NODES = len(LANES)
LANES[1000] = "on the device"  # passes, timed by the device
TRANSFERS = {name for name, overlaps in lanes() if overlaps}
# That every timeline shows, whether they were used or not.
ALWAYS = ("compute", "update", "read", "write")


def lane_of(number: int) -> str:
    return LANES.get(number, f"update {number - LANES_OF_NODES}")


@dataclass
class Step:
    """One of the two: as it was, as it was predicted."""

    lanes: dict[str, list[Span]] = field(default_factory=lambda: {name: [] for name in ALWAYS})
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)  # seconds; bytes of the arena by class

    @property
    def seconds(self) -> float:
        """From the first pass to the last; what updates do before and after belongs to the neighbours."""
        passes = self.lanes["compute"]
        return max((span.end for span in passes), default=0.0) - self.first

    @property
    def first(self) -> float:
        return min((span.start for span in self.lanes["compute"]), default=0.0)

    def busy(self, lane: str) -> float:
        """Seconds in which the lane had anything under way."""
        return sum(end - start for start, end in union(self.lanes[lane]))


def union(spans: Iterable[Span], gap: float = 0.0) -> list[tuple[float, float]]:
    """Spans that overlap, or lie closer than `gap`, as one."""
    found: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda each: each.start):
        if found and span.start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], span.end))
        else:
            found.append((span.start, span.end))
    return found


def steps(trace: Iterable[dict[str, Any]]) -> dict[str, Step]:
    """By "measured" and "predicted", those that the trace has."""
    found: dict[str, Step] = {}
    begun: dict[str, tuple[str, float]] = {}
    for event in trace:
        if event["ph"] == "M":
            continue
        step = found.setdefault(PROCESSES[event["pid"]], Step())
        at = event["ts"] / 1e6
        if event["ph"] == "X":
            step.lanes.setdefault(lane_of(event["tid"]), []).append(Span(event["name"], at, at + event["dur"] / 1e6))
        elif event["ph"] == "b":
            begun[event["id"]] = (event["name"], at)
        elif event["ph"] == "e":
            name, start = begun.pop(event["id"])
            step.lanes.setdefault(lane_of(event["tid"]), []).append(Span(name, start, at))
        elif event["ph"] == "C":
            step.memory.append((at, event["args"]))
    return found
