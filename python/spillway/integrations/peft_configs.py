"""PEFT's LoraConfig as keys of the configuration: the keyword `peft_config` of `load` and of TRL's trainers."""

from __future__ import annotations

import dataclasses
from typing import Any

from spillway.config.foreign import OF_PEFT
from spillway.config.keys import KEYS
from spillway.config.resolve import parsed
from spillway.errors import InputError

TAKEN = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "rank_pattern": "lora_rank_pattern",
    "alpha_pattern": "lora_alpha_pattern",
}
SAID = ("auto_mapping", "base_model_name_or_path", "peft_type", "peft_version", "revision", "task_type")
ALL = "all-linear"


def translate_peft(config: Any) -> dict[str, Any]:
    """The keys for a LoraConfig. InputError names the first field that is not at its default and has no key."""
    if config is None:
        return {}
    kind = getattr(config, "peft_type", type(config).__name__)
    if getattr(kind, "value", kind) != "LORA":
        raise InputError(f"peft_config: {type(config).__name__} is not taken: expects peft.LoraConfig")
    default = type(config)()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in TAKEN and field.name not in SAID and value != getattr(default, field.name):
            why = OF_PEFT.get(field.name, "not supported").removeprefix("not supported: ")
            raise InputError(f"peft_config: {field.name}={value!r} is not taken: {why}")
    if isinstance(config.target_modules, str) and config.target_modules != ALL:
        raise InputError(
            f"peft_config: target_modules={config.target_modules!r} is not taken: {OF_PEFT['exclude_modules']}"
        )
    given = {key: getattr(config, name, None) for name, key in TAKEN.items()}
    return {"method": "lora"} | {key: list_sets(value) for key, value in given.items() if value not in (None, {})}


def list_sets(value: Any) -> Any:
    """PEFT keeps names as a set, whose order means nothing."""
    return sorted(value) if isinstance(value, set) else value


def take_adapters(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Takes `peft_config` out of a Trainer's keywords, and puts its adapters into the loaded model in place, as
    get_peft_model does."""
    if (peft_config := named.pop("peft_config", None)) is None:
        return
    origin = (positional[0] if positional else named["model"]).spillway_origin
    if origin.config.method != "full":
        raise InputError(
            f"peft_config: load() was called with method={origin.config.method!r}; leave one of the two out"
        )
    values = {key: parsed(KEYS[key], value, "peft_config: ") for key, value in translate_peft(peft_config).items()}
    origin.add_adapters(origin.config.replaced(**values), {*values})
