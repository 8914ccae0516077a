"""The frozen parts of a multimodal model that make features of images: its vision tower and its projector.

The model's own forward pass asks its own `get_image_features` for them and puts them where the embedding's rows of
image tokens were. In a recording of that pass (`layer_arguments`) a second copy of the model answers, of which these
parts alone have weights. So placeholders, positions and masks are the model's own. The features of a micro-batch are
computed once a step, in the forward pass of the first layer. The engine has them until its backward pass, in memory or
on a path, as the plan says.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from transformers.utils import ModelOutput

from spillway.errors import InputError
from spillway.model.batches.microbatch import MicroBatch
from spillway.model.layers.nested import rebuilt, tensors_in
from spillway.model.layers.saved import Leaving, address, aligned, move_storages
from spillway.model.meta.layer_arguments import Answering
from spillway.model.meta.meta_model import MetaModel
from spillway.model.meta.on_meta import on_meta
from spillway.model.source.source import auto_class, is_multimodal

METHOD = "get_image_features"
# of a model's forward pass: arguments that say nothing of images
OTHER_ARGUMENTS = frozenset(
    "self input_ids attention_mask position_ids past_key_values inputs_embeds labels use_cache cache_position "
    "rope_deltas logits_to_keep output_attentions output_hidden_states output_router_logits return_dict kwargs".split()
)
OTHER_MEDIA = ("video", "audio", "input_features", "second_per_grid_ts")  # parts of arguments' names
UNREAD = ("last_hidden_state", "hidden_states", "attentions")  # of what it returns, beside the features


class ImageTower:
    """A model of which the parts that text never passes can have weights."""

    def __init__(self, meta_model: MetaModel, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._model = on_meta(copy.deepcopy(meta_model.config), meta_model.dtype).eval().requires_grad_(False)
        for module in self._model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self._device)
        apart = {name for name in self._model.state_dict() if meta_model.is_apart(name)}
        self.names = meta_model.carried_names | apart  # of parameters and saved buffers

    @property
    def bytes(self) -> int:
        """Bytes of its weights."""
        parameters = {id(each): each for name, each in self._model.named_parameters() if name in self.names}
        return sum(each.numel() * each.element_size() for each in parameters.values())

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Gives a parameter or buffer its values, in the type that the model has it in."""
        owner, _, own = name.rpartition(".")
        module = self._model.get_submodule(owner)
        before = module._parameters.get(own)
        if before is None:
            buffer = module._buffers[own]
            assert buffer is not None
            module._buffers[own] = tensor.to(self._device, buffer.dtype)
            return
        if tensor.shape != before.shape:
            raise InputError(f"tensor {name} has shape {list(tensor.shape)}, the model has {list(before.shape)}")
        made = nn.Parameter(tensor.to(self._device, before.dtype), requires_grad=False)
        for each in self._model.modules():  # all places of a shared parameter
            for place, parameter in each._parameters.items():
                if parameter is before:
                    each._parameters[place] = made

    def fill_with_zeros(self) -> None:
        """Zeros for all weights, to measure what a pass takes."""
        for name, parameter in list(self._model.named_parameters()):
            if name in self.names:
                self.take(name, torch.zeros_like(parameter, device=self._device))

    def list_missing(self) -> list[str]:
        """The names of parameters that have no values yet."""
        return [name for name, each in self._model.named_parameters() if name in self.names and each.is_meta]

    def features(self) -> Features:
        return Features(self)

    def compute(self, owner: str, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The features that the model's module `owner` makes of images."""
        with torch.no_grad():
            made = getattr(self._model.get_submodule(owner), METHOD)(*positional, **keywords)
        if isinstance(made, ModelOutput):
            for name in UNREAD:
                if made.get(name) is not None:
                    made[name] = None
        return made


class Features:
    """The features of one micro-batch's images."""

    def __init__(self, tower: ImageTower) -> None:
        self._tower = tower
        self._made: list[Any] = []  # by call; of tensors that have left, stand-ins
        self._left: dict[int, Leaving] = {}  # by identity of what stands for it
        self._first = 0  # byte of the room at which they begin
        self._room: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        """Bytes of a room for them."""
        storages = {address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors_in(self._made)}
        return sum(map(aligned, storages.values()))

    @contextmanager
    def answering(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model's own code gets its image features from here: made the first time, then as they are."""
        calls = 0

        def answer(owner: str) -> Callable[..., Any]:
            def features(*positional: Any, **keywords: Any) -> Any:
                nonlocal calls
                if calls == len(self._made):
                    self._made.append(self._tower.compute(owner, positional, keywords))
                calls += 1
                return self._located(self._made[calls - 1])

            return features

        owners = {name: module for name, module in model.named_modules() if hasattr(type(module), METHOD)}
        for name, module in owners.items():
            setattr(module, METHOD, answer(name))
        try:
            yield
        finally:
            for module in owners.values():
                delattr(module, METHOD)

    def leave(self, room: torch.Tensor, first: int) -> int:
        """Moves them to `room`, bytes, from byte `first` on. How many bytes that takes; 0: they have no room there, and
        stay."""
        left: dict[int, Leaving] = {}

        def stand_in(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.numel() == 0:
                return tensor
            stand = tensor.new_empty(0)
            left[id(stand)] = Leaving(tensor)
            return stand

        made = rebuilt(self._made, stand_in, {})
        taken = move_storages(list(left.values()), room[first:])
        if taken is None:
            return 0
        self._made, self._left, self._first = made, left, first
        return taken

    def come_back(self, room: torch.Tensor | None) -> None:
        """`room`: has the bytes of the one that they have left to; None: nobody asks for them again."""
        self._room = None if room is None else room[self._first :]
        if room is None:
            self._made, self._left = [], {}

    def _located(self, value: Any) -> Any:
        if not self._left:
            return value
        return rebuilt(value, lambda it: self._left[id(it)].locate(self._room) if id(it) in self._left else it, {})


class Tower(Protocol):
    """Makes features of images."""

    def features(self) -> Answering:
        """Returns features for one micro-batch in one step."""


def list_features(tower: Tower | None, batches: Sequence[MicroBatch]) -> list[Answering | None]:
    """Features of each micro-batch; None where it has no images."""
    return [None if tower is None or batch.images is None else tower.features() for batch in batches]


def makes_image_features(config: Any) -> bool:
    """True if the class of a multimodal configuration has a vision tower of its own that this module can ask."""
    return any(hasattr(each, METHOD) for each in list_classes(config))


def list_classes(config: Any) -> tuple[Any, ...]:
    """The library's classes for a configuration; (None,) if there is none."""
    made = auto_class(config)
    listed = None if made is None else made._model_mapping[type(config)]
    return listed if isinstance(listed, tuple) else (listed,)


def list_arguments(config: Any) -> frozenset[str]:
    """The names of the arguments that a multimodal model takes beside those of text. InputError if it has no vision
    tower of its own."""
    if not is_multimodal(config) or not makes_image_features(config):
        raise InputError(f"images: a model of type {config.model_type} is trained on text alone in this release")
    names = inspect.signature(list_classes(config)[0].forward).parameters.keys() - OTHER_ARGUMENTS
    return frozenset(name for name in names if not any(part in name for part in OTHER_MEDIA))
