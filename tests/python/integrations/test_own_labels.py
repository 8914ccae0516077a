"""spillway.Session over a classifier of rows or of words: equal to a plain loop in memory, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import spillway
import tiny
from spillway.errors import InputError

NAMES = ["red", "green", "blue"]
KINDS = {"rows": "text-classification", "words": "token-classification"}
STEPS, MICRO_BATCHES, ROWS = 4, 2, 3


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("labels"))


def load(place: Path, kind: str) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    made = AutoModelForTokenClassification if kind == "words" else AutoModelForSequenceClassification
    config = AutoConfig.from_pretrained(place, num_labels=len(NAMES))
    config.classifier_dropout, config.pad_token_id = 0.0, tiny.tokenizer().pad_token_id
    torch.manual_seed(7)
    return made.from_pretrained(place, config=config, dtype="float32")


def batches(kind: str, step: int) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of a step, as transformers' collators pad them."""
    made = []
    for number in range(MICRO_BATCHES):
        first = (step * MICRO_BATCHES + number) * ROWS
        rows = tiny.text_rows(first + ROWS)[first:]
        batch = tiny.tokenizer()([row["text"] for row in rows], padding=True, return_tensors="pt")
        if kind == "rows":
            labels = torch.arange(first, first + ROWS) % len(NAMES)
        else:
            labels = (batch["input_ids"] % len(NAMES)).masked_fill(batch["attention_mask"] == 0, -100)
            labels[:, ::3] = -100
        made.append({"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels})
    return made


def mean_loss(model: Any, step: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Over all labels of the micro-batches."""
    scores, labels = [], []
    for batch in step:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        kept = batch["labels"] != -100
        scores.append(logits[kept] if logits.dim() == 3 else logits)
        labels.append(batch["labels"][kept])
    return torch.nn.functional.cross_entropy(torch.cat(scores), torch.cat(labels))


def train_in_memory(model: Any, kind: str) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        loss = mean_loss(model, batches(kind, step))
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def open_session(given: Path, kind: str, place: Path, **more: Any) -> Any:
    load(given / "model", kind).save_pretrained(place / "base")
    tiny.tokenizer().save_pretrained(str(place / "base"))
    return spillway.Session(
        model=str(place / "base"), objective=KINDS[kind], num_labels=len(NAMES), compute_dtype="fp32", max_length=128,
        per_device_train_batch_size=ROWS, gradient_accumulation_steps=MICRO_BATCHES, learning_rate=1e-3,
        lr_scheduler_type="constant", profile=str(given / "profile.json"), device="cpu", **more,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_over_a_classifier_equals_plain_pytorch(given: Path, tmp_path: Path, kind: str) -> None:
    plain = load(given / "model", kind)
    expected = train_in_memory(plain, kind)
    with open_session(given, kind, tmp_path) as session:
        rows = [session.step(batches(kind, step)) for step in range(STEPS)]
        held = batches(kind, STEPS)
        figures = session.evaluate(held)
        session.save(tmp_path / "saved")
        with pytest.raises(InputError, match="model: scores are computed in steps and evaluations alone"):
            _ = session.model
    assert [row["loss"] for row in rows] == pytest.approx(expected, rel=1e-5)
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    plain.eval()
    with torch.no_grad():
        assert figures["eval_loss"] == pytest.approx(float(mean_loss(plain, held)), rel=1e-5)
    assert figures["labels"] == sum(int((batch["labels"] != -100).sum()) for batch in held)
    assert "eval_accuracy" in figures and "eval_perplexity" not in figures
    saved = type(plain).from_pretrained(tmp_path / "saved", dtype="float32").state_dict()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-5, atol=1e-6)


def test_labels_of_another_form_are_refused(given: Path, tmp_path: Path) -> None:
    with open_session(given, "rows", tmp_path) as session:
        (batch, *_) = batches("rows", 0)
        with pytest.raises(InputError, match="batch: labels are not whole numbers from 0 to 2, one for each row"):
            session.step([{**batch, "labels": torch.tensor([0, 1, 7])}])
        with pytest.raises(InputError, match="batch: labels are missing"):
            session.step([{"input_ids": batch["input_ids"]}])
