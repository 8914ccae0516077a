"""The parts of a multimodal model that make features of images, where some of them are trained.

Frozen parts stay in memory beside the engine (`image_tower`). As soon as one part is trained, the engine has the
weights of all of them. They belong to the block of the first layer, whose pass begins with the model's own code before
its layers. So features are computed in the forward pass of that block and again in its backward pass, where the layers
of the tower are recomputed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spillway.errors import InputError
from spillway.model.layers.few_rows import fill_rows
from spillway.model.meta.building import refuse_leftovers
from spillway.model.meta.image_tower import makes_image_features
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.model_code import refusal, replaced_forwards
from spillway.model.source.source import is_multimodal

# of a parameter's name: a module between tower and text, as the library's classes call it
PROJECTOR = re.compile(r"projector|merger|connector|aligner|resampler|embed_vision")
OTHER_METHODS = ("get_audio_features",)  # of a class with towers of other media


class StreamedTower:
    """The tower of a meta model whose weights the engine has."""

    def __init__(self, meta_model: MetaModel, device: torch.device) -> None:
        self._device = device
        owners = {id(owner) for parameter in meta_model.tower for owner, _ in meta_model.places[id(parameter)]}
        self._layers = [
            layer for layer in list_layers(meta_model.model) if any(id(inner) in owners for inner in layer.modules())
        ]

    def features(self) -> StreamedTower:
        return self

    def answering(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside, the model's own code makes features, and autograd saves the inputs of the tower's layers alone."""
        return checkpointed(self._layers, self._device)

    def leave(self, room: torch.Tensor, first: int) -> int:
        """Backward makes them again."""
        return 0

    def come_back(self, room: torch.Tensor | None) -> None:
        return


@contextmanager
def checkpointed(layers: list[nn.Module], device: torch.device) -> Iterator[None]:
    with replaced_forwards({layer: recompute(layer.forward, device) for layer in layers}), fill_rows(device):
        yield


def recompute(forward: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def compute(*positional: Any, **keywords: Any) -> Any:
        with fill_rows(device):  # backward computes this again, outside of what surrounds it in forward
            return forward(*positional, **keywords)

    def run(*positional: Any, **keywords: Any) -> Any:
        return checkpoint(compute, *positional, use_reentrant=False, **keywords)

    return run


def list_layers(model: nn.Module) -> list[nn.Module]:
    """The members of the innermost lists of modules that hold no other list."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = [each for each in lists if not any(isinstance(m, nn.ModuleList) for m in each.modules() if m is not each)]
    return [layer for each in inner for layer in each]


def stream_tower(meta_model: MetaModel, tower: bool, projector: bool) -> None:
    """Gives the engine the weights of vision tower and projector. `tower`, `projector`: this part is trained.
    InputError for a model of which they cannot be trained."""
    config, kind = meta_model.config, meta_model.config.model_type
    key = "freeze_multi_modal_projector" if projector else "freeze_vision_tower"
    if not is_multimodal(config) or not makes_image_features(config):
        raise InputError(f"{key}: a model of type {kind} has no vision tower that can be trained; leave it out")
    named = meta_model.model.named_parameters(remove_duplicate=False)
    buffers = meta_model.model.state_dict().keys() - {name for name, _ in named}
    if any(hasattr(module, name) for module in meta_model.model.modules() for name in OTHER_METHODS):
        raise refusal(kind, f"{key} is false, and it has towers of other media than images")
    parts = {id(p): PROJECTOR.search(meta_model.names[id(p)]) is not None for p in meta_model.carried}
    if any(meta_model.is_apart(name) for name in buffers):
        raise refusal(kind, f"{key} is false, and its vision tower saves values that are no parameters")
    if projector and not any(parts.values()):
        raise refusal(kind, f"{key} is false, and no part of its vision tower has the name of a projector")
    meta_model.take_tower()
    for parameter in meta_model.tower:
        parameter.requires_grad_(projector if parts[id(parameter)] else tower)
    refuse_leftovers(meta_model)


def freeze_unreached(meta_model: MetaModel, reached: set[int]) -> None:
    """Freezes what of the tower makes no feature, such as layers behind the one whose output is taken. PyTorch's
    optimizers leave it alone, too. `reached`: identities of the others."""
    for parameter in meta_model.tower:
        if id(parameter) not in reached:
            parameter.requires_grad_(False)
