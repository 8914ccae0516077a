"""From a model's directory to a checked configuration; no weight is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from spillway.errors import InputError
from spillway.hf import library

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def load_config(directory: Path) -> PreTrainedConfig:
    """The configuration of a causal language model that the library itself can build. InputError otherwise."""
    library.check_version()
    path = directory / "config.json"
    model_type = read_model_type(path)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown types, missing and mistyped values all end here, in many classes
        raise InputError(f"{path}: transformers cannot read this configuration: {first_line(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InputError(f"{path}: model type {model_type!r} is not a causal language model of transformers")
    if config.get_text_config() is not config:
        raise InputError(f"{path}: model type {model_type!r} wraps several models; only plain text models are taken")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"{path}: the weights are quantised; full fine-tuning needs bf16, fp16 or fp32 weights")
    return config


def save_config(source: Path, config: PreTrainedConfig, weight_dtype: str, directory: Path) -> None:
    """What `from_pretrained` reads beside weights that were trained from the model in `source`."""
    saved = copy.deepcopy(config)
    saved.dtype = DTYPES[weight_dtype]
    saved.architectures = [architecture(config)]
    saved.save_pretrained(directory)
    generation_config(source, config).save_pretrained(directory)


def architecture(config: PreTrainedConfig) -> str:
    """Name of the class that AutoModelForCausalLM makes of a configuration."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    names = [each.__name__ for each in (found if isinstance(found, tuple) else (found,))]
    return next((name for name in config.architectures or [] if name in names), names[0])


def generation_config(directory: Path, config: PreTrainedConfig) -> GenerationConfig:
    if (directory / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    return GenerationConfig.from_model_config(config)


def read_model_type(path: Path) -> str:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; `model` must name a directory with config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not readable as JSON: {first_line(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise InputError(f'{path}: "model_type" is missing; the configuration must name its architecture')
    return str(content["model_type"])


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
