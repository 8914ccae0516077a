"""Prints what a pyproject.toml asks of pip: to build, to run and to test the project. One word per requirement."""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path) -> list[str]:
    content = tomllib.loads(pyproject.read_text())
    project = content["project"]
    return [
        *content["build-system"]["requires"],
        *project["dependencies"],
        *project["optional-dependencies"]["test"],
    ]


if __name__ == "__main__":
    print(*requirements(Path(sys.argv[1])))
