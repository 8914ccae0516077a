"""Pictures of the documentation: small files with a text for readers who do not see them, made by a script."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
import make_screens  # noqa: E402

MADE = ("plan.svg", "report.png")
LARGEST = 100_000  # bytes
ALT = re.compile(r"!\[([^\]]*)\]\([^)]*images/([\w.-]+)\)")


def pictures() -> dict[str, str]:
    """The alternative text of each picture of docs/images, by its name."""
    found: dict[str, str] = {}
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]:
        found |= {name: text for text, name in ALT.findall(page.read_text(encoding="utf-8"))}
    return found


@pytest.mark.parametrize("name", MADE)
def test_picture_is_small_and_a_page_has_it_with_a_text(name: str) -> None:
    assert 0 < (REPOSITORY / "docs" / "images" / name).stat().st_size <= LARGEST
    assert len(pictures()[name].split()) > 5


def test_terminal_has_the_lines_of_the_command_and_fetches_nothing() -> None:
    svg = make_screens.draw_terminal("It fits.\n\x1b[1mBottleneck\x1b[0m: compute", "spillway plan")
    assert "It&#160;fits." in svg and "Bottleneck" in svg and "spillway&#160;plan" in svg
    for text in (svg, (REPOSITORY / "docs" / "images" / "plan.svg").read_text(encoding="utf-8")):
        assert "@font-face" not in text and "url(http" not in text


def test_long_tables_leave_dots() -> None:
    text = "It fits.\nWhat was compared\n| a |\nWeights and adamw state\nWhat fits: tokens/s\n| b |"
    assert make_screens.leave_out(text, make_screens.LONG_TABLES) == "It fits.\n...\nWeights and adamw state\n..."


def test_plan_of_the_picture_is_a_command_of_the_page() -> None:
    page = Path(REPOSITORY, "docs", "how-to", "gpu.md").read_text(encoding="utf-8")
    assert f"\n{make_screens.PLAN}\n" in page
