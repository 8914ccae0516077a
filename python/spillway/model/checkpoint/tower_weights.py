"""Weights of the parts that make features of images, from a checkpoint in the library's form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spillway.errors import InputError
from spillway.model.checkpoint.files import converted
from spillway.model.checkpoint.tensor_names import Names
from spillway.model.meta.image_tower import ImageTower, Tower
from spillway.model.meta.streamed_tower import StreamedTower
from spillway.model.source import coded
from spillway.model.source.tensor_files import Stored

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel


def open_tower(meta_model: MetaModel, source: Path, device: torch.device | None = None) -> Tower | None:
    """The tower of a run with images; None: it has none."""
    if meta_model.tower:
        return StreamedTower(meta_model, device or torch.device("cpu"))
    return load_tower(meta_model, source, device) if meta_model.takes_images else None


def load_tower(meta_model: MetaModel, source: Path, device: torch.device | None = None) -> ImageTower:
    """The tower with the weights of the checkpoint `source`. InputError where one is missing."""
    tower = ImageTower(meta_model, device)
    names, stored = Names(meta_model), Stored(source, coded.choose_dtype(source, meta_model.kept))
    for group in names.loading(stored.names()):
        if not tower.names.intersection(names.list_made(group, stored)):
            continue
        for name, tensor in converted(names, group, stored, source).items():
            if name in tower.names:
                tower.take(name, tensor)
    if missing := tower.list_missing():
        raise InputError(f"{source}: tensor {missing[0]} is missing, which images pass through")
    return tower
