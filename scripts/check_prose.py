"""Counts sentences of the Markdown pages that break a rule of grammar, and holds each folder's count under its ceiling.

    scripts/check_prose.py [TREE]           fails if a count exceeds its ceiling, and lists the sentences
    scripts/check_prose.py --list [PATH]    lists every sentence that breaks a rule, of the pages that begin with PATH
    scripts/check_prose.py --lower          writes the counts that fell as the ceilings

The ceilings are in scripts/prose.toml. They only fall: a page with a new fault needs another sentence.
"""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import checking

CEILINGS = "scripts/prose.toml"
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


class Fault(NamedTuple):
    page: str
    line: int
    rule: str
    sentence: str


RULES = {
    "opener": "open with What, Of, Whether, Where, By, Those or With",
    "length": f"have more than {LONGEST} words",
    "history": 'say "now", "no longer", "any more" or "than before"',
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


def count(found: Iterable[Fault], name: Callable[[str], str] = name_folder) -> Counter[tuple[str, str]]:
    return Counter((name(fault.page), fault.rule) for fault in found)


def read_ceilings(root: Path, file: str = CEILINGS) -> dict[tuple[str, str], int]:
    path = root / file
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {(folder, rule): number for folder, rules in table.items() for rule, number in rules.items()}


def write_ceilings(
    root: Path, ceilings: dict[tuple[str, str], int], file: str = CEILINGS, rules: Iterable[str] = tuple(RULES)
) -> None:
    script = Path(file).stem
    lines = [f"# Lines that break a rule of scripts/check_{script}.py, at most, by folder. Written by its --lower."]
    for folder in sorted({folder for folder, _ in ceilings}):
        lines += ["", f'["{folder}"]', *(f"{rule} = {ceilings.get((folder, rule), 0)}" for rule in rules)]
    (root / file).write_text("\n".join(lines) + "\n", encoding="utf-8")


def lower(root: Path) -> None:
    counts = count(faults(root))
    write_ceilings(root, {key: min(number, counts[key]) for key, number in read_ceilings(root).items()})


def tell(fault: Fault) -> str:
    return f"{fault.page}:{fault.line}: {fault.rule}: {fault.sentence}"


def violations(root: Path) -> Iterator[str]:
    """A line for each folder and rule over its ceiling, and for each of its sentences."""
    found = list(faults(root))
    counts, ceilings = count(found), read_ceilings(root)
    for folder, rule in sorted(counts):
        number, most = counts[folder, rule], ceilings.get((folder, rule), 0)
        if number > most:
            yield from (tell(it) for it in found if (name_folder(it.page), it.rule) == (folder, rule))
            yield f"{folder}: {number} sentences {RULES[rule]}, and the ceiling is {most}. Rewrite the new ones."
    if low := [f"{folder} ({rule})" for (folder, rule), most in ceilings.items() if counts[folder, rule] < most]:
        print(f"prose: better than the ceiling in {', '.join(low)}: run scripts/check_prose.py --lower")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    if sys.argv[1:2] == ["--lower"]:
        lower(here)
    elif sys.argv[1:2] == ["--list"]:
        chosen = sys.argv[2] if len(sys.argv) > 2 else ""
        print(*(tell(fault) for fault in faults(here) if fault.page.startswith(chosen)), sep="\n")
    else:
        sys.exit(checking.main(violations, "spillway", "prose", "lines to read", "no folder exceeds its ceiling"))
