"""Checkpoints that come quantised. The engine's reader decodes their weights (state/coding.h); a run's own files hold
plain weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway import _engine
from spillway.errors import InputError
from spillway.model.source.tensor_files import Stored, copied, write_files

if TYPE_CHECKING:
    from spillway.config import Config

READ = "quantization_config"  # the engine reads weights by it
SETTINGS = (READ, "quantization", "compression_config")  # keys of a configuration by which weights are codes
ONE_FILE = 1 << 62  # bytes
FP32 = torch.float32


def take_settings(path: Path, parts: list[Any]) -> None:
    """Takes what a configuration, by its parts, says of codes out of it, since a run saves none. InputError that names
    the method where the engine's reader does not decode it."""
    for part in parts:
        for key in SETTINGS:
            if settings := getattr(part, key, None):
                require_decoder(path, key, settings if isinstance(settings, dict) else settings.to_dict())
            if key in vars(part):
                delattr(part, key)


def require_decoder(path: Path, key: str, settings: dict[str, Any]) -> None:
    method = settings.get("quant_method")
    plain = {**settings, "quant_method": getattr(method, "value", method)} if key == READ else {}
    try:
        _engine.parse_coding(json.dumps(plain, default=str), str(path))
    except ValueError as error:
        raise InputError(str(error)) from error


def find_coding(source: Path) -> tuple[str, str] | None:
    """The name of a model's codes, and the form that keeps them; None where its weights are plain."""
    try:
        return _engine.find_coding(str(source))
    except ValueError as error:
        raise InputError(str(error)) from error


def choose_dtype(source: Path, kept: torch.dtype) -> torch.dtype:
    """The type to decode weights to while a group of them is converted. Codes that a form keeps need all bits."""
    coding = find_coding(source)
    return kept if coding is not None and not coding[1] else FP32


def describe_coding(source: Path, config: Config) -> Iterator[str]:
    """A notice of what becomes of a model's codes."""
    if (coding := find_coding(source)) is None or config.init != "pretrained":
        return
    name, form = coding
    wanted = config.base_form
    if wanted is None:
        outcome = f"a run keeps and saves them in {config.weight_dtype}"
        hint = "; load_in_4bit keeps their codes" if form and config.method == "lora" else ""
    elif wanted == form:
        outcome, hint = "load_in_4bit keeps the same codes, with scales in fp32", ""
    elif wanted.startswith(form or "none"):
        outcome, hint = "load_in_4bit keeps the same codes; bnb_4bit_use_double_quant rounds their scales anew", ""
    else:
        outcome, hint = "their values are rounded again to codes of the base", ""
    yield f"{source}: the weights come quantised ({name}) and are decoded while they are read; {outcome}{hint}"


def write_decoded(source: Path, directory: Path, dtype: torch.dtype) -> None:
    """A checkpoint's tensors with decoded weights, a piece at a time."""
    stored = Stored(source, dtype)
    write_files(directory, "model", ONE_FILE, [copied(stored, name, name) for name in sorted(stored.names())])
