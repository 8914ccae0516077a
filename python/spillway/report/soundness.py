"""Checks of the entries of a run's result files. Invalid entries are named and left out of the page."""

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


def make_mapping(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def make_optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def make_list(entries: dict[str, Check]) -> Check:
    """The check of a list of mappings, each of which has at least these entries."""

    def check(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(each, dict) and all(name in each and is_sound(each[name]) for name, is_sound in entries.items())
            for each in value
        )

    return check


def make_record(entries: dict[str, Check]) -> Check:
    """The check of a mapping that has at least these entries."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and is_sound(value[name]) for name, is_sound in entries.items())
    )


NUMBERS = make_mapping(is_number)
TIERS: dict[str, Check] = {"name": is_text, "planned_peak": is_number, "capacity": is_number}
EXPERTS: Check = make_record({"share": is_number, "source": is_text})
MET: dict[str, Check] = {
    "mean": is_number,
    "layers": NUMBERS,
    "resident": is_number,
    "planned": lambda value: value == {} or EXPERTS(value),
}
PLAN: dict[str, Check] = {
    "tiers": make_list(TIERS),
    "bytes": make_list({"class": is_text, "tier": is_text, "bytes": is_number}),
    "predicted_step_seconds": is_optional_number,
    "bottleneck": make_optional(is_text),
    "path_bytes_per_step": make_optional(make_mapping(NUMBERS)),
    "durability": is_text,
    "experts_met": EXPERTS,
    "pieces": NUMBERS,
}
SUMMARY: dict[str, Check] = {
    "steps": is_count,
    "steps_here": is_count,
    "step_seconds": make_optional(
        make_mapping(
            lambda value: is_optional_number(value) or (isinstance(value, list) and all(map(is_number, value)))
        )
    ),
    "tiers": make_list({**TIERS, "measured_peak": is_optional_number}),
    "waits": make_mapping(NUMBERS),
    "stall_seconds": NUMBERS,
    "device_passes": make_mapping(NUMBERS),
    "written": NUMBERS,
    "path_bytes": make_mapping(NUMBERS),
    "endurance_used": NUMBERS,
    "experts_met": make_record(MET),
    "ranks": make_list({"rank": is_count, "host": is_text, "waits": make_mapping(NUMBERS), "waited_for": NUMBERS}),
}
LATE: dict[str, Check] = {"at": is_number, "late": make_list({"rank": lambda value: True, "words": is_text})}


def split_entries(content: dict[str, Any], checks: dict[str, Check]) -> tuple[dict[str, Any], list[str]]:
    """The valid entries, and the names of the others."""
    wrong = [name for name, is_sound in checks.items() if name in content and not is_sound(content[name])]
    return {name: value for name, value in content.items() if name not in wrong}, wrong
