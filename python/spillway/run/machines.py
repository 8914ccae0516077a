"""Plans for a machine that a profile describes and that is not this one: nothing is measured or profiled, and read is
nothing but the model's configuration."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.errors import InputError

Tell = Callable[[str], None]


def described(config: Config) -> str | None:
    """The text of the profile when it names a machine of its own; None: this machine."""
    if config.profile is None:
        return None
    try:
        text = Path(config.profile).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"profile: {config.profile}: {error}") from error
    return text if isinstance(found, dict) and "machine" in found else None


def refuse_elsewhere(config: Config) -> None:
    """What trains, trains here."""
    if config.profile is not None and described(config) is not None:
        raise InputError(
            f"profile: {config.profile} describes another machine, which `spillway plan` answers for; "
            "training runs on this one"
        )
    if config.gpu_memory is not None and config.device == "cpu":
        raise InputError("gpu_memory: device cpu has no memory of its own; this key needs --device cuda or simulated")


def plan_elsewhere(config: Config, profile: str, tell: Tell) -> dict[str, Any]:
    """The plan for the profile's machine. Raises InputError, or DoesNotFit with what would fit."""
    from spillway import _engine
    from spillway.base.calls import translated
    from spillway.model import hub

    for notice in config.notices:
        tell(notice)
    if config.paths:
        tell("storage: of the machine that the profile describes the profile's paths are planned with")
    if config.compute_dtype not in ("auto", config.weight_dtype):
        raise InputError(
            f"compute_dtype: {config.compute_dtype} over weights of {config.weight_dtype} is for CPUs, and the "
            f"profile's machine has GPUs; leave it out, or give compute_dtype {config.weight_dtype}"
        )
    if config.compute_dtype == "auto":
        config = config.computing(config.weight_dtype, "as weights are kept, on a GPU")
    config = hub.settled(config.replaced(init="random"), tell, only=("model",))  # no weights
    description, attention = describe_model(config)
    settings = {
        "work": {
            "sequence": config.max_length,
            "batch": config.per_device_train_batch_size * config.rows_each,
            "micro_batches": config.gradient_accumulation_steps,
            **attention,
        },
        "dram_budget": config.dram_budget or 0,
        "gpu_memory": config.gpu_memory or 0,
        "durability": config.durability or "",
        "nodes": [{"id": share.node, "capacity": share.capacity} for share in config.node],
    }
    with translated():
        text = _engine.plan_machine(json.dumps(description), json.dumps(settings), profile, str(config.profile))
    return {**json.loads(text), "state_format": config.state_format, "optimizer": config.optim}


def describe_model(config: Config) -> tuple[dict[str, Any], dict[str, int]]:
    """The engine's description, from config.json alone; and sizes that its tensors do not say."""
    from spillway.model import freeze, hub
    from spillway.model.building import build
    from spillway.model.describe import WorkSize, describe
    from spillway.model.lora import adapters_of
    from spillway.model.source import DTYPES, load_config, text_config
    from spillway.model.subspaces import choose
    from spillway.run.settings import subspace_checks, update_rule

    model = load_config(hub.model_directory(config))
    meta_model = build(copy.deepcopy(model), DTYPES[config.compute_dtype], DTYPES[config.weight_dtype])
    if (adapters := adapters_of(config)) is not None:
        adapters.adapt(meta_model)
    else:
        freeze.choose(meta_model, config, hub.model_directory(config))
    choose(meta_model, config)
    rows = config.per_device_train_batch_size * config.rows_each
    tokens = config.max_length * rows * config.gradient_accumulation_steps
    size = WorkSize(config.gradient_accumulation_steps, tokens)
    rule = update_rule(config) | subspace_checks(config)
    return describe(meta_model, size, config.compute_dtype) | rule | {"seed": config.seed}, widths(text_config(model))


def widths(model: Any) -> dict[str, int]:
    """Of attention and of the feed-forward."""
    hidden = int(model.hidden_size)
    heads = int(getattr(model, "num_attention_heads", None) or 1)
    size = int(getattr(model, "head_dim", None) or hidden // heads)
    keys = int(getattr(model, "num_key_value_heads", None) or heads)
    inner = int(getattr(model, "intermediate_size", None) or 4 * hidden)
    return {"query": heads * size, "key": keys * size, "feed_forward": inner}
