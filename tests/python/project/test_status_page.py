"""docs/status.md has the versions that pip accepts and that the tests run with."""

from __future__ import annotations

import re
import tomllib

import pytest

from folders import REPOSITORY

PAGE = (REPOSITORY / "docs" / "status.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_versions() -> dict[str, tuple[str, str]]:
    """Accepted and tested versions of each package, by the page."""
    section = PAGE.partition("\n## Versions\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {name: (accepted, tested) for name, accepted, tested in rows[2:]}


@pytest.mark.parametrize("name", ["torch", "transformers", "accelerate", "trl", "peft", "datasets"])
def test_versions_of_a_package_are_those_of_the_project(name: str) -> None:
    asked = [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]
    pinned = re.search(rf"^{name}==(\S+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert pinned is not None
    accepted, tested = read_versions()[name]
    assert f"{name}{accepted}" in asked
    assert tested == pinned[1]


def test_python_and_release_are_those_of_the_project() -> None:
    assert read_versions()["Python"][0] == PROJECT["requires-python"]
    cmake = (REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(spillway VERSION ([0-9.]+)", cmake)
    assert version is not None and PAGE.startswith(f"# Status and limits\n\nSpillway {version[1]} ")
