"""docs/papers.md: its tables are those of its file, and only predicted figures count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "research"))
import papers  # noqa: E402

HELD = json.loads((ROOT / "bench/results/papers.json").read_text())


def test_page_is_what_its_file_says() -> None:
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page(HELD["tables"], HELD["plans"])


def test_page_has_a_plan_of_each_model_on_each_machine() -> None:
    named = {(plan["machine"], plan["model"]) for plan in HELD["plans"]}
    assert named == {(machine, model) for machine in papers.MACHINES for model in papers.MODELS}
    section = papers.PAGE.read_text(encoding="utf-8").partition("## Plans for whole models")[2]
    assert all(f"| {machine} | {model} |" in section for machine, model in named)


def test_rows_that_were_given_fitted_or_derived_do_not_count() -> None:
    page = papers.PAGE.read_text(encoding="utf-8")
    for name, rows in HELD["tables"].items():
        for row in rows:
            assert "published" not in row or row["source"] in ("paper", "repository", "derived"), (name, row["what"])
        counted = [row for row in rows if papers.predicted(row)]
        assert all(not row["how"] and row["source"] != "derived" for row in counted), name
        assert papers.verdict(rows) in page
    ours = [row for row in HELD["tables"]["third_level"] if "Spillway" in row["what"]]
    assert ours and not any("published" in row for row in ours), "plans on four GPUs: nothing to hold them against"
    assert {plan["machine"] for plan in HELD["plans"]} <= {"workstation", "laptop"}, "one GPU or none"
    published = [row["what"] for row in HELD["tables"]["host_memory"] if "published" in row]
    assert published == ["saved by MemAscend on average (%)"]
