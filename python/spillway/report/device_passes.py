"""The seconds that passes took on a device with its own memory. The host's times do not show them."""

from __future__ import annotations

from typing import Any

from spillway.base.sizes import duration

ORDER = ("forward", "head_loss", "head_gradient", "backward")


def describe(summary: dict[str, Any]) -> str:
    """Mean seconds and number of passes by kind, evaluations included. Empty without such a device."""
    totals = summary.get("device_passes") or {}
    measured = {kind: totals[kind] for kind in ORDER if totals.get(kind, {}).get("passes")}
    if not measured:
        return ""
    kinds = ", ".join(
        f"{kind.replace('_', ' ')} {duration(each['seconds'] / each['passes'])} each ({each['passes']:.0f})"
        for kind, each in measured.items()
    )
    seconds = sum(each["seconds"] for each in measured.values())
    return f"Passes on the device: {kinds}; {duration(seconds)} in all"
