"""The check of sentences: each rule on pages that keep and break it, and ceilings that only fall."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_prose
from folders import REPOSITORY

LONG = "The engine copies " + "one chunk and " * 9 + "another."


def make_tree(place: Path, pages: dict[str, str], ceilings: str = "") -> Path:
    for name, text in {**pages, "spillway/a.h": "", check_prose.CHECK.file: ceilings}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "check_prose.py", tree]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("sentence", "rules"),
    [
        ("What of a model can stay in DRAM is planned.", ["opener"]),
        ("Whether it fits is planned.", ["opener"]),
        ("With a drive it fits.", ["opener"]),
        ("Within a step nothing moves.", []),
        ("The plan says what fits.", []),
        ("A chunk is no longer copied.", ["history"]),
        ("The engine knows the chunk.", []),
        ("Now the engine copies it.", ["history"]),
        (LONG, ["length"]),
        ("The engine copies " + "a " * 26 + "chunk.", []),
        ("Of it, " + LONG.lower() + " It is faster than before", ["opener", "length", "history"]),
    ],
)
def test_sentence_breaks_these_rules(sentence: str, rules: list[str]) -> None:
    assert list(check_prose.broken_rules(sentence)) == rules


def test_sentences_of_a_page_have_their_lines() -> None:
    page = (
        "# What is a heading\n\nOne `x. Y` is [a\nlink](to.md). Two\nends.\n- **Three.** Four 2.4 is.\n  goes on\n"
        "<!-- Of a\ncomment -->\n```\nWith code.\n```\n| five | Six. Seven |\n|---|---|\n\n1. Eight?\n"
    )
    found = list(check_prose.sentences(page))
    assert [line for line, _ in found] == [3, 4, 6, 6, 13, 13, 13, 14, 14, 16]
    assert [text for _, text in found] == [
        "One `code` is a link.", "Two ends.", "Three.", "Four 2.4 is. goes on", "five", "Six.", "Seven", "---", "---",
        "Eight?",
    ]  # fmt: skip


def test_count_over_the_ceiling_fails_and_lists_the_sentences(tmp_path: Path) -> None:
    pages = {"docs/how-to/a.md": "One.\nOf two.\n", "docs/how-to/b.md": "By three.\n"}
    done = check(make_tree(tmp_path, pages, '["docs/how-to"]\nopener = 1\n'))
    assert done.returncode == 1
    assert "docs/how-to/a.md:2: opener: Of two." in done.stdout and "docs/how-to/b.md:1: opener" in done.stdout
    assert "docs/how-to: 2 sentences open with" in done.stdout and "the ceiling is 1" in done.stdout


def test_folder_without_a_ceiling_has_no_fault(tmp_path: Path) -> None:
    assert check(make_tree(tmp_path, {"docs/new/a.md": "It is no longer so."})).returncode == 1


def test_count_at_the_ceiling_passes(tmp_path: Path) -> None:
    done = check(make_tree(tmp_path, {"README.md": "Of two.\n"}, '["."]\nopener = 1\n'))
    assert done.returncode == 0 and "--lower" not in done.stdout


def test_count_under_the_ceiling_asks_to_lower_it(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"README.md": "Of two.\n"}, '["."]\nopener = 3\nlength = 0\nhistory = 0\n')
    done = check(tree)
    assert done.returncode == 0 and "better than the ceiling in . (opener)" in done.stdout
    check_prose.CHECK.lower(tree)
    assert check_prose.CHECK.read(tree) == {(".", "opener"): 1, (".", "length"): 0, (".", "history"): 0}
    assert "--lower" not in check(tree).stdout


def test_lower_raises_no_ceiling(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"README.md": "Of two. By three.\n"}, '["."]\nopener = 1\n')
    check_prose.CHECK.lower(tree)
    assert check_prose.CHECK.read(tree)[".", "opener"] == 1 and check(tree).returncode == 1


def test_folders_that_are_not_pages_are_left_out(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"build/a.md": "Of two.", ".venv/b.md": "Of two.", "spillway/plan/c.md": "Of two."})
    assert [(it.page, check_prose.name_folder(it.page)) for it in check_prose.faults(tree)] == [
        ("spillway/plan/c.md", "spillway")
    ]
