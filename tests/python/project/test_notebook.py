"""notebooks/: every notebook runs top to bottom, and holds no output of an earlier run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import warm
from folders import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def read_cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_there_is_a_notebook() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["first-run.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in content["cells"]]
    assert len(names) == len(set(names))
    for cell in read_cells(notebook, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.nightly
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each code cell in turn in one process, as a kernel does."""
    cells = ["".join(cell["source"]) for cell in read_cells(notebook, "code")]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = warm.python("-c", RUN, tmp_path / "cells.json")
    out, errors = process.communicate()
    assert process.returncode == 0, f"{out[-3000:]}\n{errors[-3000:]}"
    assert "40 losses and all weights are bit-identical." in out
    assert (next(tmp_path.glob("first-run-*")) / "on-disk" / "report.html").is_file()


RUN = """
import json, sys
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1]))):
    exec(compile(cell, f"cell {number}", "exec"), names)
"""
