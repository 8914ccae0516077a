"""A language model that is not transformers' own: any module with an embedding, a list of blocks and a linear head.

What the stream asks a transformers model for, `Blocks` says of the module: where the parts are, how it is built, and a
small one of the same code, with which the stream is verified on every start.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from spillway.errors import InputError
from spillway.model.source.model_code import refusal


@dataclass(frozen=True)
class Blocks:
    """A module and its parts, for `spillway.Session(module=...)`.

    `forward(input_ids)` of the module, [rows, length] whole numbers, returns logits [rows, length, vocabulary], alone,
    first in a tuple, or as `.logits`; it calls the embedding once, every block once and in order on the hidden state,
    and the head once on every token. Packing asks for `forward(input_ids, position_ids=...)`, positions that begin anew
    with every row. Anything else it may do is its own; what cannot be streamed is refused, with the reason.
    """

    build: Callable[[], nn.Module]  # the module; its parameters are put on `meta` as they are registered
    small: Callable[[], nn.Module]  # the same code, few and narrow blocks (one of each kind), any vocabulary
    layers: str  # name of the nn.ModuleList or nn.Sequential of blocks, e.g. "body.blocks"
    embedding: str  # name of an nn.Embedding
    head: str  # name of an nn.Linear; its weight may be the embedding's


class OwnModel:
    """Goes before a module's own class: what the stream asks a transformers model for."""

    base_model_prefix = ""
    _keys_to_ignore_on_load_unexpected = None
    _spillway_blocks: Blocks

    def get_input_embeddings(self) -> nn.Module:
        return part(self, self._spillway_blocks.embedding)

    def get_output_embeddings(self) -> nn.Module:
        return part(self, self._spillway_blocks.head)

    @property
    def all_tied_weights_keys(self) -> dict[str, str]:
        """Further names of what is shared, and the one in files: the first by alphabet, as safetensors' save_model."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):  # type: ignore[attr-defined]
            names.setdefault(id(parameter), []).append(name)
        return {name: min(each) for each in names.values() for name in each if name != min(each)}

    def listed_layers(self) -> list[nn.Module]:
        return list(part(self, self._spillway_blocks.layers).children())

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **_: Any) -> Any:
        more = {} if position_ids is None else {"position_ids": position_ids}
        if more and "position_ids" not in inspect.signature(super().forward).parameters:  # type: ignore[misc]
            raise InputError("packing: the module's forward takes no position_ids, which begin anew with every row")
        result = super().forward(input_ids, **more)  # type: ignore[misc]
        logits = result[0] if isinstance(result, tuple | list) else getattr(result, "logits", result)
        return SimpleNamespace(logits=logits)


class OwnConfig:
    """Stands where a transformers configuration does."""

    def __init__(self, blocks: Blocks, layers: int | None = None, vocabulary: int | None = None) -> None:
        """`layers`, `vocabulary`: of a module that is cut down to so many; None: as it is."""
        self.blocks = blocks
        self.use_cache = False
        self._layers = layers
        self._vocabulary = vocabulary
        self.model_type = getattr(blocks.build, "__name__", "module")

    def __deepcopy__(self, memo: Any) -> OwnConfig:
        return copy.copy(self)

    def on_meta(self, dtype: torch.dtype) -> Any:
        """Parameters on `meta`, buffers with their values."""
        with parameters_on_meta():
            module = self._built(self.blocks.build)
        self.model_type = type(module).__name__
        model = adorned(module, self.blocks)
        if self._layers is not None and self._vocabulary is not None:
            cut(model, self._layers, self._vocabulary)
        return model.to(dtype).train()

    def plain(self, dtype: torch.dtype) -> Any:
        """The model with the weights that its constructor draws."""
        return adorned(self._built(self.blocks.build), self.blocks).to(dtype)

    def smaller(self) -> OwnConfig:
        return OwnConfig(Blocks(**{**vars(self.blocks), "build": self.blocks.small}))

    def cut(self, layers: int, vocabulary: int) -> OwnConfig:
        return OwnConfig(self.blocks, layers, vocabulary)

    def _built(self, build: Callable[[], nn.Module]) -> nn.Module:
        module = build()
        if not isinstance(module, nn.Module):
            raise InputError(f"module: build and small return an nn.Module, not {type(module).__name__}")
        return module


def part(module: Any, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)  # type: ignore[no-any-return]
    except AttributeError:
        there = ", ".join(child for child, _ in module.named_children())
        raise InputError(f"module: {type(module).__name__} has no part {name!r}; it has {there}") from None


def adorned(module: nn.Module, blocks: Blocks) -> Any:
    module.__class__ = type(type(module).__name__, (OwnModel, type(module)), {})
    module._spillway_blocks = blocks  # type: ignore[assignment]
    return module


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside, a parameter loses its bytes when a module takes it; what is drawn into it after that costs nothing."""
    register = nn.Module.register_parameter

    def without_bytes(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_bytes  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def cut(model: Any, layers: int, vocabulary: int) -> None:
    """Leaves so many blocks, one of every kind at least, and so many rows of the tables."""
    listed, blocks = model.listed_layers(), model._spillway_blocks
    kinds = [(type(b).__name__, *(tuple(p.shape) for p in b.parameters())) for b in listed]
    kept = {kinds.index(kind) for kind in kinds}
    kept |= set([place for place in range(len(listed)) if place not in kept][: max(0, layers - len(kept))])
    holder: Any = part(model, blocks.layers)
    for place in reversed(range(len(listed))):
        if place not in kept:
            del holder[place]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise refusal(type(model).__name__, "it has no embedding table and linear head")
    tied = head.weight is embedding.weight
    with torch.device("meta"):
        padding = embedding.padding_idx
        small = nn.Embedding(vocabulary, embedding.embedding_dim, None if padding is None else min(padding, 0))
        linear = nn.Linear(head.in_features, vocabulary, bias=head.bias is not None)
    replace(model, blocks.embedding, small)
    replace(model, blocks.head, linear)
    if tied:
        linear.weight = small.weight


def replace(model: Any, name: str, module: nn.Module) -> None:
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, module)
