"""The model on `meta` and its parts: every module and buffer is there, no parameter has bytes."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from spillway._engine import Description
from spillway.model.layers.router import Routers
from spillway.model.meta.on_meta import on_meta
from spillway.model.meta.text_tower import tower_name
from spillway.model.source.model_code import Form
from spillway.model.source.own import OwnConfig
from spillway.model.source.source import is_classifier, is_multimodal

Places = list[tuple[nn.Module, str]]  # where a parameter is attached


@dataclass(frozen=True)
class Space:
    """The space of one matrix that is reduced: d, and the values in each row of what reduces it."""

    rank: int
    nonzeros: int
    master: str = "exact"  # or bf16: the weight alone
    projectors: str = "fitted"  # or published

    @property
    def reduction(self) -> str:
        """The engine's word."""
        return "subspace" if self.projectors == "fitted" else "published subspace"


class Adapted(Protocol):
    """The adapters that stand before layers of a meta model (`lora`)."""

    config: Any  # PEFT's

    @property
    def names(self) -> list[str]:
        """The names of their parameters, in the model's order."""

    def absent(self, description: Description, adapters: bool) -> dict[str, str]:
        """The engine's words for files that hold the base alone (`adapters`: these alone)."""

    def like(self, meta_model: MetaModel) -> None:
        """Adapters of the same kind for another meta model; their values do not matter."""

    def like_largest(self, small: MetaModel, model: nn.Module) -> None:
        """Adapters for a copy with fewer layers than `model`, of the largest rank among layers of a kind."""


@dataclass(frozen=True)
class StagePlan:
    """A part of the model that runs as one block: the way in and the first layer, a layer, what follows the layers."""

    name: str
    parameters: list[nn.Parameter]  # that belong to this block; what it shares with an earlier one is not among them
    shared: list[nn.Parameter]
    layer: int | None
    entry: bool = False
    tail: bool = False


