"""Counts sentences of the Markdown pages that break a rule of grammar, and holds each folder's count under its ceiling.

The ceilings are in scripts/prose.toml. They only fall: a page with a new fault needs another sentence (ceilings.py).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ceilings import Check, Fault

SPLIT = ("docs", "bench")  # folders whose folders have ceilings of their own
SKIPPED = {"build", "dist", "node_modules"}
LONGEST = 30  # words of a sentence

OPENER = re.compile(r"(?:What|Of|Whether|Where|By|Those|With)\b")
HISTORY = re.compile(r"\b(?:than before|no longer|any more|now)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)", re.S)
ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z`\"'(*])")


RULES = {
    "opener": "sentences open with What, Of, Whether, Where, By, Those or With",
    "length": f"sentences have more than {LONGEST} words",
    "history": 'sentences say "now", "no longer", "any more" or "than before"',
}


def broken_rules(sentence: str) -> Iterator[str]:
    """The rules that a sentence breaks."""
    if OPENER.match(sentence):
        yield "opener"
    if sum(any(map(str.isalnum, word)) for word in sentence.split()) > LONGEST:
        yield "length"
    if HISTORY.search(sentence):
        yield "history"


def passages(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and cells of tables, with the line of each. Code blocks and headings are left out."""
    lines: list[str] = []
    start, is_code = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        begins = ITEM.match(line)
        apart = is_fence or is_code or not line.strip() or line.startswith(("#", "|"))
        if lines and (apart or begins):
            yield start, "\n".join(lines)
            lines = []
        is_code = is_code != is_fence
        if line.startswith("|") and not is_code:
            yield from ((number, cell) for cell in line.strip("|").split("|"))
        elif not apart:
            start = start if lines else number
            lines.append(line[begins.end() :] if begins else line)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a page with the line of each. Code is one word, and a link is its text."""

    def blank(found: re.Match[str]) -> str:
        return "`code`" + "\n" * found[0].count("\n")

    text = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for start, passage in passages(text):
        plain = LINK.sub(r"\1", CODE.sub(blank, passage)).replace("**", "")
        offset = 0
        for end in [*(found.end() for found in END.finditer(plain)), len(plain)]:
            sentence = plain[offset:end]
            line = start + plain.count("\n", 0, offset + len(sentence) - len(sentence.lstrip()))
            offset = end
            if sentence.strip():
                yield line, " ".join(sentence.split()).lstrip("(*_\"'")


def pages(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        if not any(part.startswith(".") or part in SKIPPED for part in parts):
            yield "/".join(parts)


def faults(root: Path) -> Iterator[Fault]:
    for page in pages(root):
        for line, sentence in sentences((root / page).read_text(encoding="utf-8")):
            yield from (Fault(page, line, rule, sentence) for rule in broken_rules(sentence))


def name_folder(page: str) -> str:
    """The folder whose ceiling counts a page; "." for pages of the root."""
    *folders, _ = page.split("/")
    return "/".join(folders[: 2 if folders and folders[0] in SPLIT else 1]) or "."


CHECK = Check("prose", RULES, faults, name_folder, "Rewrite the new ones.")

if __name__ == "__main__":
    sys.exit(CHECK.main())
