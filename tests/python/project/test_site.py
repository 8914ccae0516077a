"""The documentation site: each page is in its navigation, each link leads to a file of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
import stage_site  # noqa: E402


def make_tree(place: Path, pages: dict[str, str]) -> Path:
    """A repository with these files."""
    for name, text in pages.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def stage_page(place: Path, text: str) -> stage_site.Stage:
    site = stage_site.Stage(make_tree(place, {"docs/page.md": text, "bench/one.json": "{}", "bench/two.txt": "2"}))
    site.add("docs/page.md")
    return site


@pytest.fixture(scope="module")
def site() -> stage_site.Stage:
    return stage_site.stage(REPOSITORY)


def test_pages_of_this_tree_link_to_files_alone(site: stage_site.Stage) -> None:
    assert {"README.md", "docs/how-to/gpu.md", "bench/results/README.md", "examples/README.md"} <= site.pages.keys()
    assert "bench/results/headline.json" in site.files
    assert not any(str(REPOSITORY) in text for text in site.pages.values())


def test_navigation_has_every_page_of_docs(site: stage_site.Stage) -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = [line.split()[-1] for line in navigation.splitlines() if line.endswith(".md")]
    assert len(named) == len({*named})
    assert {name for name in site.pages if name.startswith("docs/")} - site.folders == {
        name for name in named if name.startswith("docs/")
    }


def read_title(page: str) -> str:
    (title,) = re.findall(r"\A# (.+)", (REPOSITORY / page).read_text(encoding="utf-8"))
    return str(title)


def test_navigation_takes_every_name_of_a_page_from_its_heading() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    lines = [line.strip() for line in navigation.splitlines() if line.endswith(".md")]
    assert [line for line in lines if not re.fullmatch(r"- \S+", line)] == []


def test_the_list_of_pages_has_groups_and_titles_of_the_navigation() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")
    guides = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("  - Guides:\n")[2]
    guides = guides.partition("  - Reference:\n")[0]
    for group in re.split(r"^ {6}- ", guides, flags=re.M)[1:]:
        name, _, lines = group.partition(":\n")
        pages = [line.strip("- ") for line in lines.splitlines()]
        section = index.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        links = re.findall(r"^\| \[(.+?)\]\((.+?)\)", section, re.M)
        places = [str((REPOSITORY / "docs" / link).resolve().relative_to(REPOSITORY.resolve())) for _, link in links]
        assert places == pages
        assert [title for title, _ in links] == [read_title(page) for page in pages]


def test_pages_of_other_folders_are_in_the_navigation_or_left_out_of_it_by_name(site: stage_site.Stage) -> None:
    """MkDocs refuses the others."""
    settings = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    left_out = settings.partition("not_in_nav: |\n")[2].partition("\n\n")[0].split()
    navigation = settings.partition("\nnav:\n")[2]
    assert [
        name
        for name in sorted(site.pages)
        if not re.search(rf"(^|\s){re.escape(name)}$", navigation, re.M)
        and not any(f"/{name}".startswith(folder) for folder in left_out)
        and name not in site.folders
    ] == []


def test_link_to_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(stage_site.MissingFile, match="docs/page.md: the link gone.md leads to no file"):
        stage_page(tmp_path, "[gone](gone.md)")


def test_link_out_of_the_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(stage_site.MissingFile, match="leaves the repository"):
        stage_page(tmp_path, "[out](../../out.md)")


def test_link_to_a_folder_leads_to_a_list_of_its_files(tmp_path: Path) -> None:
    site = stage_page(tmp_path, "[all](../bench) and [code](page.md#code)\n\n```\n[kept](gone.md)\n```\n")
    assert site.pages["docs/page.md"].startswith("[all](../bench/README.md) and [code](page.md#code)")
    assert "- [two.txt](two.txt)" in site.pages["bench/README.md"]
    assert site.files == {"bench/one.json", "bench/two.txt"}


def test_list_after_a_paragraph_gets_an_empty_line() -> None:
    assert stage_site.open_lists("Two:\n- one\n  goes on\n- two\n") == "Two:\n\n- one\n  goes on\n- two\n"


def test_page_about_tests_names_files_and_targets_that_exist() -> None:
    page = (REPOSITORY / "docs" / "how-it-is-tested.md").read_text(encoding="utf-8")
    words = re.findall(r"`([^`]+)`", page)
    files = [word for word in words if word.startswith(("tests/", "scripts/"))]
    targets = [word.split()[1] for word in words if word.startswith("make ")]
    assert len(files) >= 10 and len(targets) >= 5
    assert not [file for file in files if not (REPOSITORY / file).exists()]
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)]


@pytest.mark.parametrize("has_git", [True, False])
def test_ignored_folders_are_no_part_of_the_repository(tmp_path: Path, has_git: bool) -> None:
    place = make_tree(tmp_path, {".gitignore": "/build/\n", "build/a.md": "", "docs/page.md": ""})
    if has_git:
        subprocess.run(["git", "init", "-q", str(place)], check=True)
    assert stage_site.list_files(place) == {".gitignore", "docs/page.md"}
