"""How an engine is asked for what its storage paths hold: the options of Engine.start(), in the order of trying."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spillway._engine import OpenOptions, PlanSummary
from spillway.base.documents import read_json
from spillway.base.files import PRIVATE, replace_text
from spillway.errors import InputError
from spillway.output.directory import MANIFEST
from spillway.run.protocol import StartPoint

STATE = "spillway"  # subdirectory of a checkpoint
NEVER = 2**62  # a step that no run has reached


def tries_of(start_point: StartPoint, durable: bool) -> list[OpenOptions]:
    """The requests to the engine, in order, until one of them finds something; `durable`: its plan keeps steps on the
    paths. A try that is followed by another, or may not begin anew, leaves the paths as they are when it finds nothing.

    A checkpoint that stands alone is loaded when nothing is found, so it only has to be older than what is. One that is
    a manifest is found as the durable step it was made of, unless the run has gone back behind it since.
    """
    checkpoint = start_point.checkpoint
    manifest = checkpoint is not None and (checkpoint / MANIFEST).is_file()
    if manifest and not durable:
        raise InputError(
            f"resume_from_checkpoint: the state of {checkpoint} lies on storage paths, and this run keeps none there; "
            "give the run's storage and durability, or `spillway export` the checkpoint first"
        )
    must_find = not start_point.fresh and checkpoint is None
    if not durable or (checkpoint is None and not start_point.durable):
        return [OpenOptions(if_found=must_find)]
    if checkpoint is None:
        return [OpenOptions(reopen=True, if_found=must_find)]
    by_name = [OpenOptions(reopen=True, checkpoint=checkpoint / STATE)] if manifest else []
    if by_name and not start_point.durable:
        return by_name
    newer = read_counts(checkpoint / STATE)["calls"] + (0 if manifest else 1)
    least = newer if start_point.durable else NEVER
    return [OpenOptions(reopen=True, at_least=least, if_found=bool(by_name)), *by_name]


def read_counts(state: Path) -> dict[str, Any]:
    """session.json of a checkpoint's state."""
    try:
        counts = dict(read_json(state / "session.json"))
        counts |= {name: require_count(counts, name) for name in ("steps", "calls")}
        if "loss_scale" in counts:
            scale, good = counts["loss_scale"]
            counts["loss_scale"] = [float(scale), require_count({"loss_scale": good}, "loss_scale")]
        return counts
    except (OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise InputError(f"{state}: this checkpoint holds no state to go on from: {error}") from error


def require_count(counts: dict[str, Any], name: str) -> int:
    """The entry as a number of steps. ValueError if the engine has none so large."""
    count = int(counts[name])
    if not 0 <= count < NEVER:
        raise ValueError(f"{name} is {counts[name]}, and a count is less than {NEVER}")
    return count


def write_counts(state: Path, counts: dict[str, Any]) -> None:
    replace_text(state / "session.json", json.dumps(counts) + "\n", PRIVATE)


def on_paths(plan: PlanSummary, group: str) -> bool:
    """True if the plan puts any of a class of bytes on a storage path."""
    return any(part.class_ == group and part.tier.startswith("path") and part.bytes for part in plan.bytes)
