"""Adapters in a directory of PEFT, for runs that begin with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def save_adapters(place: Path, model: Path, shape: dict[str, Any]) -> Path:
    """Adapters whose product is not zero, so that two programs can begin with the same ones. `shape`: keywords of
    LoraConfig."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **shape)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # two calls save the same adapters
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(str(place))
    return place
