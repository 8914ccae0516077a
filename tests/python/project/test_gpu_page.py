"""docs/how-to/gpu.md shows what its plans print, and its recipes are those of its headings."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from folders import REPOSITORY
from model_directories import model_shapes
from spillway.cli import main

PAGE = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text(encoding="utf-8")
RECIPES = {"full.yaml": "gpu-24gib.yaml", "qlora.yaml": "qlora-24gib.yaml"}  # copies of the page, and their origins


def list_plans() -> list[tuple[str, str]]:
    """Each command that plans, and the lines that the page shows for it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
    commands = [(text, after) for (_, text), (kind, after) in zip(blocks, blocks[1:], strict=False) if kind == "text"]
    plans = [(re.search(r"^spillway plan .*--profile.*$", text, re.M), after) for text, after in commands]
    return [(found[0], after) for found, after in plans if found]


def read_model(copy: str) -> str:
    content = yaml.safe_load((REPOSITORY / "recipes" / RECIPES[copy]).read_text(encoding="utf-8"))
    return str(content["model"]).removeprefix("Qwen/")


def test_page_copies_the_recipes_that_it_plans() -> None:
    assert dict(re.findall(r"^cp recipes/(\S+) (\S+)$", PAGE, re.M)) == {name: copy for copy, name in RECIPES.items()}


def test_recipes_train_the_models_of_the_headings() -> None:
    assert "\n## 7B QLoRA\n" in PAGE and read_model("qlora.yaml") == "Qwen2.5-7B"
    assert "\n## 14B in full\n" in PAGE and read_model("full.yaml") == "Qwen2.5-14B"


def test_page_has_two_plans_that_fit_and_one_that_does_not() -> None:
    plans = list_plans()
    assert [shlex.split(command)[2] for command, _ in plans] == ["qlora.yaml", "full.yaml", "qlora.yaml"]
    assert ["It fits." in lines for _, lines in plans] == [True, True, False]


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "lines"), list_plans(), ids=["QLoRA", "full", "refused"])
def test_plan_prints_the_lines_of_the_page(
    command: str, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for copy, name in RECIPES.items():
        shutil.copy(REPOSITORY / "recipes" / name, tmp_path / copy)
    words = shlex.split(command)[1:]
    directory = model_shapes.write(tmp_path, read_model(words[1]))
    assert main([*words, "--model", str(directory)]) == (0 if "It fits." in lines else 3)
    said = "".join(capsys.readouterr())
    for line in lines.splitlines():
        pattern = re.escape(line).replace(re.escape("..."), ".*")
        assert re.search(f"^{pattern}$", said, re.M), line
