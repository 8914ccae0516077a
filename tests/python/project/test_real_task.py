"""bench/real_task.py: the rows that it makes of samples, and what it counts as right."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest

from folders import REPOSITORY

BENCH = REPOSITORY / "bench"
SAMPLE = {"question": "?", "answer": "3 x 8 is <<8*3=24>>24.\nOf 6: <<24/6=1,004>>1,004.\n#### 1,004"}
WANTED = '{"calculation": "24/6", "answer": 1004}'


@pytest.fixture(scope="module")
def task() -> Any:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("real_task")
    finally:
        sys.path.remove(str(BENCH))


def test_row_asks_for_last_calculation_without_the_result_line(task: Any) -> None:
    system, user, assistant = task.make_row(SAMPLE)["messages"]
    assert [system["role"], user["role"], assistant["role"]] == ["system", "user", "assistant"]
    assert user["content"] == "3 x 8 is <<8*3=24>>24.\nOf 6: <<24/6=1,004>>1,004."
    assert assistant["content"] == WANTED


@pytest.mark.parametrize("answer", ["no sum\n#### 3", "<<1+2=3>>3", "<<1/2=0.5>>0.5\n#### 0.5"])
def test_sample_without_calculation_or_whole_result_is_left_out(task: Any, answer: str) -> None:
    assert task.make_row({"question": "?", "answer": answer}) is None


def test_every_sample_row_has_an_answer_that_reads_back(task: Any) -> None:
    for part in ("train", "heldout"):
        lines = (task.SAMPLES / f"gsm8k.{part}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(task.make_row, map(json.loads, lines)) if row]
        assert len(rows) > len(lines) * 0.9
        answers = [row["messages"][-1]["content"] for row in rows]
        assert task.compare(answers, rows)["right"] == len(rows)


@pytest.mark.parametrize(
    "answer, right, formed",
    [
        (WANTED, 1, 1),
        ('{"answer": 1004.00, "calculation": "24/6"}', 1, 1),
        ('{"calculation": "24/6", "answer": 1005}', 0, 1),
        ('{"calculation": "8*3", "answer": 1004}', 0, 1),
        ('{"answer": 1004}', 0, 0),
        (f"Here it is: {WANTED}", 0, 0),
        ("1004", 0, 0),
    ],
)
def test_score_counts_values_and_form(task: Any, answer: str, right: int, formed: int) -> None:
    found = task.compare([answer], [task.make_row(SAMPLE)])
    assert (found["rows"], found["right"], found["formed"]) == (1, right, formed)
