"""Which parameters learn: by patterns over names, or as somebody has set `requires_grad` on the skeleton.

What is frozen streams as a weight alone. A parameter that hangs in several places has several names, and is frozen or
not in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from spillway.errors import InputError
from spillway.hf.skeleton import pattern

if TYPE_CHECKING:
    from torch import nn

    from spillway.hf.skeleton import Skeleton

SHOWN = 4  # names in a message


def freeze(model: nn.Module, trainable: Sequence[str] = (), frozen: Sequence[str] = ()) -> None:
    """Leaves to learn what `trainable` finds (nothing given: everything) and `frozen` does not, by `re.search`.

    InputError for a pattern that finds nothing, and when nothing is left to learn.
    """
    names = names_of(model)
    every = [name for several in names.values() for name in several]
    for key, patterns in (("trainable", trainable), ("frozen", frozen)):
        for each in patterns:
            if not any(re.search(each, name) for name in every):
                raise InputError(f"{key}: {each!r} matches no parameter; their names are such as {examples(every)}")
    for parameter in model.parameters():
        own = names[id(parameter)]
        learns = not trainable or found(trainable, own)
        if not learns or found(frozen, own):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        key, patterns = ("frozen", frozen) if frozen else ("trainable", trainable)
        raise InputError(
            f"{key}: with {', '.join(map(repr, patterns))} no parameter is left to train; there are {examples(every)}"
        )


def freeze_like(skeleton: Skeleton, names: Collection[str]) -> None:
    """Freezes the parameters of these (saved) names."""
    for parameter in skeleton.model.parameters():
        if skeleton.names[id(parameter)] in names:
            parameter.requires_grad_(False)


def freeze_kinds(small: Skeleton, skeleton: Skeleton) -> None:
    """Of a model with fewer layers: what is frozen in every layer of `skeleton`."""
    learning = {pattern(skeleton.names[id(p)]) for p in skeleton.model.parameters() if p.requires_grad}
    for parameter in small.model.parameters():
        if pattern(small.names[id(parameter)]) not in learning:
            parameter.requires_grad_(False)


def frozen_names(model: nn.Module) -> frozenset[str]:
    """All names of the parameters that do not learn."""
    return frozenset(name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad)


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """By identity."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def found(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(re.search(each, name) for each in patterns for name in names)


def examples(names: Sequence[str]) -> str:
    """A few names, spread over the model."""
    step = max(1, len(names) // SHOWN)
    return ", ".join(names[::step][:SHOWN])
