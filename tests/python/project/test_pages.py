"""What pages name is there: links, files of the tree, and the nouns of each room's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from folders import REPOSITORY

FLAT = (".", "bench/results", "research")
PAGES = [
    *(REPOSITORY / "docs").rglob("*.md"),
    *(page for folder in FLAT for page in (REPOSITORY / folder).glob("*.md")),
]
ROOMS = [*(REPOSITORY / "spillway").rglob("README.md"), *(REPOSITORY / "python/spillway").rglob("README.md")]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
SUFFIXES = ("", ".h", ".py", ".cc")
TREE = ("bench", "research", "spillway", "python", "scripts", "tests")
TREE += ("docs", "profiles", "examples", "samples", "cmake")
MADE = re.compile(r"NAME|\.safetensors|spillway/([\w-]+\.(jsonl?|txt)|(manifest|teacher-\w+)\.bin)$")  # by a run


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES + ROOMS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES + ROOMS, ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    names = [name for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", text) if name.partition("/")[0] in TREE]
    assert [name for name in names if not MADE.search(name) and not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("page", ROOMS, ids=name_of)
def test_every_noun_of_a_room_is_a_file(page: Path) -> None:
    rows = re.findall(r"^\| ((?:`[\w./]+`(?:, )?)+) \|", page.read_text(encoding="utf-8"), re.M)
    nouns = [noun for row in rows for noun in re.findall(r"`([\w./]+)`", row)]
    assert [noun for noun in nouns if not any((page.parent / (noun + end)).exists() for end in SUFFIXES)] == []
