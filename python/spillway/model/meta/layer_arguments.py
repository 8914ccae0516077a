"""Arguments of each layer besides the hidden state: recorded from the model's own forward pass.

The model runs once with every layer replaced by a recorder that hands its hidden state on, so that masks, rotary
tables, positions and whatever is made of the embedding are the model's own, with no guess about them. It is left when
the last layer has been recorded. On the way it is checked that the model does nothing to the hidden state between the
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from spillway.machine.place import HOST, Place
from spillway.model.batches.microbatch import MicroBatch, Work
from spillway.model.layers.nested import tensors_in
from spillway.model.meta.meta_model import MetaModel, zeros
from spillway.model.source.model_code import Left, call_without_layers, refusal, replaced_forwards


class Answering(Protocol):
    """Features of images; see `image_tower`."""

    def answering(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside, the model's own code gets them."""

    def leave(self, room: torch.Tensor, first: int) -> int:
        """Moves them to `room`; see `image_tower.Features`."""

    def come_back(self, room: torch.Tensor | None) -> None:
        """They lie in `room`, or nobody asks for them again."""


@dataclass(frozen=True)
class Arguments:
    """One call of one layer, the hidden state left out."""

    keyword: str | None  # the hidden state's keyword; None: it is the first positional argument
    positional: tuple[Any, ...]  # what follows the hidden state
    keywords: dict[str, Any]
    added: torch.Tensor | None = None  # features of images that the model adds to the hidden state before the layer

    def call(self, module: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return self.results(module, hidden)[0]

    def results(self, module: nn.Module, hidden: torch.Tensor) -> Sequence[Any]:
        """Everything that the layer returns, the hidden state first."""
        if self.added is not None:
            hidden = hidden + self.added
        if self.keyword is None:
            result = module(hidden, *self.positional, **self.keywords)
        else:
            result = module(**{self.keyword: hidden}, **self.keywords)
        return result if isinstance(result, tuple | list) else (result,)


@dataclass
class Recording:
    """One micro-batch's way to the first layer."""

    first: torch.Tensor  # the hidden state that the first layer is given
    embedded: torch.Tensor  # what the embedding gave
    calls: list[Arguments]  # by layer
    passed: dict[int, tuple[int, int]]  # by identity of what stands for it in `calls`: layer, place in its result


class Recorder:
    """The calls of a model's layers, none of which computes anything. With images, layers return `probe` everywhere."""

    def __init__(self, meta_model: MetaModel, has_images: bool, probe: float) -> None:
        self.kind = meta_model.config.model_type
        self.last, self.form, self.has_norm = len(meta_model.layers) - 1, meta_model.form, meta_model.norm is not None
        self.has_images, self.probe = has_images, probe
        self.calls: list[Arguments] = []
        self.passed: dict[int, tuple[int, int]] = {}
        self.hidden: torch.Tensor | None = None  # as it enters the first layer
        self.blank: torch.Tensor | None = None  # the output of every layer, where there are images
        self._held: list[torch.Tensor] = []  # so that identities last

    def forwards(self, meta_model: MetaModel) -> dict[Any, Callable[..., Any]]:
        """The functions that layers run instead of their own code, by layer."""
        forwards: dict[Any, Callable[..., Any]] = {
            layer: partial(self.note, place) for place, layer in enumerate(meta_model.layers)
        }
        return forwards | ({meta_model.norm: self.leave} if self.has_images and self.has_norm else {})

    def note(self, place: int, *positional: Any, **keywords: Any) -> Any:
        if place != len(self.calls):
            raise self.disorder()
        if self.hidden is None:
            self.hidden = hidden_of(positional, keywords, self.kind)
        if self.blank is not None:
            self.calls.append(take_added(positional, keywords, self.blank, self.kind))
        else:
            self.calls.append(without_hidden(positional, keywords, self.hidden, self.kind))
        if self.has_images and self.blank is None:
            self.blank = torch.full_like(self.hidden, self.probe, requires_grad=False)
        if place == self.last and not (self.has_images and self.has_norm):
            raise Left
        others = [torch.empty(0, device=self.hidden.device) for _ in range((self.form or 1) - 1)]
        self._held.extend(others)
        self.passed.update({id(other): (place, number) for number, other in enumerate(others, start=1)})
        output = self.hidden if self.blank is None else self.blank
        return output if self.form is None else (output, *others)

    def leave(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        if self.blank is None or not is_view(hidden, self.blank):
            raise refusal(self.kind, "it adds features of images after its last layer")
        raise Left

    def disorder(self) -> Exception:
        return refusal(self.kind, "its layers are not called one after the other, each once")


def record(
    meta_model: MetaModel,
    batch: MicroBatch,
    ids: torch.Tensor,
    rows: torch.Tensor,
    features: Answering | None = None,
    probe: float = 0.0,
) -> Recording:
    """Runs the model up to its last layer. ids: [tokens]; rows: [tokens, columns], the embedding's rows of them.
    `features`: of the micro-batch's images. With images, layers return `probe` everywhere, and what the model adds to a
    zero is `added` in the calls."""
    images = {} if batch.images is None or features is None else batch.images
    recorder = Recorder(meta_model, bool(images), probe)
    answering = nullcontext() if features is None else features.answering(meta_model.model)
    with (
        embedded_rows(meta_model, rows, batch) as embedded,
        replaced_forwards(recorder.forwards(meta_model)),
        answering,
        suppress(Left),
    ):
        tokens = ids.view(batch.rows, batch.length)
        call_without_layers(meta_model.model, tokens, batch.position_ids, **images)
    calls, passed = recorder.calls, recorder.passed
    if len(calls) != len(meta_model.layers) or not embedded or recorder.hidden is None:
        raise recorder.disorder()
    if recorder.blank is not None and bool(recorder.blank.ne(probe).any()):
        raise refusal(recorder.kind, "its backbone writes features of images into the hidden state")
    used = {id(t): t for call in calls for t in tensors_in([call.positional, list(call.keywords.values())])}
    numbers = {number: passed[number] for number in used if number in passed}
    return Recording(recorder.hidden, embedded[0], calls, numbers)


@contextmanager
def embedded_rows(meta_model: MetaModel, rows: torch.Tensor, batch: MicroBatch) -> Iterator[list[torch.Tensor]]:
    """Inside, the embedding has these rows as its table, and every call looks up one after the other.

    So scales and whatever else an embedding does to its rows are its own. Yields what it has given. Who reads the table
    itself finds zeros: some models put the row of a padding token where an image would be, and text has none.
    """
    given: list[torch.Tensor] = []
    embedding = meta_model.embedding
    meta, padding = embedding._parameters["weight"], embedding.padding_idx
    assert meta is not None
    nothing = zeros(meta, rows.device)

    def forward(ids: torch.Tensor, *more: Any, **keywords: Any) -> torch.Tensor:
        if tuple(ids.shape) != (batch.rows, batch.length):
            raise refusal(meta_model.config.model_type, "its embedding is asked for other tokens than the batch has")
        numbers = torch.arange(batch.tokens, device=rows.device).view(batch.rows, batch.length)
        embedding._parameters["weight"], embedding.padding_idx = rows, None  # type: ignore[assignment]
        try:
            given.append(type(embedding).forward(embedding, numbers, *more, **keywords))
        finally:
            embedding._parameters["weight"], embedding.padding_idx = nothing, padding  # type: ignore[assignment]
        return given[-1]

    embedding._parameters["weight"] = nothing  # type: ignore[assignment]
    try:
        with replaced_forwards({embedding: forward}), meta_model.stand_ins(meta_model.telling, rows.device):
            yield given
    finally:
        embedding._parameters["weight"] = meta


def hidden_of(positional: tuple[Any, ...], keywords: dict[str, Any], kind: str) -> torch.Tensor:
    """The hidden state among the arguments of the first layer."""
    if positional and isinstance(positional[0], torch.Tensor):
        return positional[0]
    hidden = keywords.get("hidden_states")
    if isinstance(hidden, torch.Tensor):
        return hidden
    raise refusal(kind, "its first layer is not given the hidden state first")


def without_hidden(positional: tuple[Any, ...], keywords: dict[str, Any], hidden: torch.Tensor, kind: str) -> Arguments:
    if positional and is_view(positional[0], hidden):
        return Arguments(None, positional[1:], keywords)
    for name, value in keywords.items():
        if is_view(value, hidden) and not positional:
            return Arguments(name, (), {key: item for key, item in keywords.items() if key != name})
    raise refusal(kind, "its backbone changes the hidden state between its layers")


def take_added(positional: tuple[Any, ...], keywords: dict[str, Any], blank: torch.Tensor, kind: str) -> Arguments:
    """The arguments of a layer after one that returned `blank`. Another tensor is what was added to it."""
    name = None if positional else "hidden_states"
    hidden = positional[0] if positional else keywords.get("hidden_states")
    if not isinstance(hidden, torch.Tensor) or hidden.shape != blank.shape or hidden.dtype != blank.dtype:
        raise refusal(kind, "its backbone changes the hidden state between its layers")
    rest = {key: item for key, item in keywords.items() if key != name}
    return Arguments(name, positional[1:], rest, None if is_view(hidden, blank) else hidden)


def is_view(value: Any, hidden: torch.Tensor) -> bool:
    """True if the value is the hidden state, or all of it as a slice: some models keep the last 0 positions, which are
    all."""
    if value is hidden or not isinstance(value, torch.Tensor) or value.is_meta:
        return value is hidden
    alike = value.shape == hidden.shape and value.stride() == hidden.stride() and value.dtype == hidden.dtype
    return alike and value.data_ptr() == hidden.data_ptr()


class LayerArguments:
    """Recordings of micro-batches. Where they depend on nothing but the shape, equal shapes share theirs."""

    def __init__(self, meta_model: MetaModel, device: torch.device | None = None) -> None:
        self._meta_model = meta_model
        self._device = device

    def record(self, batches: list[MicroBatch]) -> list[Recording]:
        """For a meta model whose arguments follow from shape and positions: by micro-batch."""
        known: dict[tuple[int, int], Recording] = {}
        calls = []
        for batch in batches:
            shape = (batch.rows, batch.length)
            if batch.position_ids is not None:
                calls.append(self._recorded(batch))
                continue
            if shape not in known:
                known[shape] = self._recorded(batch)
            calls.append(known[shape])
        return calls

    def _recorded(self, batch: MicroBatch) -> Recording:
        meta_model = self._meta_model
        ids = torch.zeros(1, dtype=torch.int64, device=self._device).expand(batch.tokens)
        row = torch.zeros(1, dtype=meta_model.dtype, device=self._device)
        rows = row.expand(batch.tokens, meta_model.embedding.embedding_dim)
        with torch.no_grad(), meta_model.stand_ins(device=self._device):
            return record(meta_model, batch, ids, rows)


def masks(meta_model: MetaModel, work: Work, place: Place = HOST) -> int:
    """Bytes of what the layers are given besides the hidden state, rotary tables and masks that have bytes among it:
    kept for every packed micro-batch of a step."""
    if not meta_model.simple_entry:
        return 0
    return argument_bytes(
        LayerArguments(meta_model, place.device).record(work.to(place.device).micro_batches[:1])[0].calls
    )


def argument_bytes(calls: list[Arguments]) -> int:
    """Bytes of the tensors that the layers are given besides the hidden state, each counted once."""
    storages: dict[int, int] = {}

    def block_pass(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            block_pass(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                block_pass(item)

    for call in calls:
        block_pass([call.positional, call.keywords])
    return sum(storages.values())
