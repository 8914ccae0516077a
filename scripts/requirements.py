"""Prints what a pyproject.toml asks of pip, to build, to run with every extra and to test: a word for each.

    python scripts/requirements.py [--build] pyproject.toml

With --build what it takes to build alone."""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, build: bool = False) -> list[str]:
    """Each once, in the file's order."""
    content = tomllib.loads(pyproject.read_text())
    if build:
        return list(content["build-system"]["requires"])
    project = content["project"]
    extras = [asked for extra in project["optional-dependencies"].values() for asked in extra]
    return list(dict.fromkeys([*content["build-system"]["requires"], *project["dependencies"], *extras]))


if __name__ == "__main__":
    print(*requirements(Path(sys.argv[-1]), "--build" in sys.argv))
