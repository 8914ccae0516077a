"""A Trainer whose model does not count label tokens averages the means of a step's micro-batches, streamed as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM, TrainingArguments

import real_runs
import tiny
from needs import package
from spillway.hf import Trainer, load

package("accelerate", "without it transformers has no Trainer")


class Uncounted(transformers.Trainer):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.model_accepts_loss_kwargs = False


class StreamedUncounted(Trainer, Uncounted):
    """The same, streamed."""


def log_of(kind: type[transformers.Trainer], model: Any, place: Path) -> list[dict[str, float]]:
    tokenizer = tiny.tokenizer()
    rows = [tokenizer(row["text"]) for row in tiny.text_rows(12)]
    trainer = kind(
        model=model,
        args=TrainingArguments(
            output_dir=str(place),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=4,
            num_train_epochs=1,
            learning_rate=1e-3,
            adam_epsilon=1e-6,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        eval_dataset=rows[:3],
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    names = ("loss", "grad_norm", "eval_loss")
    return [{name: row[name] for name in names if name in row} for row in trainer.state.log_history]


def read_model(given: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")


def test_micro_batches_of_unequal_length_weigh_the_same(tmp_path: Path) -> None:
    given = real_runs.inputs(tmp_path / "given")
    plain = log_of(Uncounted, read_model(given), tmp_path / "plain")
    (tmp_path / "storage").mkdir()
    model = load(given / "model", storage=tmp_path / "storage", placement="path", dtype="float32")
    streamed = log_of(StreamedUncounted, model, tmp_path / "streamed")
    assert len(plain) == 5
    for one, other in zip(plain, streamed, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    counted = log_of(transformers.Trainer, read_model(given), tmp_path / "counted")
    assert counted[0]["loss"] != pytest.approx(plain[0]["loss"], rel=1e-5)  # the lengths of rows matter here
