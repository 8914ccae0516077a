"""What the Makefile's environment is made of: every extra, each package at one version."""

import re

from folders import REPOSITORY
from requirements import requirements


def names(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=!~]", line)[0].lower() for line in lines}


def test_every_extra_is_installed() -> None:
    asked = requirements(REPOSITORY / "pyproject.toml")
    assert len(asked) == len(set(asked))
    assert {"accelerate", "datasets", "pyarrow", "trl", "peft", "tensorboard", "pytest", "torch"} <= names(asked)


def test_everything_asked_for_is_pinned() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", pin) for pin in pins)
    assert names(requirements(REPOSITORY / "pyproject.toml")) <= names(pins)
