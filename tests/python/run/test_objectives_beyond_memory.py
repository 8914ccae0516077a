"""Each objective with a training state that exceeds the budget: killed and resumed, it ends with the bits of a run in
DRAM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import distilled
import pairs
import real_runs
import tiny
from spillway.config.objectives import OBJECTIVES

pytestmark = pytest.mark.nightly
BUDGET = 704 << 20  # more than half of which the process alone takes
STATE = 12  # bytes of a parameter: weight, remainder and two moments
ROWS = 12
KEYS = ("--compute_dtype", "bf16", "--max_steps", "3", "--save_steps", "3", "--gradient_accumulation_steps", "1")
MORE = {
    "cpo": ["--loss_type", "simpo", "--cpo_alpha", "0"],
    "text-classification": ["--num_labels", "3"],
    "token-classification": ["--num_labels", "3"],
    "grpo": ["--beta", "0.04"],
}


def rows_of(objective: str) -> list[dict[str, Any]]:
    if objective in ("dpo", "orpo", "cpo", "reward"):
        return pairs.texts(ROWS)
    if objective == "kto":
        return pairs.answers(ROWS)
    texts = tiny.text_rows(ROWS)
    if objective == "text-classification":
        return [{**row, "label": number % 3} for number, row in enumerate(texts)]
    if objective == "token-classification":
        words = [row["text"].split()[:12] for row in texts]
        return [{"tokens": each, "ner_tags": [place % 3 for place in range(len(each))]} for each in words]
    if objective == "grpo":
        group = {"completion_ids": [[7, 9], [8]], "rewards": [0, 1], "old_logprobs": [[-5, -5], [-6]]}
        return [{"prompt_ids": [5, 6 + number], **group} for number in range(ROWS)]
    return list(texts)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("beyond"))
    shape = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 13, "num_attention_heads": 8}
    model = distilled.make_teacher(place / "large", **shape)
    distilled.make_teacher(place / "teacher")
    parameters = (model / "model.safetensors").stat().st_size // 4
    assert parameters * STATE > 5 * BUDGET // 4
    return place


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_a_killed_run_within_its_budget_has_the_bits_of_one_in_dram(
    given: Path, tmp_path: Path, objective: str
) -> None:
    data = tiny.jsonl(tmp_path / "rows.jsonl", rows_of(objective))
    more = ["--model", str(given / "large"), "--dataset", str(data), "--objective", objective, *KEYS]
    more += MORE.get(objective, []) + (["--teacher", str(given / "teacher")] if objective == "distill" else [])
    assert real_runs.here(given, tmp_path / "dram", *more, "--dram_budget", "4GiB", "--durability", "none") == 0
    storage = ["--storage", f"{tmp_path},capacity=6GiB", "--dram_budget", str(BUDGET)]
    real_runs.kill_after("update", real_runs.words(given, tmp_path / "out", *more, *storage), calls=2)
    resumed = real_runs.apart("-m", "spillway", "resume", str(tmp_path / "out"))
    _, error = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, error[-3000:]
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "dram")]
    assert weights[0] == weights[1]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 < summary["process_peak"] <= BUDGET
