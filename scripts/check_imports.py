"""Holds the imports of the Python package to the direction of its packages, and prints each line that breaks it.

Every folder and module of python/spillway is an entry below and imports itself and what is named for it there, wherever
the import stands: at the top, inside a function, for type checkers alone, or as a string that `import_module` is given.
Only the facade, `__init__` and `__main__`, may import all of them, and nothing imports the facade but for the version.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import checking

# The arrows of ARCHITECTURE.md. Each entry may also import `errors` and the C++ engine, `_engine`.
PACKAGES: dict[str, set[str]] = {
    "errors": set(),
    "base": set(),
    "config": {"base"},
    "machine": {"base", "config"},
    "model": {"base", "config", "machine"},
    "data": {"base", "config", "model"},
    "output": {"base", "config", "data", "model"},
    "report": {"base", "machine", "output"},
    "widening": {"machine"},
    "optim": {"base", "config", "widening"},
    "subspace": {"base", "optim"},
    "placed": {"base", "config"},
    "run": {"base", "config", "data", "machine", "model", "output", "report", "subspace"},
    "integrations": {"base", "config", "data", "machine", "model", "output", "report", "run"},
    "hf": {"integrations"},
    "demo": {"machine"},
    "cli": {"base", "config", "demo", "machine", "model", "report", "run"},
}
EVERYWHERE = {"errors", "_engine", "__version__"}
FACADE = {"__init__", "__main__"}
ROOT_NAME = "spillway"


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line number and dotted name of everything that a module imports; a relative import begins with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((node.lineno, str(given.value)) for given in node.args if isinstance(given, ast.Constant))


def fault(package: str, name: str) -> str | None:
    """Why a module of this package may not import this name, or None."""
    if name.startswith("."):
        return f"imports {name} relative to itself; write the name from {ROOT_NAME} on"
    parts = name.split(".")
    if parts[0] != ROOT_NAME or package in FACADE:
        return None
    other = parts[1] if len(parts) > 1 else ""
    if other in EVERYWHERE or other == package or other in PACKAGES[package]:
        return None
    if other not in PACKAGES:
        return f"package {package} imports {name} of the facade, which stands above all packages"
    allowed = ", ".join(sorted(PACKAGES[package])) or "no other"
    return f"package {package} may not import {name}; it may import {allowed}"


def violations(root: Path) -> Iterator[str]:
    """One line per broken rule in the tree under `root`, as FILE:LINE: what is wrong."""
    top = root / "python" / ROOT_NAME
    for file in sorted(top.rglob("*.py")):
        path, package = file.relative_to(root), file.relative_to(top).parts[0].removesuffix(".py")
        if package not in PACKAGES and package not in FACADE:
            yield f"{path}:1: {package} is no package that scripts/check_imports.py knows; add it there with its arrows"
            continue
        for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            found = fault(package, name)
            if found is not None:
                yield f"{path}:{line}: {found}"


if __name__ == "__main__":
    needs, wrong = f"python/{ROOT_NAME}", "against the packages' direction"
    sys.exit(checking.main(violations, needs, "imports", wrong, "all arrows point up"))
