"""LLaMA-Factory's own command and Spillway's, by one YAML file: equal losses. LLaMA-Factory pins the versions of its
packages. Install it by hand, into an environment of its own that has Spillway and pytest, too."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import real_runs
import tiny
import warm
from needs import package

package("llamafactory", "LLaMA-Factory is not installed: its SFT stays untried")
from spillway.errors import InputError  # noqa: E402

streamed_factory: Any = importlib.import_module("spillway.integrations.llama_factory")  # needs LLaMA-Factory
LIMIT = 1200  # seconds that a run may take at most
# the keys of LLaMA-Factory's examples/train_full/llama3_full_sft.yaml, and values for CPUs
FULL: dict[str, Any] = {
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "rows",
    "template": "default",
    "cutoff_len": 128,
    "max_samples": 1000,
    "overwrite_cache": True,
    "logging_steps": 1,
    "save_strategy": "epoch",
    "plot_loss": True,
    "overwrite_output_dir": True,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-3,
    "num_train_epochs": 1.0,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 1,
    "bf16": False,
    "val_size": 0.2,
    "eval_strategy": "epoch",
    "adam_epsilon": 1e-6,
    "report_to": "none",
    "use_cpu": True,
}
LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss")


def losses(given: Path, place: Path, command: list[str], more: dict[str, Any]) -> list[dict[str, float]]:
    """The rows that the command logs."""
    place.mkdir()
    places = {"model_name_or_path": str(given / "model"), "dataset_dir": str(given), "output_dir": str(place / "out")}
    (place / "run.yaml").write_text(yaml.safe_dump({**FULL, **places, **more}))
    process = warm.python("-m", *command, place / "run.yaml", env={"HF_HUB_OFFLINE": "1"}, cold=True)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]
    log = json.loads((real_runs.last_checkpoint(place / "out") / "trainer_state.json").read_text())["log_history"]
    return [{name: row[name] for name in LOGGED if name in row} for row in log]


@pytest.mark.nightly
def test_losses_equal_llama_factorys_own(tmp_path: Path) -> None:
    given = real_runs.inputs(tmp_path / "given")
    rows = [{"instruction": row["text"][:20], "input": "", "output": row["text"]} for row in tiny.text_rows(15)]
    tiny.jsonl(given / "rows.jsonl", rows)
    (given / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": str(given / "rows.jsonl")}}))
    (tmp_path / "storage").mkdir()
    place = {"spillway": {"storage": str(tmp_path / "storage"), "placement": "path"}}
    plain = losses(given, tmp_path / "plain", ["llamafactory.cli", "train"], {})
    streamed = losses(given, tmp_path / "streamed", ["spillway.integrations.llama_factory"], place)
    assert len([row for row in plain if "loss" in row]) > 2
    for one, other in zip(plain, streamed, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    assert (tmp_path / "streamed" / "out" / "model.safetensors").is_file()
    assert (tmp_path / "streamed" / "out" / "training_loss.png").is_file()


@pytest.mark.parametrize(
    "key, value", [("stage", "dpo"), ("finetuning_type", "lora"), ("use_galore", True), ("neat_packing", True)]
)
def test_keys_that_a_streamed_model_cannot_serve_are_refused(key: str, value: Any) -> None:
    streamed_factory.check(SimpleNamespace(stage="sft", finetuning_type="full"))
    with pytest.raises(InputError, match="stage" if key == "finetuning_type" else key):
        streamed_factory.check(SimpleNamespace(**{"stage": "sft", "finetuning_type": "full", key: value}))
