"""Writes python/spillway/_engine.pyi: the signatures of the C++ engine as nanobind has them.

Usage: make_stubs.py [--check]. The engine is that of the installed package. `--check` writes nothing, and fails if the
file differs.

Signatures come from the bindings alone. Words are the file's own: its docstrings, where the bindings have none, and the
comments beside attributes. nanobind's stub is made shorter: a pair of getter and setter is an attribute, arrays of any
library are `Any`, and methods that Python itself calls are left out.
"""

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanobind.stubgen import StubGen

MODULE = "spillway._engine"
FILE = Path(__file__).resolve().parent.parent / "python/spillway/_engine.pyi"
ARRAYS = {"Annotated", "NDArray", "object"}  # types of arrays, and of tensors, which nanobind knows as objects
IMPORTED = {
    "collections.abc": {"Callable", "Iterator", "Mapping", "Sequence", "Set"},
    "typing": {"Any", "Literal"},
}
WIDTH = 120
COMMENT = re.compile(r"  # (.*)$")
MARK = "__commented_"  # carries a comment through ast, which knows of none
MARKED = re.compile(rf"(\w+?){MARK}([0-9a-f]+)(.*)")
HEAD = '''"""The C++ engine as Python sees it. `make stubs` writes this file from the bindings.

Arrays (`Any`) have the buffer or DLPack protocol: NumPy, PyTorch. Attributes of structs are copies: a change inside a
list or a struct takes effect when it is assigned.
"""
'''


class Shortened(ast.NodeTransformer):
    """Makes a stub shorter."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in ARRAYS:
            return ast.Name("Any")
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("Any") if node.id in ARRAYS else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        setters = {it.name for it in functions(node.body) if is_setter(it)}
        node.body = [shorten(it, setters) for it in node.body if is_kept(it)]
        return self.generic_visit(node)


def functions(body: list[ast.stmt]) -> list[ast.FunctionDef]:
    return [it for it in body if isinstance(it, ast.FunctionDef)]


def is_setter(function: ast.FunctionDef) -> bool:
    return any(isinstance(it, ast.Attribute) and it.attr == "setter" for it in function.decorator_list)


def is_kept(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return (statement.name == "__init__" or not statement.name.startswith("_")) and not is_setter(statement)
    return not (isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "").startswith("_"))


def shorten(statement: ast.stmt, setters: set[str]) -> ast.stmt:
    """The attribute of a property that has a setter; any other statement as it is."""
    if not isinstance(statement, ast.FunctionDef) or statement.name not in setters or statement.returns is None:
        return statement
    return ast.AnnAssign(ast.Name(statement.name), statement.returns, None, 1)


def needed_imports(body: str) -> str:
    """Import lines of the names that the stub uses."""
    names = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    lines = [f"import {name}" for name in ("enum", "os", "pathlib") if name in names]
    for module, kinds in IMPORTED.items():
        if used := sorted(names & kinds):
            lines.append(f"from {module} import {', '.join(used)}")
    return "\n".join(lines) + "\n\n"


@dataclass
class Words:
    """Words of a stub by name, as CLASS.NAME or NAME."""

    docs: dict[str, str]
    comments: dict[str, str]


def read_words(text: str) -> Words:
    docs: dict[str, str] = {}
    comments: dict[str, str] = {}
    for scope, node in named(ast.parse(text)):
        if isinstance(node, ast.AnnAssign):
            last = text.splitlines()[(node.end_lineno or node.lineno) - 1]
            if match := COMMENT.search(last):
                comments[f"{scope}{ast.unparse(node.target)}"] = match[1]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and (doc := ast.get_docstring(node)):
            docs[scope + node.name] = doc
    return Words(docs, comments)


def named(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The statements of a stub with their scopes: "" or "CLASS."."""
    for node in tree.body:
        yield "", node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.", it) for it in node.body)


def add_words(tree: ast.Module, words: Words) -> str:
    """The text of a stub with the words of its file."""
    for scope, node in named(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own = ast.get_docstring(node)
            body = node.body if own is None else node.body[1:]
            if described := words.docs.get(scope + node.name, own):
                body = [it for it in body if not is_ellipsis(it)]
                node.body = [ast.Expr(ast.Constant(fill(described, scope))), *body]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if comment := words.comments.get(scope + node.target.id):
                node.target.id += MARK + comment.encode().hex()
    return MARKED.sub(lambda it: f"{it[1]}{it[3]}  # {bytes.fromhex(it[2]).decode()}", ast.unparse(tree))


def is_ellipsis(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "..."


def fill(doc: str, scope: str) -> str:
    """The docstring in lines of 120 columns."""
    indent = " " * (8 if scope else 4)
    if max(map(len, doc.splitlines())) + len(indent) <= WIDTH:
        lines = doc.splitlines()
    else:
        lines = textwrap.wrap(" ".join(doc.split()), WIDTH - len(indent) - 3)
    if len(lines) == 1:
        return lines[0]
    text = "\n".join(indent + line if line and n else line for n, line in enumerate(lines))
    return text if len(lines[-1]) + len(indent) + 3 <= WIDTH else f"{text}\n{indent}"


def make_stub(present: str) -> str:
    """The stub, with the words of the present one."""
    made = StubGen(importlib.import_module(MODULE), quiet=True, include_private=True)  # `class_` counts as private
    made.put(made.module)
    tree = ast.fix_missing_locations(Shortened().visit(ast.parse(made.get())))
    tree.body = tree.body[1:]  # its docstring
    body = add_words(tree, read_words(present))
    return format_stub(HEAD + needed_imports(body) + body + "\n")


def format_stub(text: str) -> str:
    """The text as `make format` leaves it."""
    for command in (["check", "--fix-only", "--select", "I", "-q"], ["format", "-q"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FILE), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=FILE.parent).stdout
    return text


def main() -> int:
    present = FILE.read_text(encoding="utf-8")
    text = make_stub(present)
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if text == present:
        print("stubs: the engine's stub is what its bindings say")
        return 0
    print(f"stubs: {FILE.name} is not what the installed engine's bindings say; run make stubs")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
