"""The processes of a run on its page: how long each kept the others waiting, what its own passes waited for, and who is
late now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from spillway.base.sizes import duration
from spillway.output import identity
from spillway.report.causes import WORDS
from spillway.report.facts import Facts, Reader
from spillway.report.soundness import LATE

STALE = 60.0  # seconds after which nobody keeps the file any more: the run has gone without taking it away
LEAST = 0.005  # seconds that are told
NETWORK = "network"  # the cause of waits for the others


class Row(NamedTuple):
    name: str  # "rank 3 (node2)"
    kept_waiting: float  # seconds that others waited for it in transfers, summed over them
    waited: float  # seconds that its passes waited for the others, and
    own: list[tuple[str, float]]  # for what is its own, the longest first: words, seconds


def rows(facts: Facts) -> list[Row]:
    """By rank; empty of a run of one process, and while one of several goes on."""
    told: list[dict[str, Any]] = facts.summary.get("ranks", [])
    return [Row(name(each), waited_for(told, each["rank"]), waited(each), own_waits(each)) for each in told]


def name(told: dict[str, Any]) -> str:
    return f"rank {told['rank']} ({told['host']})"


def waited_for(told: list[dict[str, Any]], rank: int) -> float:
    return sum(each["waited_for"].get(str(rank), 0.0) for each in told)


def waited(told: dict[str, Any]) -> float:
    return sum(by_cause.get(NETWORK, 0.0) for by_cause in told["waits"].values())


def own_waits(told: dict[str, Any]) -> list[tuple[str, float]]:
    found = [
        (WORDS.get(cause, f"waiting: {cause}").format(tier=tier), seconds)
        for tier, by_cause in told["waits"].items()
        for cause, seconds in by_cause.items()
        if cause != NETWORK and seconds >= LEAST
    ]
    return sorted(found, key=lambda each: -each[1])


def latest(found: list[Row]) -> str:
    """Who kept the others waiting longest, and for what; empty where nobody did."""
    if not found or (worst := max(found, key=lambda row: row.kept_waiting)).kept_waiting < LEAST:
        return ""
    words = f"{worst.name} kept the others waiting longest, {duration(worst.kept_waiting)} in all"
    if not worst.own:
        return f"{words}; its own passes waited for nothing, so it computed longest."
    cause, seconds = worst.own[0]
    return f"{words}; what its own passes waited for most: {cause}, {duration(seconds)}."


def late_now(output_dir: Path) -> list[str]:
    """Who keeps the others waiting while the run goes on: "rank 3 (node2): backward of layers.7 waits for path:1,
    34.0 s"."""
    found = Reader(output_dir).mapping(identity.LATE, LATE) or {}
    if time.time() - found.get("at", 0.0) > STALE:
        return []
    return [f"{each['rank']}: {each['words']}" for each in found.get("late", [])]
