"""Images among the rows of a run: the code that prepares them, and the micro-batch that a plan counts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spillway.base.documents import read_json
from spillway.data.dataset import Dataset
from spillway.data.images import ImageReader
from spillway.data.media import media_of
from spillway.errors import InputError, first_line
from spillway.model.batches.batch import count_bytes
from spillway.model.source import hub

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.model.batches.batch import Batch

TEMPLATE = "chat_template.json"


def open_reader(config: Config, model_config: Any, tokenizer: Any) -> ImageReader:
    """Reads images by the code of the model's directory, with the run's tokenizer."""
    from spillway.model.source.source import auto_class

    take_template(hub.tokenizer_directory(config), tokenizer)
    listed = auto_class(model_config)._model_mapping[type(model_config)]
    made = listed[0] if isinstance(listed, tuple) else listed
    return ImageReader(hub.model_directory(config), tokenizer, frozenset(inspect.signature(made.forward).parameters))


def count_image_tokens(config: Config, model_config: Any, batch: Batch) -> int:
    """Tokens of a micro-batch that stand for images."""
    return sum(int(batch.input_ids.eq(token).sum()) for token in media_of(model_config, config).image_tokens)


def take_template(directory: Path, tokenizer: Any) -> None:
    """Gives a tokenizer without a chat template that of the file in which older multimodal checkpoints have it."""
    file = directory / TEMPLATE
    if tokenizer.chat_template or not file.is_file():
        return
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable as JSON: {first_line(error)}") from error
    if isinstance(content, dict) and isinstance(content.get("chat_template"), str):
        tokenizer.chat_template = content["chat_template"]


def find_largest(config: Config, train: Any, held_out: Any) -> Batch | None:
    """A micro-batch of the rows with the most pixels. None: no row has images."""
    sizes = (config.per_device_train_batch_size, config.per_device_eval_batch_size)
    batches = []
    for data, rows in zip((train, held_out), sizes, strict=True):
        if not isinstance(data, Dataset) or data.pictures is None:
            continue
        pictures = data.pictures.by_row
        largest = sorted(pictures, key=lambda row: pictures[row].bytes, reverse=True)[:rows]  # noqa: B023
        batches.append(data.batch(np.array(largest, dtype=np.int64)))
    return max(batches, key=lambda batch: count_bytes(batch.images), default=None)
