"""Holds kinds to their tables: outside its registry no code compares an object, a tier, a pass, a role of a block, an
optimizer, a type of elements, a format of moments or a form of storage with one by name, so that a new one is a row
there and an edit nowhere else. Prints each line that does.

What makes an object, or asks for a pass, names its kind; what handles any asks the row of it (`traits(kind).on_host`).
Tests compare as they like, and so does whoever computes the passes that an engine hands out (bench, examples).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import checking


class Kind(NamedTuple):
    name: str  # of the enumeration, with the namespaces that tell it from another
    registry: tuple[str, ...]  # files and folders that hold its table, and all that follows from a kind
    never: str = ""  # the enumerator that is none, with which anything may be compared


KINDS = (
    # The journal has objects of its own, which no plan moves.
    Kind("ObjectKind", ("spillway/plan/kinds.h", "spillway/plan/kinds.cc", "spillway/journal/")),
    Kind("journal::ObjectKind", ("spillway/journal/", "spillway/execute/names.cc")),
    Kind("PassKind", ("spillway/plan/kinds.h",)),
    Kind("TierKind", ("spillway/plan/kinds.h",)),
    Kind("NodeKind", ("spillway/plan/description.h",)),
    Kind("Backing::Kind", ("spillway/memory/",)),
    Kind("BlockRole", ("spillway/state/layout.h",)),
    Kind("Optimizer", ("spillway/kernels/",)),
    Kind("Moments", ("spillway/kernels/",)),
    Kind("StateFormat", ("spillway/kernels/",)),
    Kind("Element", ("spillway/kernels/", "spillway/device/")),
    Kind("ComputeType", ("spillway/kernels/",)),
    Kind("Weights", ("spillway/kernels/",)),
    Kind("Form", ("spillway/state/",), never="as_run"),
)
FOLDERS = ("spillway", "research/study", "python/bindings")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def pattern(kind: Kind) -> re.Pattern[str]:
    """Finds comparisons with an enumerator of the kind, and those that a call makes."""
    other = "" if "::" in kind.name else "(?!journal::)"
    never = rf"(?!{kind.never}\b)" if kind.never else ""
    named = rf"(?<![\w:]){other}(?:\w+::)*{kind.name}::{never}\w+"
    return re.compile(
        rf"[=!]=\s*{named}|{named}\s*[=!]=|\bcase\s+{named}\s*:|\busing enum (?:\w+::)*{kind.name}\b"
        rf"|\b(?:moves|find|count|contains)\((?:(?!traits\()[^;])*{named}"
    )


def violations(root: Path) -> Iterator[str]:
    """One line per comparison in the tree under `root`, as FILE:LINE: what to do instead."""
    patterns = {kind: pattern(kind) for kind in KINDS}
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in SUFFIXES]
    for file in sorted(files):
        path = str(file.relative_to(root))
        here = [kind for kind in KINDS if not any(map(path.startswith, kind.registry))]
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for kind in here:
                if patterns[kind].search(line):
                    yield (
                        f"{path}:{number}: compares {kind.name} by name; ask its row in {kind.registry[0]}, "
                        "and give that a column where it says too little"
                    )


if __name__ == "__main__":
    wrong = "with a name, outside their registries"
    sys.exit(checking.main(violations, "spillway", "kinds", wrong, "nothing compares them outside their registries"))
