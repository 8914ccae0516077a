"""The names that scripts and people's habits hold on to: they stay, and mean what they meant."""

from __future__ import annotations

from typing import Any

import pytest

from spillway.cli import VERBS
from spillway.config import normalised, resolve
from spillway.config.aliases import ALIASES
from spillway.config.foreign import FOREIGN
from spillway.config.keys import KEYS
from spillway.errors import InputError

DEFAULTS: dict[str, Any] = {
    "model": None, "tokenizer": None, "chat_template_path": None, "init": "pretrained",
    "model_revision": None, "tokenizer_revision": None, "dataset_revision": None, "eval_dataset_revision": None,
    "dataset": None, "dataset_config": None, "dataset_split": "train", "eval_dataset": None,
    "dataset_text_field": None, "prompt_field": None, "completion_field": None, "messages_field": None,
    "completion_only_loss": True, "assistant_only_loss": True,
    "output_dir": None, "overwrite": False,
    "max_length": 1024, "packing": False, "eval_packing": False,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "virtual_ranks": 1,
    "per_device_eval_batch_size": 8,
    "max_steps": -1, "num_train_epochs": 3,
    "learning_rate": 2e-5, "lr_scheduler_type": "linear", "lr_scheduler_kwargs": None, "warmup_steps": 0,
    "weight_decay": 0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0,
    "seed": 42, "data_seed": 42,
    "logging_steps": 1, "eval_steps": None, "save_steps": None, "save_total_limit": None, "save_only_model": False,
    "save_whole_steps": None,
    "report_to": [], "eval_strategy": "no", "save_strategy": "no",
    "push_to_hub": False, "hub_model_id": None, "hub_private_repo": None, "hub_token": None, "hub_strategy": "end",
    "resume_from_checkpoint": None, "objective": "sft",
    "weight_dtype": "bf16", "compute_dtype": "auto", "state_format": "exact", "optim": "adamw",
    "dram_budget": None, "placement": "auto", "window": None, "activation_recompute": "auto",
    "token_tile": "auto", "fused_kernels": "auto",
    "storage": [], "storage_device": [], "durability": None,
    "method": "full", "profile": None,
}  # fmt: skip
WITHOUT_ONE_DEFAULT = (
    "device", "gpu_memory", "trainable", "frozen", "node", "memory_file", "erase",
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_rank_pattern", "lora_alpha_pattern",
    "use_rslora", "use_dora",
    "lsp_rank", "lsp_nonzeros", "lsp_modules", "lsp_check_every", "lsp_threshold", "lsp_residual",
    "lsp_rotate_every", "lsp_projectors", "lsp_master", "beta", "loss_type", "label_smoothing", "disable_dropout",
)  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_key_keeps_its_name_and_its_default(name: str) -> None:
    assert getattr(resolve({}, {}), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", WITHOUT_ONE_DEFAULT)
def test_a_key_keeps_its_name(name: str) -> None:
    assert name in KEYS


def test_names_of_old() -> None:
    assert {"warmup_ratio", "bf16", "gradient_checkpointing", "adapter", "deterministic"} <= {*ALIASES, *KEYS}


def test_keys_of_transformers_that_are_not_taken_say_what_to_do() -> None:
    assert not FOREIGN.keys() & {*KEYS, *ALIASES}
    assert list(FOREIGN) == sorted(FOREIGN)
    with pytest.raises(InputError, match="hub_revision.*`push_to_hub` uploads once, at the end of the run"):
        normalised({"hub_revision": "next"}, "the command line")
    with pytest.raises(InputError, match="did you mean 'learning_rate'"):
        normalised({"learnig_rate": 1}, "the command line")
    with pytest.raises(InputError, match="lists all keys"):
        normalised({"zzz_qqq": 1}, "the command line")


def test_verbs() -> None:
    known = {"train", "plan", "check", "verify", "export", "probe", "doctor", "report", "resume", "merge"}
    assert known <= VERBS.keys()


@pytest.mark.parametrize("size", ["4GiB", "4096MiB", 4 << 30, str(4 << 30)])
def test_sizes(size: Any) -> None:
    assert resolve({}, {"dram_budget": size}).dram_budget == 4 << 30
    assert resolve({}, {"dram_budget": "4GB"}).dram_budget == 4 * 10**9


@pytest.mark.parametrize(
    ("given", "key", "steps", "interval"),
    [({"eval_steps": 0.1}, "eval_steps", 95, 10), ({"save_steps": 0.5}, "save_steps", 7, 4),
     ({"logging_steps": 5}, "logging_steps", 7, 5)],
)  # fmt: skip
def test_steps_below_one_are_shares(given: dict[str, Any], key: str, steps: int, interval: int) -> None:
    from spillway.data.order import Order
    from spillway.run.events import Events

    assert Events(resolve({}, given), Order(8, 1, 1, 0), steps).interval(key) == interval
