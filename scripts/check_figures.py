#!/usr/bin/env python3
"""Every figure of README, docs and the rooms' pages is held by a file, or says why it needs none.

    scripts/check_figures.py

Looks in the pages for numbers with a unit of measure, for ratios (any number with a decimal point), and for shares and
multiples in words. docs/figures.toml says of each where it comes from:

    [[figure]]
    page = "README.md"
    text = "took {plain} s a step"    # as it stands on the page, once; what is in braces is read from a file
    plain = { of = "steps-dram.json:rounds[*].plain.median", how = "each" }    # as bench/recorded.py says

    [[figure]]
    page = "README.md"
    is = "setting"                    # see KINDS
    text = ["600 TB", "4 KiB"]
    held = "pyproject.toml: 3.11"     # a file, and words that are in it; of what is "tested" the test

Words about durability beside a figure come from its row, too (`word = "large.json:runs[shape=3B].durability"`), or
`held` names the command that asked for it. So a figure that is not what its file holds is not found on its page, and
one that is not declared is reported. Pages that a program writes are compared with what it writes by tests of their
own, and named in [made]; [apart] says which pages are not looked at, and why. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from recorded import NotHeld, filled  # noqa: E402

DECLARED = "docs/figures.toml"
TABLE = "bench/table.toml"
ENTRY = ("page", "text", "is", "held")  # keys that are no figure
DURABILITY = re.compile(r"durab(?:le|ility)")
KINDS = {
    "setting": "a value that a person or the program chooses: a default, a limit, a size of the design",
    "format": "bytes and sizes of a format, which its code holds",
    "arithmetic": "follows from numbers that stand beside it",
    "published": "somebody else's figure, with its source beside it",
    "example": "what an example supposes",
    "tested": "a bound that a test holds; `held` names it",
    "version": "of a program, a standard or a chip",
}
NUMBER = r"[+\-−]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
LIST = rf"(?:(?:, and |, | and | to | or | of ){NUMBER})*"
WORD = (
    r"(?:half|a third|a quarter|a fourth|a fifth|a tenth|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|dozens?|twenty|thirty|hundreds?|thousands?)"
)
SHARE = rf"(?:{WORD}|two thirds|three quarters|two fifths|twice)"
UNIT = (
    r"(?:(?:milli|nano|micro|processor )?seconds?|s|ms|ns|minutes?|min|hours?|days?|weeks?|months?|[kKMGT]i?B(?:/s)?"
    r"|bytes?|%|percent|GHz|TFLOPS|cycles|tokens? a second|tokens/s|param(?:eter)?s/s|times)"
)
RATE = r"(?:billion|million|G|M) (?:param(?:eter)?s/s|updates? a second|operations? a second)"
START = r"(?<![\w.\-/:])"
FIGURES = re.compile(
    "|".join(
        (
            rf"{START}{NUMBER}{LIST}[ \u00a0]?{UNIT}(?![\w-])",
            rf"{START}{NUMBER} {RATE}",
            r"(?<![\w.\-/:+])[+\-−]?\d+\.\d+(?![\w.]|\.\d)",
            rf"{START}\d+(?:\.\d+)?e[+-]?\d+(?!\w)",
            rf"\b{WORD} (?:to {WORD} )?{UNIT}(?![\w-])",
            rf"\b{SHARE} (?:of )?(?:the (?:time|speed|memory|bytes|work)|as (?:fast|long|much))\b",
        )
    ),
    re.IGNORECASE,
)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+|arXiv\s+\d+\.\d+", re.S)


@dataclass(frozen=True)
class Page:
    """Text with every run of white space as one space, and the same where code and addresses are blanked."""

    name: str
    text: str
    plain: str

    @classmethod
    def of(cls, name: str, text: str) -> Page:
        blanked = text
        for pattern in (FENCE, CODE):
            blanked = pattern.sub(lambda found: re.sub(r"\S", "\0", found[0]), blanked)
        return cls(name, joined(text), joined(blanked))


def joined(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def pages(root: Path, apart: Mapping[str, str]) -> Iterator[Page]:
    """Markdown of the root, of docs and of the rooms, but what is apart."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "spillway").rglob("*.md")]
    for path in sorted(found):
        name = str(path.relative_to(root))
        if not any(name == other or (other.endswith("/") and name.startswith(other)) for other in apart):
            yield Page.of(name, path.read_text(encoding="utf-8"))


