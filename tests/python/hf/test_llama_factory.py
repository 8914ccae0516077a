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

import adapter_files
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
LORA = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all"}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "packed": {"neat_packing": True},
    "lora": LORA,
    "continued lora": LORA,
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


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("llama_factory"))
    rows = [{"instruction": row["text"][:20], "input": "", "output": row["text"]} for row in tiny.text_rows(15)]
    tiny.jsonl(place / "rows.jsonl", rows)
    (place / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": str(place / "rows.jsonl")}}))
    return place


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["full", "packed", "lora", "continued lora"])
def test_losses_equal_llama_factorys_own(given: Path, tmp_path: Path, kind: str) -> None:
    more = dict(KINDS[kind])
    if kind == "continued lora":
        shape = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"]}
        more["adapter_name_or_path"] = str(adapter_files.save_adapters(tmp_path / "initial", given / "model", shape))
    (tmp_path / "storage").mkdir()
    place = {"spillway": {"storage": str(tmp_path / "storage"), "placement": "path"}}
    plain = losses(given, tmp_path / "plain", ["llamafactory.cli", "train"], more)
    streamed = losses(given, tmp_path / "streamed", ["spillway.integrations.llama_factory"], {**more, **place})
    assert len([row for row in plain if "loss" in row]) > 2
    for one, other in zip(plain, streamed, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    name = "adapter_model.safetensors" if "lora" in kind else "model.safetensors"
    assert (tmp_path / "streamed" / "out" / name).is_file()
    assert (tmp_path / "streamed" / "out" / "training_loss.png").is_file()


@pytest.mark.parametrize("key, value", [("stage", "dpo"), ("finetuning_type", "freeze"), ("use_galore", True)])
def test_keys_that_a_streamed_model_cannot_serve_are_refused(key: str, value: Any) -> None:
    streamed_factory.check(SimpleNamespace(stage="sft", finetuning_type="full"))
    with pytest.raises(InputError, match="stage" if key == "finetuning_type" else key):
        streamed_factory.check(SimpleNamespace(**{"stage": "sft", "finetuning_type": "full", key: value}))


def test_packs_whose_rows_see_each_other_are_refused() -> None:
    streamed_factory.refuse_open_packs(SimpleNamespace(packing=True, neat_packing=True))
    with pytest.raises(InputError, match="neat_packing"):
        streamed_factory.refuse_open_packs(SimpleNamespace(packing=True, neat_packing=False))


ADAPTERS = {
    "finetuning_type": "lora", "lora_rank": 4, "lora_alpha": 12, "lora_dropout": 0.1, "lora_target": ["all"],
    "use_rslora": False, "use_dora": False, "create_new_adapter": False,
}  # fmt: skip
BASE = {"adapter_name_or_path": None, "quantization_bit": None, "quantization_method": "bnb",
        "quantization_type": "nf4", "double_quantization": True}  # fmt: skip


def list_keys(**more: Any) -> dict[str, Any]:
    both = {**ADAPTERS, **BASE, **more}
    return dict(streamed_factory.list_adapter_keys(SimpleNamespace(**both), SimpleNamespace(**both)))


def test_adapters_have_llama_factorys_settings() -> None:
    keys = list_keys()
    assert keys["method"] == "lora" and (keys["lora_r"], keys["lora_alpha"], keys["lora_dropout"]) == (4, 12, 0.1)
    assert keys["lora_target_modules"] == "all-linear" and "load_in_4bit" not in keys
    assert list_keys(lora_target=["q_proj"])["lora_target_modules"] == ["q_proj"]
    assert list_keys(finetuning_type="full") == {}


def test_base_of_4_or_8_bits_has_llama_factorys_settings() -> None:
    keys = list_keys(quantization_bit=4)
    assert keys["load_in_4bit"] and keys["bnb_4bit_use_double_quant"] and keys["bnb_4bit_quant_type"] == "nf4"
    assert list_keys(quantization_bit=8)["load_in_8bit"]
    for wrong in ({"quantization_bit": 3}, {"quantization_bit": 4, "quantization_method": "hqq"}):
        with pytest.raises(InputError, match="quantization_bit"):
            list_keys(**wrong)


def test_saved_adapters_bring_their_own_settings(given: Path, tmp_path: Path) -> None:
    shape = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}
    place = str(adapter_files.save_adapters(tmp_path / "initial", given / "model", shape))
    keys = list_keys(adapter_name_or_path=[place])
    assert (keys["lora_adapter"], keys["lora_r"], keys["lora_alpha"]) == (place, 2, 6)
    for wrong in ({"adapter_name_or_path": [place, place]}, {"create_new_adapter": True}):
        with pytest.raises(InputError, match="adapter_name_or_path"):
            list_keys(**{"adapter_name_or_path": [place], **wrong})
