"""The last step as its timeline tells it: what each lane did when, and what memory held meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PROCESSES = {1: "measured", 2: "predicted"}
LANES = {1: "compute", 2: "update", 3: "read", 4: "write"}
# Where there is a device, and of projectors that are learned; after them come the updates of further nodes.
OTHER_LANES = {5: "to_device", 6: "from_device", 7: "device_update", 8: "fit"}


@dataclass(frozen=True)
class Span:
    """One task, in seconds from the start of the step. Updates left over from the step before may begin before it."""

    name: str
    start: float
    end: float

    def over(self, first: float, unit: float) -> Span:
        """The same counted from `first`, in units of so many seconds."""
        return Span(self.name, (self.start - first) / unit, (self.end - first) / unit)

    @property
    def kind(self) -> str:
        """What it is, without which one."""
        for known in KINDS:
            if self.name.startswith(known):
                return known
        return "other"


# Kinds of tasks, with which their names begin, and their colours, as the page's variables.
KINDS = {
    "embedding backward": "c3", "embedding": "c1", "forward": "c1", "head loss": "c2", "head gradient": "c2",
    "backward": "c3", "update": "c4", "read weight": "c5", "read state": "c6", "read grad": "c7",
    "read activation": "c8", "write weight": "c5", "write state": "c6", "write grad": "c7", "write activation": "c8",
    "write rows": "c7", "upload weight": "c5", "upload activation": "c8", "download grad": "c7",
    "download activation": "c8", "download hidden": "c6", "download weight": "c5", "download state": "c6",
    "upload state": "c6", "upload grad": "c7", "upload projectors": "c2", "download record": "c7", "fit": "c2",
    "other": "c8",
}  # fmt: skip


def lane_of(number: int) -> str:
    return {**LANES, **OTHER_LANES}.get(number, f"update {number - len(LANES) - len(OTHER_LANES)}")


@dataclass
class Step:
    """One of the two: as it was, as it was predicted."""

    lanes: dict[str, list[Span]] = field(default_factory=lambda: {name: [] for name in LANES.values()})
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)  # seconds; bytes of the arena by class

    @property
    def seconds(self) -> float:
        """From the first pass to the last; what updates do before and after belongs to the neighbours."""
        visits = self.lanes["compute"]
        return max((span.end for span in visits), default=0.0) - self.first

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
