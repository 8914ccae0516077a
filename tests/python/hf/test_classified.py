"""transformers' Trainer over a streamed model with a head of labels: equal to itself in memory, durable, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import tiny
from breadth import some
from durable_trainers import PLACEMENT, SAVES, expect_resumed_bits
from needs import package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.hf import Trainer, load
from test_reward import close

package("accelerate", "transformers' Trainer needs it")
ROWS = 11  # the last micro-batch of an epoch has one row
CLASSES = 3
KINDS: dict[str, tuple[int, str | None]] = {
    "classes": (CLASSES, None),
    "numbers": (1, None),
    "several": (CLASSES, "multi_label_classification"),
    "tokens": (CLASSES, None),
}


def save_token_classifier(place: Path) -> None:
    """Without dropout, whose random numbers are the stream's own."""
    from transformers import AutoConfig, AutoModelForTokenClassification

    config = AutoConfig.from_pretrained(place / "base", num_labels=CLASSES)
    config.classifier_dropout = 0.0
    model = AutoModelForTokenClassification.from_pretrained(place / "base", config=config, dtype="float32")
    torch.nn.init.normal_(model.score.weight, std=0.2)
    torch.nn.init.normal_(model.score.bias, std=0.2)
    model.save_pretrained(place / "model-tokens")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForSequenceClassification

    place = real_runs.inputs(tmp_path_factory.mktemp("classified"))
    (place / "model").rename(place / "base")
    for labels in (1, CLASSES):
        torch.manual_seed(7)
        model = AutoModelForSequenceClassification.from_pretrained(
            place / "base", num_labels=labels, dtype="float32", problem_type=None
        )
        torch.nn.init.normal_(model.score.weight, std=0.2)
        model.save_pretrained(place / f"model-{labels}")
    save_token_classifier(place)
    for path in place.glob("[bm]*"):
        if path.is_dir():
            tiny.tokenizer().save_pretrained(str(path))
    return place


def rows_of(kind: str) -> list[dict[str, Any]]:
    tokenizer = tiny.tokenizer()
    found = []
    for number, row in enumerate(pairs.texts(ROWS)):
        ids = tokenizer(row["prompt"] + row["chosen"])["input_ids"]
        labels: Any = number % CLASSES
        if kind == "numbers":
            labels = number / 4
        if kind == "tokens":
            labels = [-100 if place % 4 == 1 else (place + number) % CLASSES for place in range(len(ids))]
        if kind == "several":
            labels = [float(number % 2), float(number % 3 == 0), 1.0]
        found.append({"input_ids": ids, "labels": labels})
    return found


def accuracy(prediction: Any) -> dict[str, float]:
    scores, labels = prediction.predictions, prediction.label_ids
    scores = scores[labels != -100] if scores.ndim == 3 else scores
    return {"mean_score": float(scores.mean()), "rows": float(len(np.atleast_1d(prediction.label_ids)))}


def parts(kind: str, out: Path, **more: Any) -> dict[str, Any]:
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, TrainingArguments

    tokenizer = tiny.tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "right"
    arguments = {
        "output_dir": str(out), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "num_train_epochs": 2, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no", "report_to": "none",
        "use_cpu": True, "disable_tqdm": True, "eval_strategy": "steps", "eval_steps": 3, "data_seed": 42,
        "per_device_eval_batch_size": 2, **more,
    }  # fmt: skip
    collator = DataCollatorForTokenClassification if kind == "tokens" else DataCollatorWithPadding
    rows = rows_of(kind)
    return {
        "args": TrainingArguments(**arguments), "train_dataset": rows, "eval_dataset": rows[:3],
        "data_collator": collator(tokenizer),
        "compute_metrics": accuracy,
    }  # fmt: skip


class InOrder(Trainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return pairs.SameOrder(Order(ROWS, 2, 2, 42))


def loaded(given: Path, kind: str, model: str = "", **keys: Any) -> Any:
    labels, problem = KINDS[kind]
    where = given / (model or saved_model(kind))
    more = {"task": "token-classification"} if kind == "tokens" else {}
    found = load(where, num_labels=labels, profile=str(given / "profile.json"), **more, **keys)
    return set_problem(found, problem)


def saved_model(kind: str) -> str:
    return "model-tokens" if kind == "tokens" else f"model-{KINDS[kind][0]}"


def set_problem(model: Any, problem: str | None) -> Any:
    model.config.pad_token_id, model.config.problem_type = tiny.tokenizer().eos_token_id, problem
    return model


def in_memory(given: Path, kind: str, out: Path, adapt: Callable[[Any], Any] = lambda model: model) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
    from transformers import Trainer as Plain

    class Ordered(Plain):
        def _get_train_sampler(self, *_: Any) -> Any:
            return pairs.SameOrder(Order(ROWS, 2, 2, 42))

    made = AutoModelForTokenClassification if kind == "tokens" else AutoModelForSequenceClassification
    model = made.from_pretrained(given / saved_model(kind), dtype="float32")
    trainer = Ordered(adapt(set_problem(model, KINDS[kind][1])), **parts(kind, out))
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.mark.parametrize("kind", some(list(KINDS), ["classes", "numbers", "tokens"]))
def test_equal_to_itself_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, kind: str) -> None:
    """Losses, gradient norms, metrics of scores and weights, with accumulation and remainders."""
    plain = in_memory(given, kind, tmp_path / "plain")
    (tmp_path / "storage").mkdir()
    keys = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": PLACEMENT}
    ours = InOrder(loaded(given, kind, dtype="float32", **keys), **parts(kind, tmp_path / "ours"))
    ours.train()
    ours.save_model()
    for name in ("loss", "grad_norm", "eval_loss", "eval_mean_score", "eval_rows"):
        found, expected = ([row[name] for row in each.state.log_history if name in row] for each in (ours, plain))
        assert len(found) == len(expected) > 0
        assert all(map(close, found, expected)), (name, found, expected)
    weights, others = (load_file(tmp_path / way / "model.safetensors") for way in ("ours", "plain"))
    assert weights.keys() == others.keys()
    for name, tensor in others.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "tokens"])
