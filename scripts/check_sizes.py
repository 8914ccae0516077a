"""Holds sources to the sizes that this project keeps, and headers to tests of their names; prints each that does not.

A file has 500 lines at most, a class 350, a function 70 from the line with its name on, bindings included. Tests,
benchmarks and programs of research are as long as what they say. LSP, which the base knows nothing of, is named in few
files.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import checking

MOST = {"file": 500, "class": 350, "function": 70}
FOLDERS = ("spillway", "research/study", "python", "scripts", "examples")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py"}

# Rooms of which each header with a source file has a test of its name, and the folder of tests.
TESTED = ("execute", "plan/step", "journal", "optim")

LSP = re.compile(r"(?<![A-Za-z])(?:lsp|Lsp|LSP)")
LSP_AT_MOST = 25
LSP_AT_HOME = ("spillway/optim/", "spillway/kernels/", "scripts/check_sizes.py")

SILENT = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
CLASS = re.compile(r"(?:template ?<.*> ?)?(?:class|struct|union) (?:\[\[\w+\]\] )?(\w+)")
FUNCTION = re.compile(
    r"([\w:~]+|operator\S+) ?\([^{]*\)(?: const| noexcept| override| final)*(?: ?->[^;]*)?(?: ?:[^:].*)?$"
)
NONE = re.compile(r"(?:if|for|while|switch|catch|else|do|return|namespace|extern|enum)\b")


class Part:
    """A class or a function, from its name's line to its last brace."""

    def __init__(self, kind: str, name: str, first: int, last: int) -> None:
        self.kind, self.name, self.first, self.lines = kind, name, first, last - first + 1


def named(head: str, first: int, last: int) -> Part | None:
    """What a block is whose text before its brace is `head`, which begins in line `first`."""
    words = " ".join(re.sub(r"^\s*(?:public|private|protected)\s*:", "", head).split())
    match = CLASS.match(words)
    kind = "class" if match else "function"
    if match is None and not NONE.match(words) and "=" not in words.split("(")[0]:
        match = FUNCTION.search(words)
    return Part(kind, match[1], first + head.split(match[1])[0].count("\n"), last) if match else None


def cpp_parts(text: str) -> Iterator[Part]:
    silent = SILENT.sub(lambda it: ("" if it[0][0] == "/" else '""') + "\n" * it[0].count("\n"), text)
    silent = re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", lambda it: "\n" * it[0].count("\n"), silent, flags=re.MULTILINE)
    opened: list[tuple[str, int]] = []
    begin, line = 0, 1
    for mark in re.finditer(r"[{};]", silent):
        head = silent[begin : mark.start()]
        if mark[0] == "{":
            opened.append((head, line))
        elif mark[0] == "}" and opened:
            part = named(*opened.pop(), line + head.count("\n"))
            if part is not None:
                yield part
        line += head.count("\n")
        begin = mark.end()


def python_parts(text: str) -> Iterator[Part]:
    for it in ast.walk(ast.parse(text)):
        if isinstance(it, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "class" if isinstance(it, ast.ClassDef) else "function"
            yield Part(kind, it.name, it.lineno, it.end_lineno or it.lineno)


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
        parts = list(python_parts(text) if file.suffix == ".py" else cpp_parts(text))
        for part in [Part("file", file.name, 1, text.count("\n")), *parts]:
            if part.lines > MOST[part.kind]:
                yield f"{path}:{part.first}: {part.kind} {part.name} has {part.lines} lines; at most {MOST[part.kind]}"
    if len(lsp) > LSP_AT_MOST:
        yield f"{lsp[-1]}:1: is one of {len(lsp)} files that name LSP; at most {LSP_AT_MOST}: {', '.join(lsp)}"
    yield from untested(root)


if __name__ == "__main__":
    sys.exit(checking.main(violations, "spillway", "sizes", "are too large, or untested", "all are kept"))
