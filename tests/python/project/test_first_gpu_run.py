"""docs/how-to/first-gpu-run.md shows what its plans print."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from folders import REPOSITORY
from model_directories import model_shapes
from spillway.cli import main

PAGE = (REPOSITORY / "docs" / "how-to" / "first-gpu-run.md").read_text(encoding="utf-8")
RECIPES = {"try.yaml": "gpu-24gib.yaml", "qlora.yaml": "qlora-24gib.yaml"}  # copies of the page, and their origins


def list_plans() -> list[tuple[str, str]]:
    """Each command that plans, and the lines that the page shows for it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
    commands = [(text, after) for (_, text), (kind, after) in zip(blocks, blocks[1:], strict=False) if kind == "text"]
    plans = [(re.search(r"^spillway plan .*--profile.*$", text, re.M), after) for text, after in commands]
    return [(found[0], after) for found, after in plans if found]


def test_page_copies_the_recipes_that_it_plans() -> None:
    assert dict(re.findall(r"^cp recipes/(\S+) (\S+)$", PAGE, re.M)) == {name: copy for copy, name in RECIPES.items()}


def test_page_has_plans_of_three_kinds() -> None:
    commands = [command for command, _ in list_plans()]
    assert len(commands) == 3 and sum("qlora.yaml" in command for command in commands) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "lines"), list_plans(), ids=["1.5B", "QLoRA", "7B"])
def test_plan_prints_the_lines_of_the_page(
    command: str, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for copy, name in RECIPES.items():
        shutil.copy(REPOSITORY / "recipes" / name, tmp_path / copy)
    words = shlex.split(command)[1:]
    named = words[words.index("--model") + 1] if "--model" in words else "Qwen/Qwen2.5-7B"
    directory = model_shapes.write(tmp_path, named.partition("/")[2])
    assert main([*[word for word in words if word not in ("--model", named)], "--model", str(directory)]) == 0
    said = capsys.readouterr().out
    for line in lines.splitlines():
        pattern = re.escape(line).replace(re.escape("..."), ".*")
        assert re.search(f"^{pattern}$", said, re.M), line
