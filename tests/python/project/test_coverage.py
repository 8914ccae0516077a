"""Every key, verb and file that people rely on is used by a test: one that is added without any is named here.

README.md of the tests says where each is tested, and names folders and files that exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import cache

import pytest

from folders import FOLDERS, TESTS
from spillway.cli import VERBS
from spillway.config import resolve
from spillway.config.aliases import ALIASES
from spillway.config.keys import GROUPS, KEYS
from spillway.errors import InputError

# tables of names, and defaults of sessions made by hand: there a key is written down, not tried
TABLES = ("test_interface.py", "test_coverage.py", "test_config.py", "native.py")
LATER: dict[str, dict[str, object]] = {
    "lora_": {"method": "lora"},
    "lsp_": {"method": "lsp"},
    "trainable": {"trainable": ["x"]},
    "frozen": {"frozen": ["x"]},
}  # keys of what a release may refuse as a whole
FILES = (
    "config.yaml", "plan.json", "metrics.jsonl", "summary.json", "timeline.json.gz", "loss.png", "report.html",
    "model.safetensors", "generation_config.json", "trainer_state.json", "manifest.bin",
)  # fmt: skip
ROWS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "path_bytes", "eval_loss")


@cache
def texts() -> dict[str, str]:
    paths = [path for path in TESTS.rglob("*.py") if path.name not in TABLES]
    return {path.relative_to(TESTS).as_posix(): path.read_text() for path in paths}


def is_used(name: str, files: Collection[str] | None = None) -> bool:
    """As an option, as a key of a mapping or a keyword, or in a configuration file. `files`: of these alone."""
    return has_match(name, re.compile(rf"--{name}\b|[\"']{name}[\"']|\b{name}=(?!=)|\b{name}: "), files)


def has_match(name: str, pattern: re.Pattern[str], files: Collection[str] | None = None) -> bool:
    """The pattern of a name. A text without the name is passed over, since patterns are slow."""
    chosen = (text for file, text in texts().items() if files is None or file in files)
    return any(pattern.search(text) for text in chosen if name in text)


def match_call(verb: str) -> re.Pattern[str]:
    return re.compile(rf"main\(\[\"{verb}\"|verb=\"{verb}\"|\[\"{verb}\", |\"{verb}\",? ")


@cache
def read_rows(heading: str) -> dict[str, list[str]]:
    """A table of the tests' README.md: the first column, and the code of the others."""
    section = (TESTS / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)[1:]  # without the heads of the columns
    return {first.strip("`"): re.findall(r"`([^`]+)`", rest) for first, rest in rows}


def is_here(name: str) -> bool:
    for prefix, asked in LATER.items():
        if name.startswith(prefix):
            try:
                resolve(asked, {})
            except InputError:
                return False
    return True


def test_all_of_it_is_tried() -> None:
    called = {verb: match_call(verb) for verb in VERBS}
    looked_at = {name: re.compile(rf"[\"'/]{re.escape(name)}[\"' ]") for name in (*FILES, *ROWS)}
    missing = [f"no test gives {name}" for name in (*KEYS, *ALIASES) if is_here(name) and not is_used(name)]
    for word, patterns in (("calls", called), ("looks at", looked_at)):
        missing += [f"no test {word} {name}" for name, pattern in patterns.items() if not has_match(name, pattern)]
    assert not missing


def test_what_is_not_used_is_found() -> None:
    assert not is_used("no_such" + "_key") and is_used("max_steps")


@pytest.mark.parametrize("table", ["Promises", "Verbs", "Keys"])
def test_files_of_the_readme_exist(table: str) -> None:
    names = {name for row in read_rows(table).values() for name in row}
    assert names and [name for name in sorted(names) if not (TESTS / name).is_file()] == []


def test_readme_has_a_row_for_each_folder() -> None:
    assert sorted(read_rows("Folders")) == [folder.name for folder in FOLDERS]


def test_each_test_file_lies_in_a_folder_under_a_name_of_its_own() -> None:
    files = list(TESTS.rglob("test_*.py"))
    assert [file.name for file in files if file.parent not in FOLDERS] == []  # move it to the folder of its package
    assert [name for name, count in Counter(file.name for file in files).items() if count > 1] == []


@pytest.mark.parametrize("verb", VERBS)
def test_readme_names_a_file_that_calls_each_verb(verb: str) -> None:
    assert has_match(verb, match_call(verb), read_rows("Verbs")[verb])


@pytest.mark.parametrize("title", GROUPS)
def test_files_of_a_row_use_each_key_under_its_heading(title: str) -> None:
    files = read_rows("Keys")[title]
    assert [key.name for key in GROUPS[title] if is_here(key.name) and not is_used(key.name, files)] == []


def test_files_of_another_row_lack_a_key() -> None:
    assert not is_used("lsp_" + "rank", read_rows("Keys")["Data"])
    assert not has_match("merge", match_call("merge"), read_rows("Verbs")["demo"])
