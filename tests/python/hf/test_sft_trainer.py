"""TRL's SFTTrainer over a streamed model: what it logs, and what routers add, equal to itself in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from both_ways import replace_model
from needs import package
from spillway.hf import SFTTrainer
from test_trainer import loaded, same_weights
from test_trainer_durable import OF_A_PROCESS, Fails

trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
datasets = package("datasets", "TRL needs datasets")
TOLD = ("loss", "grad_norm", "num_tokens", "mean_token_accuracy", "entropy", "aux_loss")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("sft_trainer"))


def parts(given: Path, out: Path, **more: Any) -> dict[str, Any]:
    from transformers import AutoTokenizer

    asked = {
        "output_dir": str(out), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 2, "num_train_epochs": 1, "learning_rate": 1e-3, "logging_steps": 1,
        "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 2, "report_to": "none", "max_length": 64,
        "use_cpu": True, "bf16": False, "disable_tqdm": True, "adam_epsilon": 1e-4, **more,
    }  # fmt: skip
    return {
        "args": trl.SFTConfig(**asked),
        "train_dataset": datasets.Dataset.from_list(tiny.text_rows(11)),
        "eval_dataset": datasets.Dataset.from_list(tiny.text_rows(3)),
        "processing_class": AutoTokenizer.from_pretrained(given / "model"),
    }


def in_memory(given: Path, out: Path, **more: Any) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    return trl.SFTTrainer(model=model, **parts(given, out, **more))


def same_rows(ours: Any, plain: Any) -> None:
    """Rows of steps and of evaluations."""
    names = [prefix + name for prefix in ("", "eval_") for name in TOLD]
    found, expected = (
        [{name: row[name] for name in names if name in row} for row in each.state.log_history] for each in (ours, plain)
    )
    assert found == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in expected]
    logged = {name for row in expected for name in row}
    assert {"num_tokens", "entropy", "eval_mean_token_accuracy", "eval_entropy"} <= logged


def test_logs_what_trl_logs(given: Path, tmp_path: Path) -> None:
    plain = in_memory(given, tmp_path / "plain", logging_steps=2)
    ours = SFTTrainer(model=loaded(given), **parts(given, tmp_path / "ours", logging_steps=2))
    for trainer in (plain, ours):
        trainer.train()
    same_rows(ours, plain)


def test_routers_add_what_trl_adds(given: Path, tmp_path: Path) -> None:
    """Of a step with two micro-batches; TRL asks for it, whatever config.json says."""
    place = real_runs.inputs(tmp_path / "given")
    replace_model(place / "model", "mixtral")
    path = place / "model/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"router_aux_loss_coef": 0.5}))
    plain, ours = in_memory(place, tmp_path / "plain"), SFTTrainer(loaded(place), **parts(place, tmp_path / "ours"))
    for trainer in (plain, ours):
        trainer.train()
        trainer.save_model()
    same_rows(ours, plain)
    assert {"aux_loss", "eval_aux_loss"} <= {name for row in ours.state.log_history for name in row}
    same_weights(tmp_path / "ours", tmp_path / "plain")


MORE = {"logging_steps": 2, "eval_strategy": "no", "num_train_epochs": 2, "learning_rate": 1e-2}
DURABLE = {"durability": "step", "dtype": "bfloat16", "placement": "weight=50%,state=path,grad=path,activation=dram"}


def test_durable_steps_go_on_with_what_was_told(given: Path, tmp_path: Path) -> None:
    """A failure between two rows of the log."""

    def trained(name: str, resume: Any, fails: Any = None) -> Any:
        model = loaded(given, tmp_path / f"{name}-storage", **DURABLE)
        trainer = SFTTrainer(model, **parts(given, tmp_path / name, **MORE))
        if fails is None:
            trainer.train(resume_from_checkpoint=resume)
        else:
            trainer.add_callback(fails)
            with pytest.raises(RuntimeError):
                trainer.train(resume_from_checkpoint=resume)
        trainer.close()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        return [{key: value for key, value in row.items() if key not in OF_A_PROCESS} for row in rows]

    whole = trained("whole", "auto")
    trained("parts", "auto", Fails("on_step_end", 3))
    assert trained("parts", True) == whole and [row["step"] for row in whole] == [2, 4, 6]
    assert whole[0]["num_tokens"] < whole[1]["num_tokens"] and whole[1]["mean_token_accuracy"] > 0
