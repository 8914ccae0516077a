"""docs/papers.md: its tables are those of its file, and only predicted figures count."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "research"))
import papers  # noqa: E402
import recorded  # noqa: E402

HELD = json.loads((ROOT / "bench/results/papers.json").read_text())


def test_page_is_what_its_file_says() -> None:
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page(HELD["tables"], HELD["plans"])


def test_page_has_a_plan_of_each_model_on_each_machine() -> None:
    named = {(plan["machine"], plan["model"]) for plan in HELD["plans"]}
    assert named == {(machine, model) for machine in papers.MACHINES for model in papers.MODELS}
    section = papers.PAGE.read_text(encoding="utf-8").partition("## Plans for whole models")[2]
    assert all(f"| {machine} | {model} |" in section for machine, model in named)


def test_every_paper_has_claims_with_a_figure_or_a_reason() -> None:
    claims = papers.read_claims()
    assert {claim["paper"] for claim in claims} == set(papers.PAPERS)
    for claim in claims:
        figures = papers.figures_of(claim)
        assert claim["how"] in papers.SHOWN, claim["claim"]
        assert bool(figures) == ("file" in claim) == (claim["how"] != "not shown"), claim["claim"]
        assert all(figure["of"].startswith(claim["file"] + ":") for figure in figures.values()), claim["claim"]
        planned = claim.get("file") == "papers.json"
        assert planned == (claim["how"] == "planned"), "papers.json has plans of Spillway, other files have runs"
    assert papers.claim_table() in papers.PAGE.read_text(encoding="utf-8")


def test_claims_quote_no_model_whose_rates_were_fitted_to_its_own_rows() -> None:
    quoted = 0
    for claim in papers.read_claims():
        for figure in papers.figures_of(claim).values():
            place = re.fullmatch(r'papers\.json:tables\.(\w+)\["(.*)"\]\.simulated', figure["of"])
            if place is None:
                continue
            quoted += 1
            rows = HELD["tables"][place[1]]
            row = next(row for row in rows if row["what"] == place[2])
            assert "how" not in row, "a figure of Spillway's plan, which nobody has published"
            model = row["what"].split(",")[0]
            fitted = [it for it in rows if it.get("how") == "fitted" and it["what"].startswith(f"{model},")]
            assert all(it["what"].endswith(", forward") for it in fitted), claim["claim"]
    assert quoted > 10


def test_claims_with_a_figure_that_no_file_has_are_refused() -> None:
    with pytest.raises(recorded.NotHeld, match="280B"):
        recorded.held('papers.json:tables.scale["280B, Spillway, no such row"].simulated')


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
