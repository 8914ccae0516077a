"""How long passes took on a device with memory of its own, which the host that gives them to it does not see."""

from __future__ import annotations

from typing import Any

from spillway.base.sizes import duration

ORDER = ("forward", "head_loss", "head_gradient", "backward")


def words(summary: dict[str, Any]) -> str:
    """By kind of pass the mean and the count, evaluations included; empty where no device has memory of its own."""
    told = summary.get("device_passes") or {}
    found = {kind: told[kind] for kind in ORDER if told.get(kind, {}).get("passes")}
    if not found:
        return ""
    kinds = ", ".join(
        f"{kind.replace('_', ' ')} {duration(each['seconds'] / each['passes'])} each ({each['passes']:.0f})"
        for kind, each in found.items()
    )
    whole = sum(each["seconds"] for each in found.values())
    return f"Passes on the device: {kinds}; {duration(whole)} in all"
