"""Where the time of a run went: computing, or waiting, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from spillway.report.facts import Facts

COMPUTE = "compute"


@dataclass(frozen=True)
class Cause:
    name: str  # short, for a legend
    words: str  # for a person
    seconds: float  # a step, on average


def causes(facts: Facts) -> list[Cause]:
    """Sums to the mean step; empty while nothing is measured. What is not waiting is compute: PyTorch's visits and what
    lies between them."""
    count = facts.summary.get("steps_here", 0)
    times = [row["step_seconds"] for row in facts.here if "step_seconds" in row]
    if not count or not times:
        return []
    mean = sum(times) / len(times)
    paths = " and ".join(facts.paths)
    words = {
        "read": f"waiting for reads of {paths}",
        "write": f"waiting for writes to {paths}",
        "update": "waiting for the optimizer's update",
        "to_device": "waiting for copies to the device",
        "from_device": "waiting for copies from the device",
        "commit": f"waiting for {paths} to be flushed",
    }
    waits = facts.summary.get("stall_seconds", {})
    found = [Cause(name, words.get(name, f"waiting: {name}"), seconds / count) for name, seconds in waits.items()]
    found = [cause for cause in found if cause.seconds > 0]
    computing = max(0.0, mean - sum(cause.seconds for cause in found))
    return [Cause(COMPUTE, "computing", computing), *sorted(found, key=lambda cause: -cause.seconds)]