def test_adapters_and_head_equal_peft_in_memory(given: Path, tmp_path: Path, kind: str) -> None:
    """Losses, gradient norms and the files of both."""
    peft = package("peft", "LoRA is PEFT's")
    task = "TOKEN_CLS" if kind == "tokens" else "SEQ_CLS"

    def adapt(model: Any) -> Any:
        torch.manual_seed(42)
        return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type=task))

    plain = in_memory(given, kind, tmp_path / "plain", adapt)
    keys = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0}
    ours = InOrder(loaded(given, kind, dtype="float32", **keys), **parts(kind, tmp_path / "ours"))
    ours.train()
    ours.save_model()
    for name in ("loss", "grad_norm", "eval_loss"):
        found, expected = ([row[name] for row in each.state.log_history if name in row] for each in (ours, plain))
        assert len(found) == len(expected) > 0
        assert all(map(close, found, expected)), (name, found, expected)
    saved, others = (load_file(tmp_path / way / "adapter_model.safetensors") for way in ("ours", "plain"))
    assert saved.keys() == others.keys()
    assert "base_model.model.score.weight" in saved
    for name, tensor in others.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-5, atol=1e-5)


def test_what_is_saved_loads_as_the_librarys_class(given: Path, tmp_path: Path) -> None:
    """From a model that has predicted tokens, with its new head."""
    from transformers import AutoModelForSequenceClassification

    trainer = InOrder(loaded(given, "classes", "base", dtype="float32"), **parts("classes", tmp_path, max_steps=1))
    trainer.train()
    trainer.save_model()
    model, told = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert model.num_labels == CLASSES
    assert model.config.problem_type == "single_label_classification"
    assert model.config.pad_token_id == tiny.tokenizer().eos_token_id


def test_a_new_head_for_tokens_loads_as_the_librarys_class(given: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    model = loaded(given, "tokens", "base", dtype="float32")
    trainer = InOrder(model, **parts("tokens", tmp_path, max_steps=1, learning_rate=0.0))
    trainer.train()
    trainer.save_model()
    found, told = AutoModelForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert found.config.classifier_dropout == 0.1
    assert not bool(found.score.bias.any())
    assert 0 < float(found.score.weight.std()) < 0.1


@pytest.mark.parametrize("kind", ["classes", "tokens"])
def test_durable_steps_go_on_bit_by_bit(given: Path, tmp_path: Path, kind: str) -> None:
    """With a new head; that for tokens has dropout before it."""

    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return Trainer(loaded(given, kind, "base", **keys), **parts(kind, out, **SAVES))

    expect_resumed_bits(tmp_path, open_trainer)


def test_labels_that_the_head_has_not_are_refused(given: Path, tmp_path: Path) -> None:
    what = parts("classes", tmp_path)
    what["train_dataset"][3]["labels"] = CLASSES
    with pytest.raises(InputError, match="labels are not whole numbers from 0 to 2, one for each row"):
        InOrder(loaded(given, "classes", dtype="float32"), **what).train()


def test_a_model_without_a_padding_token_is_refused(given: Path, tmp_path: Path) -> None:
    model = loaded(given, "classes", dtype="float32")
    model.config.pad_token_id = None
    with pytest.raises(InputError, match="the model finds the end of a row by it; set model.config.pad_token_id"):
        InOrder(model, **parts("classes", tmp_path)).train()


def test_tokens_without_a_label_are_refused(given: Path, tmp_path: Path) -> None:
    what = parts("tokens", tmp_path)
    for row in what["train_dataset"]:
        row["labels"] = [-100] * len(row["input_ids"])
    with pytest.raises(InputError, match="at least one of each micro-batch"):
        InOrder(loaded(given, "tokens", dtype="float32"), **what).train()


def test_other_tasks_are_refused(given: Path) -> None:
    for more in ({"num_labels": 3, "task": "summarization"}, {"task": "token-classification"}):
        with pytest.raises(InputError, match="is not taken: with num_labels expects one of text-classification, token"):
            load(given / "base", **more)
