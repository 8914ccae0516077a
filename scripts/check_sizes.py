"""Holds sources to the sizes that no standard tool measures, and headers to tests of their names; prints each that does
not.

A file has 500 lines at most, a class 350. Functions are held by clang-tidy (`make check-tidy`) and ruff. Tests,
benchmarks and programs of research are as long as what they say. LSP, which the base knows nothing of, is named in few
files.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

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


def classes(file: Path, text: str) -> Iterator[tuple[str, int, int]]:
    """The name, first line and number of lines of each class."""
    if file.suffix != ".py":
        for match in CLASS.finditer(text):
            yield match[2], text.count("\n", 0, match.start()) + 1, match[0].count("\n") + 1
        return
    for it in ast.walk(ast.parse(text)):
        if isinstance(it, ast.ClassDef):
            yield it.name, it.lineno, (it.end_lineno or it.lineno) - it.lineno + 1


def untested(root: Path) -> Iterator[str]:
    for room in TESTED:
        tests = {file.name for file in (root / "tests" / room).rglob("*_test.cc")}
        for header in sorted((root / "spillway" / room).glob("*.h")):
            if header.with_suffix(".cc").is_file() and f"{header.stem}_test.cc" not in tests:
                yield f"{header.relative_to(root)}:1: has no tests/{room}/{header.stem}_test.cc"


def violations(root: Path) -> Iterator[str]:
    """One line per fault in the tree under `root`, as FILE:LINE: what it is."""
    lsp = []
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in SUFFIXES]
    for file in sorted(files):
        path, text = str(file.relative_to(root)), file.read_text(encoding="utf-8", errors="replace")
        if LSP.search(text) and not path.startswith(LSP_AT_HOME):
            lsp.append(path)
        parts = [("file", file.name, 1, text.count("\n")), *(("class", *each) for each in classes(file, text))]
        for kind, name, first, lines in parts:
            if lines > MOST[kind]:
                yield f"{path}:{first}: {kind} {name} has {lines} lines; at most {MOST[kind]}"
    if len(lsp) > LSP_AT_MOST:
        yield f"{lsp[-1]}:1: is one of {len(lsp)} files that name LSP; at most {LSP_AT_MOST}: {', '.join(lsp)}"
    yield from untested(root)


if __name__ == "__main__":
    sys.exit(checking.main(violations, "spillway", "sizes", "are too large, or untested", "all are kept"))
