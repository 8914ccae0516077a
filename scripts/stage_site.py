#!/usr/bin/env python3
"""Copies the pages of the documentation site, and each file that a page links to, into one folder for MkDocs.

    scripts/stage_site.py FOLDER

The folder keeps the layout of the repository, so the links of README, docs and the rooms' pages stay valid on the site.
A link to a folder leads to its README.md, or to a list of its files. Exit code 1: a page links to a missing file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "recipes/README.md")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LIST = re.compile(r"(?:[-*]|\d+\.) ")


class MissingFile(Exception):
    """A page links to a file that the repository does not hold."""


def list_files(root: Path) -> set[str]:
    """Files of the repository by name, without those that git ignores. A tree without git has all its files but those
    of the folders in .gitignore."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (root / ".git").exists():
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        return {name for name in names if name and (root / name).is_file()}
    ignore = root / ".gitignore"
    folders = {line.strip("/") for line in ignore.read_text().splitlines()} if ignore.is_file() else set()
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(file) for file in files if not folders & {*file.parts}}


def is_remote(target: str) -> bool:
    return bool(re.match(r"[a-z]+:", target))


class Stage:
    """Files of the site by their name in the repository: text of pages, and names of files to copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = list_files(root)
        self.pages: dict[str, str] = {}
        self.files: set[str] = set()
        self.folders: set[str] = set()

    def add(self, name: str) -> None:
        """Adds a file, and all files that it links to."""
        if name in self.pages or name in self.files:
            return
        if not name.endswith(".md"):
            self.files.add(name)
            return
        text = (self.root / name).read_text(encoding="utf-8")
        self.add_page(name, text)

    def add_page(self, name: str, text: str) -> None:
        self.pages[name] = ""
        parts = FENCE.split(text)
        parts[::2] = [self.resolve_links(name, open_lists(part)) for part in parts[::2]]
        self.pages[name] = "".join(parts)

    def resolve_links(self, page: str, text: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            target = found[2] if is_remote(found[2]) else self.resolve(page, found[2])
            return found[1] + target + found[3]

        return LINK.sub(replaced, text)

    def resolve(self, page: str, target: str) -> str:
        """The target of a link, with the file on the site instead of a folder."""
        place = (self.root / page).parent.joinpath(target).resolve()
        if not place.is_relative_to(self.root):
            raise MissingFile(f"{page}: the link {target} leaves the repository")
        name = str(place.relative_to(self.root))
        if place.is_dir():
            self.add_folder(name)
            return target.rstrip("/") + "/README.md"
        if name not in self.names:
            raise MissingFile(f"{page}: the link {target} leads to no file of the repository")
        self.add(name)
        return target

    def add_folder(self, folder: str) -> None:
        """Adds the README.md of a folder, or a list of its files where it has none."""
        name = f"{folder}/README.md"
        if name in self.names:
            self.add(name)
            return
        files = sorted(file for file in self.names if file.startswith(f"{folder}/"))
        if not files:
            raise MissingFile(f"the folder {folder} holds no file of the repository")
        if name not in self.pages:
            self.folders.add(name)
            links = [f"- [{file[len(folder) + 1 :]}]({file[len(folder) + 1 :]})" for file in files]
            self.add_page(name, "\n".join([f"# {folder}", "", *links, ""]))

    def write(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in self.pages.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for name in self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, folder / name)


def open_lists(text: str) -> str:
    """The text with an empty line before each list: MkDocs needs one where GitHub needs none."""
    return "".join(separate_lists(text.splitlines(keepends=True)))


def separate_lists(lines: list[str]) -> Iterator[str]:
    before, in_list = "", False
    for line in lines:
        if LIST.match(line):
            if before.strip() and not in_list:
                yield "\n"
            in_list = True
        elif not line.strip():
            in_list = False
        yield line
        before = line


def stage(root: Path) -> Stage:
    site = Stage(root)
    docs = sorted(name for name in site.names if name.startswith("docs/") and name.endswith(".md"))
    for name in [*START, *docs]:
        site.add(name)
    return site


def main() -> int:
    try:
        stage(ROOT).write(Path(sys.argv[1]))
    except MissingFile as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
