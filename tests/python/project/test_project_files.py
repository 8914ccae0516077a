"""Files for those who report, contribute or cite: forms that a host can read, and facts that hold."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from folders import REPOSITORY
from spillway.cli import VERBS

sys.path.append(str(REPOSITORY / "scripts"))
import stage_site  # noqa: E402

FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_citation_has_the_version_and_the_licence_of_the_build() -> None:
    citation = read(REPOSITORY / "CITATION.cff")
    version = re.search(r"project\(spillway VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
    assert version and citation["version"] == version[1]
    assert f'license = "{citation["license"]}"' in (REPOSITORY / "pyproject.toml").read_text()
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("form", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_form_is_well_formed(form: Path) -> None:
    content = read(form)
    assert content["name"] and content["description"]
    names = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert names and len(names) == len({*names})
    for field in content["body"]:
        assert field["type"] in FIELDS
        assert field["attributes"].get("label") or field["type"] == "markdown"


def test_forms_ask_for_commands_that_exist() -> None:
    asked = {verb for form in FORMS for verb in re.findall(r"spillway ([a-z]+)", form.read_text(encoding="utf-8"))}
    assert {"doctor", "plan"} <= asked <= VERBS.keys()


def test_map_has_every_folder_of_the_repository() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Map of the tree")[2].partition("\n## ")[0]
    named = {name.partition("/")[0] for name in re.findall(r"`([a-z/]+)/`", table)}
    ours = {name.partition("/")[0] for name in stage_site.list_files(REPOSITORY) if "/" in name}
    assert {name for name in ours if not name.startswith(".")} == named
