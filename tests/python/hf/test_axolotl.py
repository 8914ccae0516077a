"""Axolotl's own command with and without Spillway's plug-in: equal losses. Axolotl pins the versions of its packages.
Install it by hand, into an environment of its own that has Spillway and pytest, too."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import adapter_files
import real_runs
import tiny
import warm
from needs import package

package("axolotl", "Axolotl is not installed: its plug-in stays untried")
from axolotl.utils.dict import DictDefault  # noqa: E402

from spillway.errors import InputError  # noqa: E402

streaming: Any = importlib.import_module("spillway.integrations.axolotl")  # needs Axolotl
ALONE = {"AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
LIMIT = 1200  # seconds that a run may take at most
# the keys of Axolotl's examples/llama-3/fft-8b.yaml and lora-1b.yml, and values for CPUs
FULL: dict[str, Any] = {
    "load_in_8bit": False,
    "load_in_4bit": False,
    "strict": False,
    "val_set_size": 0.1,
    "sequence_len": 256,
    "gradient_accumulation_steps": 2,
    "micro_batch_size": 2,
    "num_epochs": 1,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "learning_rate": 1e-3,
    "train_on_inputs": False,
    "group_by_length": False,
    "bf16": False,
    "fp16": False,
    "tf32": False,
    "gradient_checkpointing": True,
    "logging_steps": 1,
    "attn_implementation": "sdpa",
    "warmup_steps": 1,
    "evals_per_epoch": 1,
    "saves_per_epoch": 1,
    "weight_decay": 0.1,
    "adam_epsilon": 1e-6,
    "use_cpu": True,
}
PACKED = {**FULL, "sample_packing": True, "eval_sample_packing": True}
LORA = {
    "adapter": "lora",
    "lora_r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "lora_target_modules": ["gate_proj", "down_proj", "up_proj", "q_proj", "v_proj", "k_proj", "o_proj"],
    "lora_mlp_kernel": False,  # Axolotl's own kernels need a GPU
    "lora_qkv_kernel": False,
    "lora_o_kernel": False,
}
LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("axolotl"))
    rows = [{"instruction": row["text"][:20], "input": "", "output": row["text"]} for row in tiny.text_rows(15)]
    tiny.jsonl(place / "alpaca.jsonl", rows)
    return place


def losses(given: Path, place: Path, keys: dict[str, Any]) -> list[dict[str, float]]:
    """What `axolotl train` logs."""
    place.mkdir()
    rows = {"datasets": [{"path": str(given / "alpaca.jsonl"), "type": "alpaca"}]}
    places = {"base_model": str(given / "model"), "output_dir": str(place / "out")}
    prepared = {"dataset_prepared_path": str(given / "prepared" / str(bool(keys.get("sample_packing"))))}
    (place / "run.yaml").write_text(yaml.safe_dump({**keys, **rows, **places, **prepared}))
    process = warm.python("-m", "axolotl.cli.train", place / "run.yaml", env=ALONE, cold=True)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]
    log = json.loads((real_runs.last_checkpoint(place / "out") / "trainer_state.json").read_text())["log_history"]
    return [{name: row[name] for name in LOGGED if name in row} for row in log]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["full", "packed", "lora"])
def test_losses_with_the_plugin_equal_axolotls_own(given: Path, tmp_path: Path, kind: str) -> None:
    keys = PACKED if kind == "packed" else FULL
    if kind == "lora":
        shape = {"r": LORA["lora_r"], "lora_alpha": LORA["lora_alpha"], "target_modules": LORA["lora_target_modules"]}
        initial = adapter_files.save_adapters(tmp_path / "adapters", given / "model", shape)
        keys = {**FULL, **LORA, "lora_model_dir": str(initial)}
    plugin = {
        "plugins": ["spillway.integrations.axolotl.SpillwayPlugin"],
        "spillway": {"storage": str(tmp_path / "storage"), "placement": "path"},
    }
    (tmp_path / "storage").mkdir()
    plain = losses(given, tmp_path / "plain", keys)
    streamed = losses(given, tmp_path / "streamed", {**keys, **plugin})
    assert len([row for row in plain if "loss" in row]) > 2
    for one, other in zip(plain, streamed, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    name = "adapter_model.safetensors" if kind == "lora" else "model.safetensors"
    assert (tmp_path / "streamed" / "out" / name).is_file()


@pytest.mark.parametrize(
    "key, value",
    [
        ("rl", "dpo"),
        ("lr_groups", [{"name": "one"}]),
        ("unfrozen_parameters", ["lm_head"]),
        ("tensor_parallel_size", 2),
        ("liger_rope", True),
        ("adapter", "llama-adapter"),
        ("peft_init_lora_weights", "gaussian"),
    ],
)
def test_keys_that_a_streamed_model_cannot_serve_are_refused(key: str, value: Any) -> None:
    streaming.check(DictDefault({"base_model": "model", "tensor_parallel_size": 1}))
    with pytest.raises(InputError, match=key):
        streaming.check(DictDefault({key: value}))


def test_keys_of_spillway_precede_those_that_follow_from_axolotls() -> None:
    keys = streaming.list_keys(
        DictDefault({**LORA, "sample_packing": True, "sequence_len": 100, "spillway": {"lora_r": 2}})
    )
    assert keys["method"] == "lora" and keys["packing"] and keys["lora_r"] == 2
    assert keys["max_length"] == 128  # Axolotl pads to a multiple of 64
    keys = streaming.list_keys(DictDefault({"lora_target_linear": True, "adapter": "lora"}))
    assert keys["lora_target_modules"] == "all-linear"
    patterns = {"lora_rank_pattern": {"q_proj": 2}, "lora_alpha_pattern": {"q_proj": 4}}
    keys = streaming.list_keys(DictDefault({"adapter": "lora", "peft_use_dora": True, **patterns}))
    assert keys["use_dora"] and "use_rslora" not in keys and patterns.items() <= keys.items()
