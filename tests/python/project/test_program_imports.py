"""Programs that no test starts, and programs that tests keep as text: what they import of the package is there."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from folders import REPOSITORY

FOLDERS = ("bench", "examples", "research", "scripts", "tests/python", "tests/virtual")
FILES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
PACKAGE = "spillway"


def parse_program(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each import from the package; texts that are programs count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE and not node.level:
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and f"from {PACKAGE}" in node.value:
            inner = parse_program(node.value)
            if inner is not None and "\n" in node.value:
                yield from imports(inner)


def is_there(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_what_a_program_imports_of_the_package_is_there(file: Path) -> None:
    asked = set(imports(ast.parse(file.read_text(encoding="utf-8"))))
    assert sorted(f"{module}: {name}" for module, name in asked if not is_there(module, name)) == []


def test_texts_are_read_as_programs() -> None:
    inner = f"\nfrom {PACKAGE}.model import gone\nprint(gone)\n"
    assert set(imports(ast.parse(f"PROGRAM = {inner!r}\nfrom {PACKAGE}.run import lost\n"))) == {
        ("spillway.model", "gone"),
        ("spillway.run", "lost"),
    }
    assert not is_there("spillway.model", "gone") and is_there("spillway.model", "spec")
