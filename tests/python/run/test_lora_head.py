"""`method: lora` beside a head of labels: equal to PEFT in memory, in files that PEFT reads, resumed bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import real_runs
import test_classification as labels
import test_reward as rewards
import tiny
from needs import package
from spillway.model.adapters.lora import ADAPTER, ADAPTER_CONFIG

peft = package("peft", "LoRA is PEFT's")
LORA = ("--method", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_dropout", "0")
SEED = 42  # the run's
TASKS = {"classes": "SEQ_CLS", "tokens": "TOKEN_CLS", "reward": "SEQ_CLS"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("lora-head"))
    (place / "model").rename(place / "base")
    labels.save_models(place)
    for kind in ("classes", "tokens"):
        tiny.jsonl(place / f"{kind}.jsonl", labels.rows_of(kind))
    rewards.save_classifier(place / "model", place / "base")
    for name in ("model", "base"):
        tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / name))
    tiny.jsonl(place / "texts.jsonl", rewards.DATA["texts"])
    return place


def adapt(model: Any, kind: str, targets: Any = None) -> Any:
    """The model with adapters, configured as in PEFT's own documentation."""
    torch.manual_seed(SEED)
    asked = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type=TASKS[kind], target_modules=targets)
    return peft.get_peft_model(model, asked)


def expect_files(ours: Path, plain: Path) -> None:
    """Adapters and head, and all that PEFT's configuration says but the order of its sets and the name of the base."""
    found, expected = (load_file(place / ADAPTER) for place in (ours, plain))
    assert found.keys() == expected.keys()
    assert "base_model.model.score.weight" in found
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
    one, other = (json.loads((place / ADAPTER_CONFIG).read_text()) for place in (ours, plain))
    for each in (one, other):
        each["target_modules"] = sorted(each["target_modules"])
        del each["base_model_name_or_path"]
    assert one == other


@pytest.mark.parametrize(("kind", "targets"), [("classes", None), ("tokens", ["q_proj", "down_proj"])])
def test_classifiers_equal_peft_in_memory(given: Path, tmp_path: Path, kind: str, targets: Any) -> None:
    plain = adapt(labels.plain_model(given / kind, kind), kind, targets)
    trained, expected = labels.in_memory(plain, kind)
    trained.save_pretrained(tmp_path / "plain")
    more = [word for name in targets or [] for word in ("--lora_target_modules", name)]
    words = [*LORA, *more, *real_runs.on_path(tmp_path / "storage")]
    assert labels.train(given, tmp_path / "ours", kind, *words) == 0
    labels.expect_steps(tmp_path / "ours", expected)
    expect_files(tmp_path / "ours", tmp_path / "plain")


def test_rewards_equal_trl_with_peft_in_memory(given: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    import pairs
    from spillway.data.order import Order

    model = AutoModelForSequenceClassification.from_pretrained(given / "model", num_labels=1, dtype="float32")
    model = adapt(model, "reward")
    order = Order(rewards.ROWS, 2, 2, 42)
    plain = pairs.in_memory(given, tmp_path / "plain", rewards.DATA["texts"], order, model, "reward", max_length=256)
    assert rewards.train(given, tmp_path / "ours", "texts", *LORA) == 0
    rewards.same_rows(rewards.steps_of(tmp_path / "ours"), pairs.logged(plain))
    expect_files(tmp_path / "ours", tmp_path / "plain")


def test_peft_reads_adapters_and_head(given: Path, tmp_path: Path) -> None:
    """On a base that predicts tokens, whose head is new: scores give the loss that the run's evaluation logged."""
    from transformers import AutoModelForSequenceClassification

    numbered = [{**row, "label": labels.label_of("classes", row)} for row in labels.rows_of("classes")]
    rows, held = (tiny.jsonl(tmp_path / f"{count}.jsonl", numbered[:count]) for count in (len(numbered), 4))
    more = ["--num_labels", "3", "--lora_target_modules", "all-linear", "--eval_dataset", str(held)]
    words = [*LORA, *more, "--dataset", str(rows)]
    assert labels.train(given, tmp_path / "out", "classes", *words, model="base") == 0
    base = AutoModelForSequenceClassification.from_pretrained(given / "base", num_labels=3, dtype="float32")
    base.config.pad_token_id = tiny.tokenizer().pad_token_id
    model = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        loss = model(**labels.encode("classes", labels.rows_of("classes")[:4])).loss
    assert rewards.close(rewards.steps_of(tmp_path / "out", "eval_loss")[-1]["eval_loss"], float(loss))


@pytest.mark.parametrize("model", ["classes", "base"])
def test_a_kill_changes_no_bit(given: Path, tmp_path: Path, model: str) -> None:
    """With a head that was there, and with a new one; on a base of 4 bits, with dropout of the adapters."""
    words = [
        "--method", "lora", "--lora_dropout", "0.2", "--load_in_4bit", "--compute_dtype", "bf16", "--save_steps", "2",
        "--dram_budget", "2GiB", "--id2label", json.dumps(labels.NAMES),
    ]  # fmt: skip
    assert labels.train(given, tmp_path / "dram", "classes", *words, model=model) == 0
    every = labels.words_of(given, "classes", *words, *real_runs.on_path(tmp_path / "storage"), model=model)
    real_runs.kill_after("update", real_runs.words(given, tmp_path / "out", *every), calls=3)
    assert real_runs.main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]) == 0
    assert "base_model.model.score.weight" in load_file(tmp_path / "exported" / ADAPTER)
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    assert (tmp_path / "out" / ADAPTER).read_bytes() == (tmp_path / "dram" / ADAPTER).read_bytes()


def test_a_run_begins_with_saved_adapters_and_head(given: Path, tmp_path: Path) -> None:
    """`lora_adapter` and a checkpoint of a run hold both."""
    first = ["--save_steps", "2", "--max_steps", "2", *LORA]
    assert labels.train(given, tmp_path / "first", "tokens", *first) == 0
    more = [*LORA, "--lora_adapter", str(tmp_path / "first"), "--max_steps", "1", "--learning_rate", "0"]
    assert labels.train(given, tmp_path / "next", "tokens", *more) == 0
    assert (tmp_path / "next" / ADAPTER).read_bytes() == (tmp_path / "first" / ADAPTER).read_bytes()
    whole = [*LORA, "--max_steps", "3", "--save_steps", "2", "--lr_scheduler_type", "constant"]
    assert labels.train(given, tmp_path / "whole", "tokens", *whole) == 0
    back = ["--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-2")]
    assert labels.train(given, tmp_path / "again", "tokens", *whole, *back) == 0
    assert (tmp_path / "again" / ADAPTER).read_bytes() == (tmp_path / "whole" / ADAPTER).read_bytes()


def test_check_compares_with_peft(given: Path, tmp_path: Path) -> None:
    words = labels.words_of(given, "classes", *LORA, "--max_steps", "2")
    assert real_runs.here(given, tmp_path / "out", *words, verb="check") == 0
