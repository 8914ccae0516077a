"""`spillway rows`: the tokens and labels that a run would train on, shown without a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny
from folders import REPOSITORY
from real_runs import names
from spillway.cli import main
from spillway.config import resolve
from spillway.config.objectives import OBJECTIVES
from spillway.data import loading
from spillway.data.labels import IGNORED

ASK, ANSWER = {"role": "user", "content": "Who opens the gate?"}, {"role": "assistant", "content": "He counted."}
FORMS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "text": ([{"text": tiny.SENTENCES[0]}, {"text": tiny.SENTENCES[1]}], []),
    "pair": ([{"prompt": "The river ", "completion": "rises."}, {"prompt": "Rain ", "completion": "fell."}], []),
    "messages": ([{"messages": [ASK, ANSWER]}, {"messages": [ASK, ANSWER, ASK, ANSWER]}], []),
    "instruction": ([{"instruction": "Count", "input": "stones", "output": "one"}] * 2, ["--prompt_template", "chat"]),
}

KEYS = {"instruction": {"prompt_template": "chat"}}


def read_examples() -> list[tuple[str, str]]:
    """Objectives and their example files, by the table of docs/reference/data.md."""
    page = (REPOSITORY / "docs" / "reference" / "data.md").read_text(encoding="utf-8")
    part = page.split("\n## Rows of each objective\n")[1].split("\n#")[0]
    rows = [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("| `")]
    return [
        (objective, file)
        for row in rows
        for objective in re.findall(r"`([\w-]+)`", row[0])
        for file in re.findall(r"`(samples/[\w.]+)`", row[2])
        if objective != "reward_funcs"
    ]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A model directory without weights."""
    model = tiny.model_directory(tmp_path / "model")
    template = json.loads((model / "tokenizer_config.json").read_text()) | {"chat_template": tiny.MARKED}
    (model / "tokenizer_config.json").write_text(json.dumps(template))
    assert not list(model.glob("*.safetensors"))
    return tmp_path


def show(given: Path, rows: list[dict[str, Any]], *more: str) -> list[str]:
    return ["rows", "--model", str(given / "model"), "--dataset", str(tiny.jsonl(given / "rows.jsonl", rows)), *more]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_and_labels_are_those_of_the_batches_of_a_run(
    form: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, more = FORMS[form]
    before = names(given)
    assert main(show(given, rows, *more, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    keys = {"model": str(given / "model"), "dataset": str(given / "rows.jsonl"), **KEYS.get(form, {})}
    config = resolve(keys, {})
    trained: Any = loading.load(config, loading.load_tokenizer(config), "dataset", print)
    for number, row in enumerate(found["first"]):
        batch = trained.batch(np.array([number]))
        assert row["input_ids"] == batch.input_ids[0].tolist()
        assert row["labels"] == batch.labels[0].tolist()
    labels = [label for row in found["first"] for label in row["labels"][1:] if label != IGNORED]
    assert found["trained_tokens"] == len(labels) > 0
    assert names(given) == sorted({*before, "rows.jsonl"})


def test_trained_text_stands_between_marks(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(show(given, [{"prompt": "The river", "completion": " rises."}])) == 0
    said = capsys.readouterr().out
    assert "The river\u00ab rises.<eos>\u00bb" in said
    assert f"{given / 'rows.jsonl'}:1: " in said and "1 row with" in said


def test_pairs_show_both_sequences(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {"prompt": "Rain ", "chosen": "fell.", "rejected": "rose."}
    assert main(show(given, [pair], "--objective", "dpo", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["sequence"] for row in found["first"]] == ["chosen", "rejected"]
    assert [row["text"] for row in found["first"]] == ["Rain fell.<eos>", "Rain rose.<eos>"]


def test_labels_of_a_classification_are_shown(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "Rain fell.", "label": 1}, {"text": "He counted.", "label": 0}]
    assert main(show(given, rows, "--objective", "text-classification", "--num_labels", "2", "--json")) == 0
    assert [row["labels"] for row in json.loads(capsys.readouterr().out)["first"]] == [1, 0]


@pytest.mark.parametrize(("objective", "file"), read_examples())
def test_example_file_of_an_objective_has_rows_that_it_trains_on(
    objective: str, file: str, given: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tiny.model_directory(given / "teacher")
    save_file({}, teacher / "model.safetensors")
    (given / "rewards.py").write_text("def score(completions, **columns):\n    return [0.0] * len(completions)\n")
    monkeypatch.chdir(given)
    more = {
        "text-classification": ["--id2label", '["negative", "positive"]'],
        "token-classification": ["--id2label", '["other", "person", "place"]'],
        "grpo": ["--reward_funcs", "rewards.score"],
        "distill": ["--teacher", str(teacher)],
    }
    command = ["rows", "--model", str(given / "model"), "--dataset", str(REPOSITORY / file), "--objective", objective]
    assert main([*command, *more.get(objective, []), "--json"]) == 0, capsys.readouterr().err
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"] in (4, 8) and shown["first"]


def test_example_files_cover_every_objective() -> None:
    assert {objective for objective, _ in read_examples()} == OBJECTIVES.keys()


def test_count_limits_what_is_shown_and_not_what_is_counted(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": sentence} for sentence in tiny.SENTENCES]
    assert main(show(given, rows, "--count", "2", "--json", "--max_length", "8")) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["first"]) == 2 and found["rows"] == len(rows)
    assert found["longer_than_max_length"] == len(rows) and found["longest"] > 8
    assert all(len(row["input_ids"]) == 8 and row["more_tokens"] > 0 for row in found["first"])
    assert found["tokens"] == 8 * len(rows) and found["trained_tokens"] == 7 * len(rows)


def test_packed_rows_are_joined_and_not_cut(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": sentence} for sentence in tiny.SENTENCES]
    assert main(show(given, rows, "--packing", "--max_length", "8")) == 0
    said = capsys.readouterr().out
    assert "more follow" in said and "cuts" not in said and "Packing makes" in said


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--count", "0"], "count: got '0', expects a whole number"),
        (["--count", "all"], "count: got 'all'"),
        (["--prompt_template", "alpaca"], "prompt_template: alpaca is for rows with instruction and output"),
        (["--prompt_template", "chatml"], "prompt_template"),
        (["--dataset", "nowhere.jsonl"], "dataset"),
    ],
)
def test_bad_input_is_one_sentence(more: list[str], part: str, given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(show(given, [{"text": "Rain fell."}], *more)) == 2
    said = capsys.readouterr()
    assert part in said.err and len(said.err.splitlines()) == 1 and said.out == ""
