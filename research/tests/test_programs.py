"""The programs of research/ as a user starts them: C++ on the profiles of the papers, Python by its options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "wheel" / "research"
PROGRAMS = ("lsp_quality", "lsp_residual", "lsp_steps", "lsp_training", "lsp_training_table", "papers")
HELD = json.loads((ROOT / "bench/results/papers.json").read_text())["tables"]
SLOW = ("third_level", "scale", "cluster")  # plans of many GPUs, which take minutes
TABLES = [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in HELD if name != "lsp_links"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_explains_its_options(name: str) -> None:
    result = run(sys.executable, f"research/{name}.py", "--help")
    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout


@pytest.mark.parametrize("table", TABLES)
def test_papers_program_repeats_the_figures_of_the_page(table: str) -> None:
    """Rows of other systems are those of the file; Spillway's own rows follow its planner."""

    def others(rows: list[dict[str, Any]]) -> dict[str, float]:
        return {row["what"]: row["simulated"] for row in rows if "Spillway" not in row["what"]}

    result = run(str(BUILT / "papers"), "profiles", table)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)[table]
    assert [row["what"] for row in rows] == [row["what"] for row in HELD[table]]
    assert others(rows) == pytest.approx(others(HELD[table]), rel=1e-6)


def test_papers_program_names_a_missing_profile(tmp_path: Path) -> None:
    result = run(str(BUILT / "papers"), str(tmp_path))
    assert result.returncode == 2
    assert "papers-cxl.json" in result.stderr


def test_fit_captures_most_of_a_gradient_of_few_directions() -> None:
    result = run(str(BUILT / "lsp_fit"), "--rows", "128", "--columns", "256", "--nonzeros", "4,16", "--rounds", "1")
    assert result.returncode == 0, result.stderr
    captured = [float(part) for part in re.findall(r"captured ([\d.]+)", result.stdout)]
    assert len(captured) == 2
    assert 0.85 < captured[0] < captured[1] <= 1, "more values in a row capture more"
