"""Holds sources to the sizes that no standard tool measures, and headers to tests of their names; prints each that does
not.

A file has 500 lines at most, a class 350. Members that are defined outside of a C++ class count. Functions are held by
clang-tidy (`make check-tidy`) and ruff. Tests, benchmarks and programs of research are as long as what they say. LSP,
which the base knows nothing of, is named in few files.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import checking

MOST = {"file": 500, "class": 350}
FOLDERS = ("spillway", "research/study", "python", "scripts", "examples")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py"}

# Rooms of which each header with a source file has a test of its name, and the folder of tests.
TESTED = ("execute", "plan/step", "journal", "optim")

LSP = re.compile(r"(?<![A-Za-z])(?:lsp|Lsp|LSP)")
LSP_AT_MOST = 25
LSP_AT_HOME = ("spillway/optim/", "spillway/kernels/", "scripts/check_sizes.py")

# A class as clang-format writes it: its last brace stands below the beginning of its first line.
CLASS = re.compile(
    r"^( *)(?:template <.*> )?(?:class|struct|union) (?:\[\[\w+\]\] )?(\w+)[^;{}]*\{\n(?:.*\n)*?\1\}",
    re.MULTILINE,
)
# A member that is defined outside of its class: a line, or lines up to a brace at the left.
MEMBER = re.compile(
    r"^(?![ #/}])[^(=\n]*?\b([A-Z]\w*)::(?:~?\w+|operator[^(\n]*)\((?:.*[;}]$|.*\n(?:.*\n)*?\})",
    re.MULTILINE,
)


class Class(NamedTuple):
    path: str
    name: str
    first: int  # line
    lines: int  # with the members that are defined outside


def find_classes(path: str, text: str) -> Iterator[Class]:
    """The classes of a file, without members that are defined outside."""
    if not path.endswith(".py"):
        for match in CLASS.finditer(text):
            yield Class(path, match[2], text.count("\n", 0, match.start()) + 1, match[0].count("\n") + 1)
        return
    for it in ast.walk(ast.parse(text)):
        if isinstance(it, ast.ClassDef):
            yield Class(path, it.name, it.lineno, (it.end_lineno or it.lineno) - it.lineno + 1)


def measure_classes(texts: Iterable[tuple[str, str]]) -> Iterator[Class]:
    """The classes of files, given by path and text. A class of a source file has its members there, a class of a header
    in the source files of its folder."""
    measured, outside = [], Counter[tuple[str, str]]()
    for path, text in texts:
        own = list(find_classes(path, text))
        measured += own
        names = {it.name for it in own}
        for match in MEMBER.finditer(text) if not path.endswith(".py") else ():
            outside[path if match[1] in names else path.rpartition("/")[0], match[1]] += match[0].count("\n") + 1
    for it in measured:
        place = it.path.rpartition("/")[0] if it.path.endswith(".h") else it.path
        yield it._replace(lines=it.lines + outside[place, it.name])


def untested(root: Path) -> Iterator[str]:
    for room in TESTED:
        tests = {file.name for file in (root / "tests" / room).rglob("*_test.cc")}
        for header in sorted((root / "spillway" / room).glob("*.h")):
            if header.with_suffix(".cc").is_file() and f"{header.stem}_test.cc" not in tests:
                yield f"{header.relative_to(root)}:1: has no tests/{room}/{header.stem}_test.cc"


def violations(root: Path) -> Iterator[str]:
    """One line per fault in the tree under `root`, as FILE:LINE: what it is."""
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in SUFFIXES]
    texts = {str(file.relative_to(root)): file.read_text(encoding="utf-8", errors="replace") for file in sorted(files)}
    for path, text in texts.items():
        if (lines := text.count("\n")) > MOST["file"]:
            yield f"{path}:1: file {Path(path).name} has {lines} lines; at most {MOST['file']}"
    most = MOST["class"]
    for it in measure_classes(texts.items()):
        if it.lines > most:
            yield f"{it.path}:{it.first}: class {it.name} has {it.lines} lines with its members; at most {most}"
    lsp = [path for path, text in texts.items() if LSP.search(text) and not path.startswith(LSP_AT_HOME)]
    if len(lsp) > LSP_AT_MOST:
        yield f"{lsp[-1]}:1: is one of {len(lsp)} files that name LSP; at most {LSP_AT_MOST}: {', '.join(lsp)}"
    yield from untested(root)


if __name__ == "__main__":
    sys.exit(checking.main(violations, "spillway", "sizes", "are too large, or untested", "all are kept"))
