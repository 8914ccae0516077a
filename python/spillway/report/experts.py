"""Experts that steps met, beside the share that the plan counted on; of a run whose experts come on demand."""

from __future__ import annotations

from typing import Any

ENTRY = "experts_met"  # of plan.json and summary.json, and of rows of metrics.jsonl


def describe_plan(plan: dict[str, Any]) -> str:
    """A sentence about the experts that stay in memory; empty where layers come whole, or all of them stay there."""
    pieces, period = plan.get("pieces"), plan.get(ENTRY, {}).get("period", 0)
    if not pieces or pieces["in_memory"] == pieces["pieces"]:
        return ""
    words = f"Experts: {pieces['in_memory']} of {pieces['pieces']} matrices stay in memory"
    if pieces["on_device"]:
        words += f", {pieces['on_device']} on the device"
    if period:
        words += f"; every {period} steps those that many steps met take the places of others"
    return f"{words}."


def describe(summary: dict[str, Any]) -> str:
    """A sentence about the steps of this process; empty where no step was counted."""
    entry = summary.get(ENTRY)
    if not entry:
        return ""
    shares = entry["layers"].values()
    words = f"experts: a step met {entry['mean']:.0%} of a layer's"
    if len(shares) > 1:
        words += f", by layer {min(shares):.0%} to {max(shares):.0%}"
    words += f"; {entry['resident']:.0%} of those lay in memory"
    if swaps := entry.get("swaps"):
        words += f" ({entry['resident_unswapped']:.0%} without the {swaps} swaps of places)"
    if planned := entry.get("planned"):
        words += f"; the plan counted on {planned['share']:.0%} ({planned['source']})"
    return words


def compare(plan: dict[str, Any], summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The row of the page's table of predictions and measurements, if there is one."""
    planned, met = plan.get(ENTRY, {}), summary.get(ENTRY, {})
    if not planned:
        return []
    measured = f"{met['mean']:.0%}" if met else ""
    return [(f"experts of a layer that a step meets, by {planned['source']}", f"{planned['share']:.0%}", measured)]