def texts(entry: Mapping[str, Any]) -> list[str]:
    text = entry["text"]
    return [joined(each) for each in (text if isinstance(text, list) else [text])]


def places(page: Page, entry: Mapping[str, Any], root: Path) -> Iterator[tuple[int, int] | str]:
    """Where an entry's text stands on its page, or what is wrong with it."""
    kind = entry.get("is")
    figures = {name: value for name, value in entry.items() if isinstance(value, Mapping) or name not in ENTRY}
    if kind is None and not figures:
        yield f"{entry['text']!r} says neither which file holds it nor what it `is` ({', '.join(KINDS)})"
    elif kind is not None and (kind not in KINDS or figures):
        yield f"{entry['text']!r}: `is` is one of {', '.join(KINDS)}, and then no file is read"
    elif wrong := not_held(entry, root) or find_untold_durability(entry, figures):
        yield wrong
    for text in texts(entry):
        try:
            text = filled(text, figures)
        except NotHeld as error:
            yield str(error)
            continue
        spans = [found.span() for found in re.finditer(re.escape(text), page.text)]
        if not spans:
            yield f"{text!r}, as {DECLARED} has it from the files, is not on the page"
        elif figures and len(spans) > 1:
            yield f"{text!r} is there {len(spans)} times: declare more of the sentence, so that it is one place"
        yield from spans


def find_untold_durability(entry: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The fault of a measured text whose words about durability come from no file; empty: it has none."""
    from_file = any(isinstance(value, str) and value.endswith(".durability") for value in figures.values())
    if not figures or from_file or isinstance(entry.get("held"), str) or not DURABILITY.search(" ".join(texts(entry))):
        return ""
    return f"{entry['text']!r}: its durability is typed; read it from the row's `durability`, or say what `held` it"


def not_held(entry: Mapping[str, Any], root: Path) -> str:
    """What is wrong with `held`: FILE: WORDS."""
    if not isinstance(entry.get("held"), str):
        return f"{entry['text']!r}: `held` names the test" if entry.get("is") == "tested" else ""
    name, _, words = entry["held"].partition(": ")
    path = root / name
    if not path.is_file() or joined(words) not in joined(path.read_text(encoding="utf-8")):
        return f"{entry['text']!r}: {name} does not hold {words!r}"
    return ""


def typed(table: Path) -> Iterator[str]:
    """Figures that a row of the table of results has as text, and not from its file."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))["row"] if table.is_file() else []
    for row in rows:
        for key in ("claim", "how", "number"):
            text = joined(row.get(key, ""))
            for found in FIGURES.finditer(text):
                if not any(found[0] in chosen for chosen in row.get("set", [])):
                    yield f"{TABLE}: {found[0]!r} of {text!r} is neither read from its file nor in `set`"


def wrong(root: Path = ROOT) -> list[str]:
    declared = tomllib.loads((root / DECLARED).read_text(encoding="utf-8"))
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in declared["figure"]:
        entries.setdefault(entry["page"], []).append(entry)
    out = []
    apart = {**declared["made"], **declared["apart"]}
    for page in pages(root, apart):
        spans = []
        for entry in entries.pop(page.name, []):
            for found in places(page, entry, root):
                if isinstance(found, str):
                    out.append(f"{page.name}: {found}")
                else:
                    spans.append(found)
        for found in FIGURES.finditer(page.plain):
            if not any(start <= found.start() and found.end() <= end for start, end in spans):
                around = page.text[max(0, found.start() - 50) : found.end() + 30]
                out.append(f"{page.name}: {found[0]!r} is declared by nothing in {DECLARED}: ...{around}...")
    out += list(typed(root / TABLE))
    out += [f"{DECLARED}: {name} is no page that is looked at" for name in entries]
    out += [f"{DECLARED}: {name} is not there" for name in apart if not (root / name).exists()]
    return out


def main() -> int:
    found = wrong()
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