@dataclass
class MetaModel:
    """A causal language model without parameters, and its parts."""

    config: PreTrainedConfig | OwnConfig
    dtype: torch.dtype  # what it computes in
    model: PreTrainedModel
    embedding: nn.Embedding
    layers: list[nn.Module]
    head: nn.Linear
    kept: torch.dtype = torch.float32  # what its weights are kept in
    kept_types: dict[str, torch.dtype] = field(default_factory=dict)  # of each tensor, where that is not `dtype`
    form: Form = None  # what a layer returns
    width: int = 0  # elements of a boundary activation per token
    entry: list[nn.Parameter] = field(default_factory=list)  # outside the layers, used before them
    tail: list[nn.Parameter] = field(default_factory=list)  # the others outside layers, embedding and head's matrix
    norm: nn.Module | None = None  # all that lies between the last layer and the head, where that is one module
    simple_entry: bool = False  # the embedding's rows are the first hidden state; arguments follow from the shape
    simple_tail: bool = False  # nothing, or `norm`, lies between the last layer and the head
    simple_head: bool = False  # the head's matrix alone makes the logits
    unused: frozenset[str] = frozenset()  # get no gradient, as `verify_equivalence` found (`pattern`)
    carried: list[nn.Parameter] = field(default_factory=list)  # of a multimodal model, what text alone never passes
    routers: Routers | None = None  # of a model that adds their auxiliary loss to its own

    def __post_init__(self) -> None:
        self.adapters: Adapted | None = None
        self.spaces: dict[int, Space] = {}  # by identity of a parameter that is reduced
        self.packed: dict[int, str] = {}  # by identity of a frozen parameter: the form that it is kept in (`quantised`)
        self.pieces: dict[int, int] = {}  # by identity of a packed parameter: how many passes can convert it in
        self.on_demand: set[int] = set()  # of these, by identity: pieces come when a pass asks for them
        self.takes_images = False  # micro-batches may have images
        self.tower: list[nn.Parameter] = []  # parts that make features of images and that the engine has
        self.extra: frozenset[str] = frozenset()  # names of tensors in the checkpoint that every save carries along
        self._original: PreTrainedModel | None = None
        self._tower = tower_name(self.model) if is_multimodal(self.config) else None
        self.look_again()

    def take_images(self) -> None:
        """The way in runs for every micro-batch: its first hidden state, positions and masks follow from images."""
        self.takes_images, self.simple_entry = True, False

    def take_tower(self) -> None:
        """Makes the parameters that were carried along parameters of the way in."""
        self.tower, self.carried = self.carried, []
        self.entry, self.simple_entry = [*self.entry, *self.tower], False

    @property
    def frozen_parts(self) -> list[nn.Parameter]:
        """Parameters that text alone never passes and that are not trained."""
        return [*self.carried, *(parameter for parameter in self.tower if not parameter.requires_grad)]

    def remember_original(self) -> None:
        """The model is about to get adapters: files go by what it was."""
        self._original = on_meta(copy.deepcopy(self.config), self.dtype)

    @property
    def stored(self) -> PreTrainedModel:
        """The model as checkpoints have it, on meta."""
        return self.model if self._original is None else self._original

    def look_again(self) -> None:
        """Names and places of all parameters; what an adapter stands before keeps the name it had."""
        self.names = {key: bare_name(name) for key, name in stored_names(self.model).items()}
        self.places: dict[int, Places] = defaultdict(list)
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self.places[id(parameter)].append((module, name))

    def is_fp32(self, parameter: torch.Tensor) -> bool:
        """True if the parameter is kept, computed with and learned in fp32 where the rest is kept in a narrower
        type."""
        table = parameter is self.embedding.weight or parameter is self.head.weight
        return self.type_kept(parameter) == torch.float32 != self.kept and not table

    def type_kept(self, parameter: torch.Tensor) -> torch.dtype:
        if self.kept == self.dtype:
            return parameter.dtype
        return self.kept_types.get(self.names.get(id(parameter), ""), self.kept)

    @property
    def tied(self) -> bool:
        """The embedding's table is the head's matrix."""
        return self.head.weight is self.embedding.weight

    @property
    def vocabulary(self) -> int:
        """Tokens that are both read and given; a table may have rows for what is only read. With a head of labels all
        that are read."""
        if is_classifier(self.config):
            return self.embedding.num_embeddings
        return min(self.embedding.num_embeddings, self.head.weight.shape[0])

    @property
    def columns(self) -> int:
        """The columns of the embedding's table."""
        return self.embedding.embedding_dim

    @property
    def head_columns(self) -> int:
        return self.head.weight.shape[1]

    @property
    def hidden_size(self) -> int:
        return self.width

    @property
    def plain(self) -> bool:
        """Nothing but rows, layers, a norm and a matrix: no code of the model's own runs between them."""
        return self.simple_entry and self.simple_tail and self.simple_head

    @property
    def stack(self) -> list[nn.Module]:
        return [*self.layers, *([self.norm] if self.norm is not None else [])]

    @property
    def stages(self) -> list[StagePlan]:
        """The blocks between embedding and head, in order."""
        names = {id(module): name for name, module in self.model.named_modules()}
        last = len(self.layers) - 1
        owned: set[int] = {id(self.embedding.weight), id(self.head.weight)}
        plans = []
        for place, layer in enumerate(self.layers):
            wanted = [*(self.entry if place == 0 else []), *layer.parameters()]
            wanted += self.tail if place == last and not self.has_own_tail else []
            own = [p for p in wanted if id(p) not in owned]
            entry, tail = place == 0 and not self.simple_entry, place == last and self.fused_tail
            shared = [p for p in wanted if id(p) in owned]
            plans.append(StagePlan(names[id(layer)], own, shared, place, entry, tail))
            owned.update(map(id, own))
        if self.has_own_tail:
            own = [p for p in self.tail if id(p) not in owned]
            name = "tail" if self.norm is None else names[id(self.norm)]
            plans.append(StagePlan(name, own, [p for p in self.tail if id(p) in owned], None, False, True))
        return plans

    @property
    def has_own_tail(self) -> bool:
        """True if what follows the layers is a block of its own."""
        return bool(self.tail)

    @property
    def fused_tail(self) -> bool:
        """True if what follows the layers has no parameters, and runs with the last layer."""
        return not self.tail and not self.simple_tail

    @property
    def streamed(self) -> list[nn.Parameter]:
        """All parameters that the engine has."""
        carried = set(map(id, self.carried))
        return [parameter for parameter in self.model.parameters() if id(parameter) not in carried]

    @property
    def telling(self) -> list[nn.Parameter]:
        """The parameter, among those that are carried along, by which the library tells a model's device: its first."""
        return [parameter for parameter in self.carried[:1] if next(self.model.parameters()) is parameter]

    @property
    def carried_names(self) -> frozenset[str]:
        """All names of what is carried along."""
        carried = set(map(id, self.carried))
        named = self.model.named_parameters(remove_duplicate=False)
        return frozenset(bare_name(name) for name, parameter in named if id(parameter) in carried)

    def is_apart(self, name: str) -> bool:
        """True if a parameter or buffer belongs to another modality than text."""
        return self._tower is not None and not f"{name}.".startswith(self._tower and f"{self._tower}.")

    def trainable(self, parameter: nn.Parameter) -> bool:
        """False for what gets no gradient: PyTorch's optimizers leave such a parameter alone, decay included."""
        return parameter.requires_grad and pattern(self.names[id(parameter)]) not in self.unused

    def train(self, training: bool) -> None:
        if self.model.training != training:
            self.model.train(training)

    @contextmanager
    def stand_ins(
        self, parameters: Iterable[nn.Parameter] | None = None, device: torch.device | None = None
    ) -> Iterator[list[torch.Tensor]]:
        """Inside, these (those of `entry` by default) are zeros that take no memory, so that code around them runs."""
        chosen = list(self.entry if parameters is None else parameters)
        before = [owner._parameters[name] for owner, name in (self.places[id(p)][0] for p in chosen)]
        leaves = [zeros(p, device).detach().requires_grad_() for p in chosen]
        self.attach(chosen, leaves)
        try:
            yield leaves
        finally:
            self.attach(chosen, before)  # type: ignore[arg-type]

    def attach(self, parameters: Iterable[nn.Parameter], tensors: Iterable[torch.Tensor]) -> None:
        for parameter, tensor in zip(parameters, tensors, strict=True):
            for owner, name in self.places[id(parameter)]:
                owner._parameters[name] = tensor  # type: ignore[assignment]


def zeros(like: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Zeros of its shape and type, without bytes of their own."""
    return torch.zeros((), dtype=like.dtype, device=device or "cpu").expand(like.shape)


def stored_names(model: PreTrainedModel) -> dict[int, str]:
    """The saved name of each parameter, by identity. A tied parameter has the name that the others are tied to."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    names_by_id: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in names_by_id or names_by_id[id(parameter)] in tied:
            names_by_id[id(parameter)] = name
    return names_by_id


def pattern(name: str) -> str:
    """A parameter's name for all layers alike."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def bare_name(name: str) -> str:
    """The name of a parameter in the base. An adapter has the name that PEFT gives it."""
    return name if ".lora_" in name else re.sub(r"(\.base_layer)+\.", ".", name)
