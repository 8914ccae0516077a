#!/usr/bin/env python3
"""Writes docs/reference/configuration.md from the key table; with --check only says whether it is up to date.

The table is that of the package that is installed: the engine describes its optimizers.
"""

import sys
from pathlib import Path

from spillway.cli.help import reference

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "configuration.md"


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        same = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        if not same:
            print(f"{TARGET.relative_to(ROOT)} is not up to date: run scripts/make_reference.py", file=sys.stderr)
        return 0 if same else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
