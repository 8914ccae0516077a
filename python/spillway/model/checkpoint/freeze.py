"""Which parameters are trainable: by patterns over names, or as somebody has set `requires_grad` on the meta model.

What is frozen streams as a weight alone. A parameter in several places has several names, and is frozen or
not in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from spillway.errors import InputError
from spillway.model.meta.meta_model import pattern
from spillway.model.meta.streamed_tower import PROJECTOR

if TYPE_CHECKING:
    from torch import nn

    from spillway.config import Config
    from spillway.model.meta.meta_model import MetaModel

SHOWN = 4  # names in a message


def choose(meta_model: MetaModel, config: Config, source: Path) -> None:
    """Freezes parameters as the configuration says; `source`: the model's checkpoint. In a multimodal model, patterns
    also match the names in the checkpoint, and the modules carried along are never trainable."""
    if not meta_model.carried and not meta_model.tower:
        return freeze(meta_model.model, config.trainable, config.frozen)
    from spillway.model.checkpoint.files import checkpoint_names

    others = checkpoint_names(meta_model, source)
    names = names_of(meta_model.model, others)
    carried = {name for parameter in meta_model.frozen_parts for name in names[id(parameter)]}
    own = [name for several in names.values() for name in several if name not in carried]
    for each in config.trainable:
        if not any_matches([each], own) and any_matches([each], sorted(carried)):
            raise InputError(
                f"trainable: {each!r} matches only what belongs to other modalities than text, which is carried along "
                f"as it is; what can be trained has names such as {examples(own)}. For rows with images, "
                "`freeze_vision_tower: false` and `freeze_multi_modal_projector: false` train these parts"
            )
    trained = [parameter for parameter in meta_model.tower if parameter.requires_grad]
    freeze(meta_model.model, config.trainable, config.frozen, others)
    refuse_frozen_tower(meta_model, trained, config)


def refuse_frozen_tower(meta_model: MetaModel, trained: Sequence[nn.Parameter], config: Config) -> None:
    """InputError where patterns freeze a whole part that a key trains. `trained`: the tower's parameters that keys
    train."""
    parts: dict[str, list[nn.Parameter]] = {}
    for parameter in trained:
        projector = PROJECTOR.search(meta_model.names[id(parameter)])
        key = "freeze_multi_modal_projector" if projector else "freeze_vision_tower"
        parts.setdefault(key, []).append(parameter)
    for key, parameters in parts.items():
        if not any(parameter.requires_grad for parameter in parameters):
            name, patterns = ("frozen", config.frozen) if config.frozen else ("trainable", config.trainable)
            raise InputError(
                f"{name}: with {', '.join(map(repr, patterns))} nothing is left to train of what `{key}: false` "
                f"trains; leave {key} out, or let the patterns leave some of it trainable"
            )


def freeze(
    model: nn.Module,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
    others: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Leaves trainable what `trainable` finds (nothing given: everything) and `frozen` does not, by `re.search`.
    `others`: further names of parameters.

    InputError for a pattern that finds nothing, and when nothing is left to train.
    """
    names = names_of(model, others)
    every = [name for several in names.values() for name in several]
    for key, patterns in (("trainable", trainable), ("frozen", frozen)):
        for each in patterns:
            if not any(re.search(each, name) for name in every):
                raise InputError(f"{key}: {each!r} matches no parameter; their names are such as {examples(every)}")
    for parameter in model.parameters():
        own = names[id(parameter)]
        trains = not trainable or any_matches(trainable, own)
        if not trains or any_matches(frozen, own):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        key, patterns = ("frozen", frozen) if frozen else ("trainable", trainable)
        raise InputError(
            f"{key}: with {', '.join(map(repr, patterns))} no parameter is left to train; there are {examples(every)}"
        )


def freeze_like(meta_model: MetaModel, names: Collection[str]) -> None:
    """Freezes the parameters of these (saved) names."""
    for parameter in meta_model.model.parameters():
        if meta_model.names[id(parameter)] in names:
            parameter.requires_grad_(False)


def freeze_kinds(small: MetaModel, meta_model: MetaModel) -> None:
    """Freezes in a model with fewer layers what is frozen in every layer of `meta_model`."""
    learning = {pattern(meta_model.names[id(p)]) for p in meta_model.model.parameters() if p.requires_grad}
    for parameter in small.model.parameters():
        if pattern(small.names[id(parameter)]) not in learning:
            parameter.requires_grad_(False)


def frozen_names(model: nn.Module) -> frozenset[str]:
    """All names of the parameters that are not trainable."""
    return frozenset(name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad)


def names_of(model: nn.Module, others: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[int, list[str]]:
    """Names of parameters by identity; `others`: further names of parameters."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = names.setdefault(id(parameter), [])
        own += [each for each in (name, *others.get(name, ())) if each not in own]
    return names


def any_matches(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(re.search(each, name) for each in patterns for name in names)


def examples(names: Sequence[str]) -> str:
    """A few names, spread over the model."""
    step = max(1, len(names) // SHOWN)
    return ", ".join(names[::step][:SHOWN])
