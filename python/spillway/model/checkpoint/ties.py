"""Tables that a configuration ties, as a checkpoint has them: one tensor, equal ones, or several that differ.

transformers ties what the files have once or alike, and keeps apart what differs in them, whatever the configuration
says. A model is built the same way here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig

from spillway.errors import InputError
from spillway.model.checkpoint.tensor_names import Names
from spillway.model.meta.building import build
from spillway.model.meta.describe import stored_keys
from spillway.model.source.own import OwnConfig
from spillway.model.source.source import text_config
from spillway.model.source.tensor_files import Stored

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel


@dataclass(frozen=True)
class Pair:
    """Two names of one parameter, under which a checkpoint holds different tensors."""

    name: str
    alias: str

    def __str__(self) -> str:
        return f"{self.name} and {self.alias}"


@dataclass(frozen=True)
class Built:
    """A meta model whose tables are tied as its checkpoint has them."""

    config: PreTrainedConfig | OwnConfig
    meta_model: MetaModel
    notices: tuple[str, ...] = ()


def build_as_stored(
    config: PreTrainedConfig | OwnConfig, source: Path, dtype: torch.dtype, kept: torch.dtype | None = None
) -> Built:
    """Builds the meta model as `building.build` does. `source`: the checkpoint, which may have no weights yet.
    InputError where files hold two tensors that a stream cannot keep apart."""
    meta_model = build(copy.deepcopy(config), dtype, kept)
    pairs = find_differing(meta_model, source)
    if not pairs:
        return Built(config, meta_model)
    untied_config = without_ties(config)
    untied_model = build(copy.deepcopy(untied_config), dtype, kept)
    refuse_others(untied_model, pairs, source)
    words = (
        f"tie_word_embeddings is true, but {pairs[0]} differ in {source}: both are trained and saved, as transformers "
        "keeps them apart; the saved config.json says tie_word_embeddings: false"
    )
    return Built(untied_config, untied_model, (words,))


def without_ties(config: PreTrainedConfig | OwnConfig) -> PreTrainedConfig | OwnConfig:
    """The configuration of the same model, embedding and head apart."""
    result = copy.deepcopy(config)
    parts: list[Any] = [result, text_config(result)]
    for part in parts:
        part.tie_word_embeddings = False
    return result


def refuse_others(meta_model: MetaModel, pairs: list[Pair], source: Path) -> None:
    """InputError where the model without ties has tensors that the files lack, or still shares what differs."""
    shared = Names(meta_model).aliases
    for pair in pairs:
        if pair.alias in shared:
            raise InputError(
                f"{source}: {pair} differ, but are one parameter of {meta_model.config.model_type}; leave one of them "
                "out of the files"
            )
    names, stored = Names(meta_model), Stored(source)
    targets = {name for group in names.loading(stored.names()) for name in names.list_made(group, stored)}
    for parameter in meta_model.streamed:
        if (name := meta_model.names[id(parameter)]) not in targets:
            raise InputError(
                f"{source}: {pairs[0]} differ, so that they cannot be tied, and {name} is missing; set "
                "tie_word_embeddings: false in config.json and save that tensor, too, or leave one of the two out"
            )


def refuse_differing(meta_model: MetaModel, source: Path) -> None:
    """InputError where files that came after the plan hold two tensors in place of one."""
    if pairs := find_differing(meta_model, source):
        raise InputError(
            f"{source}: {pairs[0]} differ, and the plan has one table for both, since it was made before the weights "
            "were here; give the same command again"
        )


def find_differing(meta_model: MetaModel, source: Path) -> list[Pair]:
    """Pairs of names of one parameter whose tensors in the checkpoint differ. Reads both where it has both."""
    names = Names(meta_model)
    if not names.aliases or not (keys := stored_keys(source)):
        return []
    files = {group.target: group.members[0][0] for group in names.loading(keys) if group.transform is None}
    both = [Pair(name, alias) for alias, name in names.aliases.items() if name in files and alias in files]
    if not both:
        return []
    stored = Stored(source)
    return [pair for pair in both if not is_equal(stored, files[pair.name], files[pair.alias])]


def is_equal(stored: Stored, one: str, other: str) -> bool:
    """True if two tensors of a checkpoint have the same values, a piece at a time."""
    if stored.meta(one).shape != stored.meta(other).shape:
        return False
    pairs = zip(stored.pieces(one), stored.pieces(other), strict=True)
    return all(torch.equal(left.float(), right.float()) for left, right in pairs)
