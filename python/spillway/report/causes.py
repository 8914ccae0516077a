"""Where the time of a step went: computing, or waiting, and for which path or tier."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from spillway.report import reductions
from spillway.report.facts import Facts

COMPUTE = "compute"
WORDS = {
    "read": "waiting for reads of {tier}",
    "write": "waiting for writes to {tier}",
    "update": "waiting for the optimizer's update",
    "to_device": "waiting for copies to the device",
    "from_device": "waiting for copies from the device",
    "device_update": "waiting for the optimizer's update on the device",
    "fit": reductions.WAITING,
    "network": "waiting for the other processes",
    "commit": "waiting for {tier} to be flushed",
}
BY_TIER = ("read", "write")  # of which each tier is a cause of its own
OF_UPDATES = "waiting for the optimizer's update on {tier}"  # where several NUMA nodes have one


@dataclass(frozen=True)
class Cause:
    name: str  # short, for a legend
    words: str  # for a person
    seconds: float  # of the median step: its share of all steps' time


def causes(facts: Facts) -> list[Cause]:
    """Sums to the median step, which is the one that the page shows; empty while nothing is measured. Waits are counted
    over all steps, so each cause has the share of the median step that it has of all. What is not waiting is compute:
    PyTorch's passes and what lies between them."""
    count = facts.summary.get("steps_here", 0)
    if not count or not facts.logged_seconds or not facts.step_seconds:
        return []
    waited = [(name, words, seconds) for name, words, seconds in waits(facts) if seconds > 0]
    all_waits = sum(seconds for _, _, seconds in waited)
    all_steps = max(count * statistics.mean(facts.logged_seconds), all_waits)
    part = facts.step_seconds / all_steps
    found = [Cause(name, words, part * seconds) for name, words, seconds in waited]
    computing = part * (all_steps - all_waits)
    return [Cause(COMPUTE, "computing", computing), *sorted(found, key=lambda cause: -cause.seconds)]


def waits(facts: Facts) -> list[tuple[str, str, float]]:
    """Short name, words, seconds of the run; of transfers and updates for each tier that was waited for."""
    by_tier = facts.summary.get("waits", {})
    apart = {cause for tier in by_tier.values() for cause in tier}
    several = sum("update" in tier for tier in by_tier.values()) > 1
    every = " and ".join(facts.paths)
    found = [
        (name, WORDS.get(name, f"waiting: {name}").format(tier=every), seconds)
        for name, seconds in facts.summary.get("stall_seconds", {}).items()
        if name not in apart
    ]
    for tier, seconds_by_cause in by_tier.items():
        for cause, seconds in seconds_by_cause.items():
            named = cause in BY_TIER or (cause == "update" and several)
            words = OF_UPDATES if cause == "update" and several else WORDS.get(cause, f"waiting: {cause}")
            found.append((f"{cause} {tier}" if named else cause, words.format(tier=tier), seconds))
    return found
