"""A trial of a save's small files before the first step, so that a failure ends the run before it trains."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.errors import InputError
from spillway.model.source import hub

Save = Callable[[Path], object]  # a function that saves a file into a directory


def try_save(config: Config, model_config: Any, tokenizer: Any = None) -> None:
    """Saves the files beside the weights into a temporary directory. `model_config`: None for a model that no library
    describes. InputError with the file that cannot be saved, and the reason."""
    saves: list[tuple[str, Save]] = []
    if model_config is not None and config.method != "lora":
        from spillway.model.source.source import config_files

        source = hub.model_directory(config)
        saves += [(str(file), save) for file, save in config_files(source, model_config, config.weight_dtype)]
    if tokenizer is not None:
        saves.append(choose_tokenizer(config, tokenizer))
    try_files(saves)


def choose_tokenizer(config: Config, tokenizer: Any) -> tuple[str, Save]:
    name = config.chat_template_path or config.tokenizer
    return f"tokenizer: {name}", lambda directory: tokenizer.save_pretrained(str(directory))


def try_files(saves: Iterable[tuple[str, Save]]) -> None:
    """Pairs of the name that a message has for a file, and the function that saves it."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="spillway-save-")
    except OSError:  # no room for a trial; the plan counts the room that a save needs
        return
    with scratch as name:
        for what, save in saves:
            try_file(what, save, Path(name))


def try_file(what: str, save: Save, place: Path) -> None:
    try:
        save(place)
    except InputError:
        raise
    except OSError as error:
        if str(error.filename or "").startswith(str(place)):  # the temporary directory is full
            return
        raise InputError(f"{what}: a save would fail: {describe_error(error)}") from error
    except Exception as error:  # the library's checks raise any error
        raise InputError(f"{what}: a save would fail, so nothing is trained: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """A library's error as one line."""
    return " ".join(str(error).split()) or type(error).__name__
