"""Entries of a run's result files that no run writes so: they are named and left out, and the page shows the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spillway.output.records import is_number

Check = Callable[[Any], bool]


def is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and value >= 0


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_optional_number(value: Any) -> bool:
    return value is None or is_number(value)


def mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(entries: dict[str, Check]) -> Check:
    """Mappings, each of which has these entries at least."""

    def check(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(each, dict) and all(name in each and is_sound(each[name]) for name, is_sound in entries.items())
            for each in value
        )

    return check


NUMBERS = mapping_of(is_number)
TIERS: dict[str, Check] = {"name": is_text, "planned_peak": is_number, "capacity": is_number}
PLAN: dict[str, Check] = {
    "tiers": list_of(TIERS),
    "bytes": list_of({"class": is_text, "tier": is_text, "bytes": is_number}),
    "predicted_step_seconds": is_optional_number,
    "bottleneck": optional(is_text),
    "path_bytes_per_step": optional(mapping_of(NUMBERS)),
    "durability": is_text,
}
SUMMARY: dict[str, Check] = {
    "steps": is_count,
    "steps_here": is_count,
    "step_seconds": optional(
        mapping_of(lambda value: is_optional_number(value) or (isinstance(value, list) and all(map(is_number, value))))
    ),
    "tiers": list_of({**TIERS, "measured_peak": is_optional_number}),
    "waits": mapping_of(NUMBERS),
    "stall_seconds": NUMBERS,
    "written": NUMBERS,
    "path_bytes": mapping_of(NUMBERS),
    "endurance_used": NUMBERS,
    "ranks": list_of({"rank": is_count, "host": is_text, "waits": mapping_of(NUMBERS), "waited_for": NUMBERS}),
}
LATE: dict[str, Check] = {"at": is_number, "late": list_of({"rank": lambda value: True, "words": is_text})}


def split_entries(content: dict[str, Any], checks: dict[str, Check]) -> tuple[dict[str, Any], list[str]]:
    """The entries that can be as they are, and the names of the others."""
    wrong = [name for name, is_sound in checks.items() if name in content and not is_sound(content[name])]
    return {name: value for name, value in content.items() if name not in wrong}, wrong
