"""Figures as the files of bench/results hold them: where a sentence or a table has a number, it is read from here.

A figure is a table of these keys:

    of       FILE:PATH, a file of bench/results and a place in it: names apart by dots, [*] for all of a list,
             [seed=0,method=full] those of it that have these, [0] where it has one alone, ["a name, with anything"],
             of a list what has that name as "what"
    how      what becomes of several: "each" (all are quoted), "median", "mean", "min", "max", "largest" (of absolute
             values), "sum" or "count"; without it there is one
    reduce   of several quotients or differences, as `how`
    over     a FILE:PATH to divide by, with the same `how`; `minus`: one to subtract
    inverse  a number to divide by the figure, as tokens by seconds
    times    a number to multiply by, `per` one to divide by, `plus` one to add, in this order
    show     a format, ".1f" if not said
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
KEYS = {"of", "how", "reduce", "over", "minus", "inverse", "times", "per", "plus", "show"}
STEP = re.compile(r'(\w[\w:-]*)|\[(-?\d+)\]|\[(\*)\]|\["([^"]*)"\]|\[(\w+=[^\]]*)\]')
HOW: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.mean,
    "min": min,
    "max": max,
    "largest": lambda values: max(abs(value) for value in values),
    "sum": sum,
    "count": len,
}


class NotHeld(Exception):
    """No file holds the figure that was asked for; the words say what was."""


@cache
def content(name: str) -> Any:
    path = RESULTS / name
    if not path.is_file():
        raise NotHeld(f"{name}: bench/results has no such file")
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def held(place: str) -> list[Any]:
    """What lies at FILE:PATH, one value or several."""
    name, _, path = place.partition(":")
    found = [content(name)]
    at = 0
    while at < len(path):
        at += path[at] == "."
        step = STEP.match(path, at)
        if step is None:
            raise NotHeld(f"{place}: cannot be read from {path[at:]!r} on")
        try:
            found = [value for each in found for value in taken(each, step)]
        except (KeyError, IndexError, TypeError):
            raise NotHeld(f"{place}: there is no {step[0]!r}") from None
        at = step.end()
    if not found:
        raise NotHeld(f"{place}: nothing is there")
    return found


def taken(value: Any, step: re.Match[str]) -> list[Any]:
    name, index, every, quoted, wanted = step.groups()
    if every:
        return list(value.values() if isinstance(value, dict) else value)
    if wanted:
        pairs = [pair.split("=") for pair in wanted.split(",")]
        return [each for each in value if all(str(each[key]) == text for key, text in pairs)]
    if index and len(value) > 1:
        raise NotHeld(f"[{index}] is one of {len(value)}: quote [*], or say which by what it has")
    if quoted and isinstance(value, list):
        return [each for each in value if each["what"] == quoted]
    return [value[int(index)] if index else value[name or quoted]]


def values(figure: Mapping[str, Any]) -> list[float]:
    """The figure's number, or with "each" its numbers."""
    if unknown := set(figure) - KEYS:
        raise NotHeld(f"{figure['of']}: {', '.join(sorted(unknown))} is none of {', '.join(sorted(KEYS))}")
    found = numbers(figure["of"], figure.get("how"))
    if over := figure.get("over"):
        found = paired(found, numbers(over, figure.get("how")), lambda one, other: one / other)
    if minus := figure.get("minus"):
        found = paired(found, numbers(minus, figure.get("how")), lambda one, other: one - other)
    if inverse := figure.get("inverse"):
        found = [inverse / value for value in found]
    if reduce := figure.get("reduce"):
        found = [HOW[reduce](found)]
    return [value * figure.get("times", 1) / figure.get("per", 1) + figure.get("plus", 0) for value in found]


def numbers(place: str, how: str | None) -> list[float]:
    found = held(place)
    if how is None and len(found) > 1:
        raise NotHeld(f"{place}: is {len(found)} numbers, and nothing says which, or that each is quoted")
    if not all(isinstance(value, (int, float)) for value in found) and how != "count":
        raise NotHeld(f"{place}: is not a number")
    return found if how in (None, "each") else [HOW[how](found)]


def paired(one: list[float], other: list[float], apply: Callable[[float, float], float]) -> list[float]:
    if len(other) == 1:
        other = other * len(one)
    return [apply(*pair) for pair in zip(one, other, strict=True)]


def shown(figure: Mapping[str, Any]) -> str:
    """As it stands in a sentence: 14.4, or 14.4 and 14.7."""
    parts = [format(value, figure.get("show", ".1f")) for value in values(figure)]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def filled(text: str, figures: Mapping[str, Any]) -> str:
    """`text` with each {name} replaced by the figure of that name, or by the text itself that the file has there."""
    for name, figure in figures.items():
        if "{" + name + "}" not in text:
            raise NotHeld(f"{text!r} has no {{{name}}}")
        text = text.replace("{" + name + "}", shown(figure) if isinstance(figure, Mapping) else words(figure))
    if left := re.search(r"\{\w+\}", text):
        raise NotHeld(f"{text!r}: nothing says what {left[0]} is")
    return text


def words(place: str) -> str:
    """A text that a file holds, such as the machine or the command."""
    (found,) = held(place)
    return ", ".join(found) if isinstance(found, list) else str(found)
