"""Counts comments and names of the sources that break a rule, and holds each room's count under its ceiling.

The ceilings are in scripts/names.toml, a room being a folder of sources. They only fall: a new name follows the rules
(ceilings.py).
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from ceilings import Check, Fault
from check_prose import OPENER

SOURCES = ("spillway", "python/spillway", "python/bindings", "scripts", "bench", "research")
RULES = {
    "opener": "comments open with What, Of, Whether, Where, By, Those or With",
    "found": "values are named found",
    "participle": "functions are named by a participle, a preposition or an adverb",
}

COMMENT = re.compile(r"^\s*///?\s?(.*)|///<\s*(.*)")
FOUND = re.compile(r"\bfound\b\s*(?:[:=](?!=)|\{)|(?:auto|const)[&*]?\s+found\b")
# A declaration in a header: the return type, then the name.
DECLARED = re.compile(r"^\s*(?:\[\[nodiscard\]\]\s*)?(?:[\w:<>,&*]+\s+)+[&*]?(\w+)\(")
FIRST = frozenset(
    "found told begun settled known kept given asked said left tried planned computed taken made there apart aside "
    "alike own as of with by".split()
)


def is_participle(name: str) -> bool:
    """Whether a function's name begins with a word that is no verb."""
    return name.lstrip("_").split("_")[0] in FIRST


def find_in_cpp(page: str, text: str) -> Iterator[Fault]:
    is_inside = False  # a comment that goes on
    for number, line in enumerate(text.splitlines(), 1):
        match = COMMENT.search(line)
        words = (match[1] or match[2] or "") if match else ""
        begins = match is not None and (not is_inside or match[1] is None)
        is_inside = match is not None and match[1] is not None
        if begins and OPENER.match(words):
            yield Fault(page, number, "opener", words)
        code = line.split("//")[0]
        if FOUND.search(code):
            yield Fault(page, number, "found", code.strip())
        declared = DECLARED.match(code) if page.endswith(".h") else None
        if declared and is_participle(declared[1]) and "return" not in code.split():
            yield Fault(page, number, "participle", declared[1])


def find_in_python(page: str, text: str) -> Iterator[Fault]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            words = ast.get_docstring(node) or ""
            if OPENER.match(words):
                yield Fault(page, getattr(node, "lineno", 1), "opener", words.splitlines()[0])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
            yield Fault(page, node.lineno, "participle", node.name)
        if isinstance(node, ast.Name) and node.id == "found" and isinstance(node.ctx, ast.Store):
            yield Fault(page, node.lineno, "found", "found = ...")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and OPENER.match(words):
            yield Fault(page, token.start[0], "opener", words)


def find(root: Path) -> Iterator[Fault]:
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            page = path.relative_to(root).as_posix()
            if path.suffix in (".cc", ".h", ".cu", ".cuh"):
                yield from find_in_cpp(page, path.read_text(encoding="utf-8"))
            elif path.suffix == ".py":
                yield from find_in_python(page, path.read_text(encoding="utf-8"))


def name_room(page: str) -> str:
    """The room whose ceiling counts a file: spillway/plan, python/spillway/run."""
    folders = page.split("/")[:-1]
    return "/".join(folders[: 3 if folders[0] == "python" else 2])


CHECK = Check("names", RULES, find, name_room, "Name the new ones otherwise.")

if __name__ == "__main__":
    sys.exit(CHECK.main())
