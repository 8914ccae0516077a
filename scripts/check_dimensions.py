"""Counts the dimensions of a run that each source file of `plan/step` and `execute` names beyond three.

A new movement of bytes is written once where a file handles one or two of them, and in every file that handles all. The
ceilings are in scripts/dimensions.toml, by file, and only fall (ceilings.py). A file without one names three at most.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ceilings import Check, Fault

MOST = 3
FOLDERS = ("spillway/plan/step", "spillway/execute")
# Words of identifiers: `own_weights_` and `OwnWeights` have the words `own` and `weights`.
DIMENSIONS = {
    "device": "device|link|copied|computes on host",
    "path": "path|paths|volume|volumes|storage",
    "NUMA node": "node|nodes|numa",
    "ranks": "rank|ranks|world|peer|peers|network|is shared|exchange|owner|owners",
    "own weights": "own weights|keeps own",
    "frozen": "frozen|trainable",
    "reduced": "reduced|reduction|reductions|refit|refits|sample|samples",
    "early updates": "early|undo",
    "durability": "durable|durability|redo|snapshot|snapshots|journal|commit",
    "tied tables": "tied|gathered(?! rows)",
    "saved activations": "saved|spill|spills|spilled|spilling|keeps(?! own| early| gradients)|keeping",
    "compute type": "convert|converted|conversion|conversions|computes(?! on host)|widens|fp32",
}
PATTERNS = {name: re.compile(rf"\b(?:{words})\b") for name, words in DIMENSIONS.items()}
RULES = {"dimensions": "dimensions beyond three"}

# Comments, texts, and the names of other files; neither the standard library nor the rank of a
# matrix names a dimension.
SILENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|^#include[^\n]*", re.MULTILINE | re.DOTALL)
NAMELESS = re.compile(r"\bstd::\w+|\breduced\.rank\b")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
BREAK = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")


def split_words(identifier: str) -> str:
    """The words of an identifier, in small letters."""
    return " ".join(BREAK.split(identifier)).lower().strip()


def find_dimensions(text: str) -> dict[str, tuple[int, str]]:
    """The first line that names each dimension, and its identifier."""
    code = NAMELESS.sub("", SILENT.sub(lambda it: "\n" * it[0].count("\n"), text))
    first: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(code.splitlines(), 1):
        for identifier in IDENTIFIER.findall(line):
            words = split_words(identifier)
            for name, pattern in PATTERNS.items():
                if name not in first and pattern.search(words):
                    first[name] = (number, identifier)
    return first


def find(root: Path) -> Iterator[Fault]:
    """A fault for each dimension beyond the first three of a file."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.cc")):
            named = sorted(find_dimensions(path.read_text(encoding="utf-8")).items(), key=lambda it: it[1][0])
            for name, (line, identifier) in named[MOST:]:
                yield Fault(path.relative_to(root).as_posix(), line, "dimensions", f"{name}: {identifier}")


CHECK = Check("dimensions", RULES, find, lambda page: page, "Move what one of them needs into a file of its own.")

if __name__ == "__main__":
    sys.exit(CHECK.main())
