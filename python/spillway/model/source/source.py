"""From a model's directory to a checked configuration; no weight is read."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from spillway.base.documents import read_json
from spillway.base.files import PROCESSORS
from spillway.errors import InputError, first_line
from spillway.model.source import coded, library

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GENERATION = "generation_config.json"
CLASSIFIERS = {  # by the end of a class's name
    "ForSequenceClassification": (AutoModelForSequenceClassification, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING),
    "ForTokenClassification": (AutoModelForTokenClassification, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING),
}
OF_ROWS, OF_TOKENS = CLASSIFIERS
DROPOUT = 0.1  # before a head for tokens, by the library's own rule
PLAIN_PARTS = {"attn_config", "ffn_config"}  # settings of layers that have a class of their own


def load_config(directory: Path, labels: int = 0, kind: str = OF_ROWS) -> PreTrainedConfig:
    """The configuration of a causal language model that the library itself can build. InputError otherwise. `labels`:
    that of the same model with a head of so many labels in place of the vocabulary's; 0: it predicts tokens. `kind`: of
    `CLASSIFIERS`."""
    library.check_version()
    path = directory / "config.json"
    model_type = read_model_type(path)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown types, missing and mistyped values all end here, in many classes
        raise InputError(f"{path}: transformers cannot read this configuration: {first_line(error)}") from error
    check_dropout(path, config)
    check_heads(path, config)
    choose_head(path, config, 0)
    if auto_class(config) is None:
        raise InputError(
            f"{path}: model type {model_type!r} is neither a causal language model of transformers nor a multimodal "
            "one that answers in text"
        )
    coded.take_settings(path, [config, text_config(config)])
    if labels:
        choose_head(path, config, labels, kind)
    return config


def choose_head(path: Path, config: PreTrainedConfig, labels: int, end: str = OF_ROWS) -> None:
    """Makes the configuration that of a classifier, or of a model that predicts tokens. InputError where the library
    has no such classifier."""
    if not labels:
        others = [name for name in list_architectures(config) if not name.endswith(tuple(CLASSIFIERS))]
        config.architectures = others or None
        return
    kind = CLASSIFIERS[end][1].get(type(config), None)
    if kind is None or is_multimodal(config):
        raise InputError(
            f"{path}: transformers has no model with a head of labels for {config.model_type!r} that streams; choose "
            "another model"
        )
    config.architectures = [kind.__name__]
    if config.num_labels != labels:
        config.num_labels = labels
    if end == OF_TOKENS and getattr(config, "classifier_dropout", None) is None:
        dropout = getattr(config, "hidden_dropout", None)
        config.classifier_dropout = DROPOUT if dropout is None else dropout


def list_architectures(config: Any) -> list[str]:
    """The names of the configuration's classes. Anything else in the list is left out, as transformers has it."""
    names = getattr(config, "architectures", None)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def is_classifier(config: Any) -> bool:
    """True if the configuration's model has a head of labels in place of the vocabulary's; see `load_config`."""
    return any(name.endswith(tuple(CLASSIFIERS)) for name in list_architectures(config))


def classifies_tokens(config: Any) -> bool:
    """True for a head that labels every token."""
    return any(name.endswith(OF_TOKENS) for name in list_architectures(config))


def check_heads(path: Path, config: PreTrainedConfig) -> None:
    """InputError for heads of keys that cannot be shared out evenly; the library finds that in a layer's arithmetic."""
    values = text_config(config).to_dict()
    if "per_layer_config" in values:
        return
    heads, shared = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads > 0 and (shared < 1 or heads % shared):
        raise InputError(
            f"{path}: num_key_value_heads is {shared}, and num_attention_heads {heads} is no multiple of it"
        )


