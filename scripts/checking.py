"""What the checks of the sources have in common: which tree, a line for each fault, and the exit status."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

Check = Callable[[Path], Iterable[str]]


def main(check: Check, needs: str, name: str, wrong: str, right: str) -> int:
    """Runs `check` on the tree that the command names, or on this one, and prints what it finds. The result is 1 where
    that is anything, and 2 where the tree does not have the folder `needs`. `wrong` follows the number of faults."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / needs).is_dir():
        print(f"{root} holds no {needs}/ to check", file=sys.stderr)
        return 2
    found = list(check(root))
    print(*found, f"{name}: {len(found)} {wrong}" if found else f"{name}: {right}", sep="\n")
    return 1 if found else 0
