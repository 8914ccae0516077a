"""A resume by transformers' Trainer plans with the experts that its steps met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import DataCollatorForLanguageModeling, TrainingArguments

import tiny
from needs import package
from spillway.hf import Trainer, load
from spillway.output import identity
from test_expert_loading import write_inputs

package("accelerate", "transformers' Trainer needs accelerate")
package("peft", "LoRA is PEFT's")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("trainer_experts"))


@pytest.mark.parametrize("durability", ["step", "none"])
def test_a_resume_by_the_trainer_plans_with_what_its_steps_met(durability: str, given: Path, tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    tokenizer, rows = tiny.tokenizer(), tiny.text_rows(16)

    def train(steps: int, resume: bool) -> dict[str, Any]:
        model = load(given / "model", method="lora", lora_r=4, lora_target_modules="all-linear", load_in_4bit=True,
                     expert_loading="on_demand", dtype="bfloat16", profile=str(given / "profile.json"),
                     storage=f"{tmp_path / 'path'},capacity=512MiB", placement="weight=50%",
                     durability=durability)  # fmt: skip
        arguments = TrainingArguments(
            str(tmp_path / "out"), per_device_train_batch_size=1, max_steps=steps, save_steps=2, use_cpu=True,
            lr_scheduler_type="constant", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        data = [dict(tokenizer(row["text"], truncation=True, max_length=8)) for row in rows]
        trainer = Trainer(model=model, args=arguments, train_dataset=data,
                          data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        planned = dict(trainer.session.plan["experts_met"])
        trainer.close()
        return planned

    def read_steps() -> int:
        return int(json.loads((tmp_path / "out" / identity.EXPERTS).read_text())["steps"])

    assert train(4, resume=False)["source"] == "even routing"
    assert read_steps() == 4
    assert train(6, resume=True)["source"] == "earlier steps of the run"
    assert read_steps() == 6