def check_dropout(path: Path, config: PreTrainedConfig) -> None:
    """InputError for a probability out of range, which PyTorch reports only when a layer computes."""
    for name, value in config.to_dict().items():
        is_number = isinstance(value, float | int)
        is_missing = value is None and isinstance(getattr(type(config), name, None), float | int)
        if "drop" in name and (is_missing or (is_number and not 0 <= value <= 1)):
            raise InputError(f"{path}: {name}: got {value}, expects a probability from 0 to 1")


def save_config(source: Path, config: PreTrainedConfig, weight_dtype: str, directory: Path) -> None:
    """Saves the files that `from_pretrained` reads beside weights that were trained from the model in `source`."""
    for _, save in config_files(source, config, weight_dtype):
        save(directory)


def config_files(
    source: Path, config: PreTrainedConfig, weight_dtype: str
) -> list[tuple[Path, Callable[[Path], object]]]:
    """Files beside the weights: the file that each is made from, and the function that saves it in a directory."""

    def save_model(directory: Path) -> None:
        saved = copy.deepcopy(config)
        set_dtype(saved, DTYPES[weight_dtype])
        saved.architectures = [architecture(config)]
        saved.save_pretrained(directory)

    def save_generation(directory: Path) -> None:
        generation_config(source, config).save_pretrained(directory)

    generation = (source / GENERATION, save_generation)
    return [
        (source / "config.json", save_model),
        *([] if is_classifier(config) else [generation]),
        *((source / name, partial(copy_processor, source, name)) for name in PROCESSORS),
    ]


def set_dtype(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Sets the type of the model and of all its parts, as `from_pretrained(dtype=...)` does."""
    config.dtype = dtype
    for name in type(config).sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            set_dtype(part, dtype)


def copy_processors(source: Path, directory: Path) -> None:
    """Copies the files that prepare images, videos and audio for a multimodal model, as they are."""
    for name in PROCESSORS:
        copy_processor(source, name, directory)


def copy_processor(source: Path, name: str, directory: Path) -> None:
    if (source / name).is_file():
        shutil.copyfile(source / name, directory / name)


def text_config(config: Any) -> Any:
    """That of the text tower of a multimodal model; of any other model its own."""
    if not isinstance(config, PreTrainedConfig):
        return config
    try:
        return config.get_text_config()
    except ValueError:  # there is one of an encoder, too
        return config.get_text_config(decoder=True)


def is_multimodal(config: Any) -> bool:
    """True if the model holds others beside the one that makes text: of images, of audio, an encoder."""
    if not isinstance(config, PreTrainedConfig):
        return False
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return True
    return text_config(config) is not config or bool(type(config).sub_configs.keys() - PLAIN_PARTS)


def auto_class(config: PreTrainedConfig) -> Any:
    """The library's automatic class that makes the model of a configuration; of a multimodal one all of it. None: the
    library has none that makes text."""
    if is_classifier(config):
        return CLASSIFIERS[OF_TOKENS if classifies_tokens(config) else OF_ROWS][0]
    if not is_multimodal(config):
        return AutoModelForCausalLM
    choices = (AutoModelForImageTextToText, *library.multimodal_classes(), AutoModelForCausalLM)
    return next((each for each in choices if type(config) in each._model_mapping), None)


def architecture(config: PreTrainedConfig) -> str:
    """Name of the class that the library makes of a configuration."""
    classes = auto_class(config)._model_mapping[type(config)]
    names = [each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,))]
    return next((name for name in config.architectures or [] if name in names), names[0])


def generation_config(directory: Path, config: PreTrainedConfig) -> GenerationConfig:
    """The generation configuration. InputError if transformers refuses its file."""
    path = directory / GENERATION
    if not path.exists():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the library's checks raise any error
        words = " ".join(str(error).split())
        raise InputError(f"{path}: transformers refuses it: {words} Mend that key, or remove the file") from error


def read_model_type(path: Path) -> str:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; `model` must name a directory with config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON: {first_line(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise InputError(f'{path}: "model_type" is missing; the configuration must name its architecture')
    return str(content["model_type"])
