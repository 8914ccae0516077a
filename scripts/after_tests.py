"""What a run of tests says at its end: the slowest, and how many were skipped and why.

    python scripts/after_tests.py build/ctest.xml build/pytest.xml

Reads the JUnit files of ctest and pytest, and prints one table of both kinds.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 20
NIGHTLY = "nightly"  # the reason of what waits for `make nightly`, beside the capabilities of tests/needs.h


@dataclass(frozen=True)
class Case:
    name: str
    seconds: float
    skipped: str | None  # "capability: reason"


def cases(file: Path) -> list[Case]:
    return [case_of(element) for element in ElementTree.parse(file).iter("testcase")]


def case_of(element: ElementTree.Element) -> Case:
    place, name = element.get("classname", ""), element.get("name", "")
    skip = element.find("skipped")
    reason = None if skip is None else told(skip, element.findtext("system-out") or "")
    name = name.partition("  # GetParam")[0]
    whole = name if not place or place.startswith(name) else f"{place}::{name}"
    return Case(whole, float(element.get("time", 0)), reason)


def told(skip: ElementTree.Element, output: str) -> str:
    """pytest has the reason in its message, ctest in what the test printed."""
    printed = re.search(r"Skipped\n(.*)", output) or re.search(r"^SKIPPED: (.*)", output, re.MULTILINE)
    return printed[1] if printed else skip.get("message", "")


def slowest(found: list[Case]) -> list[str]:
    found = sorted(found, key=lambda case: -case.seconds)[:SLOWEST]
    return [f"  {case.seconds:7.1f} s  {case.name}" for case in found]


def skips(found: list[Case]) -> list[str]:
    """A line for each capability: how many tests, and the first reason."""
    reasons = defaultdict(list)
    for case in found:
        if case.skipped is not None:
            capability, _, reason = case.skipped.partition(": ")
            reasons[capability].append(reason)
    return [f"  {len(each):5}  {name}: {each[0]}" for name, each in sorted(reasons.items()) if name != NIGHTLY]


def report(file: Path) -> list[str]:
    found = cases(file)
    runs = [case for case in found if case.skipped is None]
    waiting = sum(case.skipped is not None and case.skipped.startswith(NIGHTLY) for case in found)
    lines = [f"{file.stem}: {len(runs)} tests in {sum(case.seconds for case in found):.0f} s; the slowest:"]
    lines += slowest(runs)
    skipped = len(found) - len(runs) - waiting
    lines.append(f"{file.stem}: {skipped} skipped for what this machine lacks (SPILLWAY_REQUIRE=NAME,... fails them)")
    return [*lines, *skips(found)]


def main(words: list[str]) -> int:
    for word in words:
        print("\n".join(report(Path(word))) if Path(word).exists() else f"{word}: nothing ran")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
