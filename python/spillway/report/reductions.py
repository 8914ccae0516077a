"""What a person reads of reduced gradients: of a plan, and of what a run has missed of them."""

from __future__ import annotations

from typing import Any

from spillway.base.sizes import duration, size
from spillway.report.facts import Facts

WAITING = "waiting for projectors that are being refitted"
MISSED = "What projectors miss"
ID = "subspaces"  # in plan.json and on the page


def of_plan(plan: dict[str, Any]) -> str:
    """What is reduced and what that saves, beside the same plan in full; empty where nothing is."""
    found = plan.get(ID)
    if not found:
        return ""
    words = (
        f"Subspaces: {found['matrices']} matrices, {found['elements']:,} parameters; their gradients are "
        f"{size(found['gradient_bytes'])} a step instead of {size(found['gradient_bytes_in_full'])}."
    )
    full = found.get("in_full")
    if full is None:
        return f"{words} In full (method full) it would not fit."
    moved = [size(full[key]) for key in ("path_bytes_per_step", "device_bytes_per_step") if full[key]]
    seconds = duration(full["predicted_step_seconds"])
    words += f" In full a step would take {seconds}" + (f" and move {' and '.join(moved)}." if moved else ".")
    if not found["helps"]:
        words += (
            " Fewer bytes do not help here: all that method full would move and update is hidden behind compute, so "
            "that what is left to save are its products."
        )
    return words


def missed(facts: Facts) -> tuple[dict[str, list[tuple[int, float]]], str] | None:
    """The relative gradient error by layer and step, and in words refits and bytes beside those in full. None where
    nothing is reduced."""
    told = [row for row in facts.steps if row.get("gradient_error")]
    if not told:
        return None
    layers: dict[str, list[tuple[int, float]]] = {}
    for row in told:
        for name, error in row["gradient_error"].items():
            layers.setdefault(name, []).append((row["step"], error))
    learned = told[-1]["projectors_learned"]
    if not (found := facts.plan.get(ID)):
        return layers, f"Projectors were refitted {learned} times, all matrices together."
    matrices, again = found["matrices"], max(0, learned - found["matrices"])
    words = (
        f"Projectors of {matrices} matrices were refitted {learned} times, {again} of them again. "
        f"Gradients are {size(found['gradient_bytes'])} a step instead of {size(found['gradient_bytes_in_full'])}. "
    )
    return layers, words + moved_beside_full(told[-1], found.get("in_full", {}))


def moved_beside_full(row: dict[str, Any], full: dict[str, Any]) -> str:
    """Bytes that a step moved over the link and the paths, beside what the plan says of one in full."""
    ways = (
        ("link", "device_bytes_per_step", row.get("link_bytes", {}).values()),
        ("paths", "path_bytes_per_step", [way for path in row["path_bytes"].values() for way in path.values()]),
    )
    parts = [
        f"{size(sum(moved))} over the {name} (in full, by the plan: {size(full[key])})"
        for name, key, moved in ways
        if full.get(key)
    ]
    return f"Step {row['step']} moved {' and '.join(parts)}." if parts else ""
