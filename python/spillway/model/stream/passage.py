"""Values that one micro-batch takes along from block to block besides the hidden state.

Each layer's own arguments; and of these the tensors that gradients flow to, because the way in made them (inputs of
each layer, a copy of the embedding) or because an earlier layer wrote them into a mapping that layers share (keys and
values) or returned them for a later one. In backward every pass gives such tensors to its layer as leaves and adds up
their gradients here, until the pass that made them takes the sum along.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from spillway.model.layers.nested import mappings_in, rebuilt, tensors_in
from spillway.model.layers.router import Balance
from spillway.model.meta.layer_arguments import Answering, Arguments, Recording

Snapshot = list[tuple[MutableMapping[Any, Any], dict[Any, Any]]]  # mappings of a call, and what they held


class Passage:
    """One micro-batch in one step."""

    def __init__(
        self, recording: Recording | None = None, balance: Balance | None = None, features: Answering | None = None
    ) -> None:
        """No recording: the way in records the calls, see `arrive`. `balance`: where routers are watched. `features`:
        of images."""
        mappings: dict[int, Any] = {}  # what layers write into is each micro-batch's own
        calls = [] if recording is None else recording.calls
        self.calls = [replace_tensors(call, lambda tensor: tensor, mappings) for call in calls]
        self._passed = {} if recording is None else recording.passed
        self._results: dict[int, Sequence[Any]] = {}  # by layer: what it returns besides the hidden state
        self.shapes: dict[int, torch.Size] = {}  # of the hidden state as it leaves each stage
        self._tracked: dict[int, torch.Tensor] = {}  # gradients flow to these; held so that identities last
        self._sums: dict[int, torch.Tensor] = {}  # fp32, by identity of the tensor of the forward pass
        self._arrived: list[torch.Tensor] = []  # everything in the calls, before any layer has run
        self.balance, self.features = balance, features
        self._before: dict[int, Snapshot] = {}  # by layer
        self._after: dict[int, Snapshot] = {}

    def arrive(self, recording: Recording) -> None:
        """Forward: the way in has recorded the calls; what of them depends on weights is kept without history."""
        kept: dict[int, torch.Tensor] = {}
        tracked: set[int] = set()

        def detach(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in kept:
                kept[id(tensor)] = tensor.detach() if tensor.requires_grad else tensor
                if tensor.requires_grad:
                    tracked.add(id(tensor))
            return kept[id(tensor)]

        mappings: dict[int, Any] = {}
        self.calls = [replace_tensors(call, detach, mappings) for call in recording.calls]
        self._passed = recording.passed
        self._arrived = all_tensors(self.calls)
        self._tracked |= {id(kept[number]): kept[number] for number in tracked}

    def forward_call(self, place: int) -> Arguments:
        """The arguments of a layer that is about to run forward."""
        call = self.calls[place]
        self._before[place] = snapshot(call)
        if not self._passed:
            return call
        return replace_tensors(call, self.actual, {id(mapping): mapping for mapping, _ in self._before[place]})

    def is_closed(self, place: int) -> bool:
        """True if gradients flow only to the hidden state, and the layer leaves nothing to other layers. What goes on
        between layers is the business of passes that recompute."""
        call = self.calls[place]
        given = list_given(call)
        if self._passed or self.balance is not None or any(True for _ in mappings_in(given)):
            return False
        return not any(tensor.requires_grad or id(tensor) in self._tracked for tensor in tensors_in(given))

    def list_tensors(self, place: int) -> list[torch.Tensor]:
        """The tensors among a layer's arguments."""
        return all_tensors([self.calls[place]])

    def actual(self, tensor: Any) -> Any:
        """The result that an earlier layer returned, for the stand-in in the recorded calls."""
        if id(tensor) not in self._passed:
            return tensor
        place, number = self._passed[id(tensor)]
        return self._results[place][number]

    def watched(self) -> AbstractContextManager[None]:
        """A layer runs forward inside."""
        return nullcontext() if self.balance is None else self.balance.forward()

    def has_run(self, place: int, results: Sequence[Any]) -> None:
        """Forward: what the layer returned for later ones or wrote into shared mappings, gradients flow to."""
        if any(maker == place for maker, _ in self._passed.values()):
            self._results[place] = results
            self._tracked |= {id(t): t for t in tensors_in(results[1:]) if t.is_floating_point()}
        self._after[place] = snapshot(self.calls[place])
        for tensor in written(self._before[place], self._after[place]):
            self._tracked[id(tensor)] = tensor

    def crossing(self) -> Crossing:
        return Crossing(self)


class Crossing:
    """One backward pass of one micro-batch: leaves that it was given, outputs that gradients come to."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.features = passage.features
        self._leaves: dict[int, torch.Tensor] = {}
        self._live: list[Arguments] | None = None  # recorded again by this pass, with history
        self.outputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []

    def arrive(self, recording: Recording) -> None:
        """The way in, recorded again: its tensors, with history, for those of the forward pass."""
        calls = self._live = recording.calls
        seen: set[int] = set()
        for forward, live in zip(self._passage._arrived, all_tensors(calls), strict=True):
            if id(forward) not in seen:
                seen.add(id(forward))
                self._expect(forward, live)

    def call(self, place: int) -> Arguments:
        """The arguments of a layer that is about to run again, with leaves for what gradients flow to."""
        if self._live is not None:
            self._copies: dict[int, Any] = {}
            return self._live[place]
        before = dict(index_by_identity(self._passage._before[place]))
        mappings: dict[int, Any] = {}
        for number, (mapping, content) in before.items():
            copied = type(mapping)()
            for key, value in content.items():
                copied[key] = rebuilt(value, self._leaf, mappings)
            mappings[number] = copied
        self._copies = mappings
        return replace_tensors(self._passage.calls[place], self._leaf, mappings)

    def watched(self) -> AbstractContextManager[None]:
        """A layer runs again inside."""
        balance = self._passage.balance
        return nullcontext() if balance is None else balance.again(self.outputs, self.gradients)

    def has_run(self, place: int, results: Sequence[Any]) -> None:
        """Gives the layer's recomputed values the gradients that later layers left for them."""
        passage = self._passage
        if place in passage._results:
            for kept, made in zip(tensors_in(passage._results[place][1:]), tensors_in(results[1:]), strict=True):
                self._expect(kept, made)
        if self._live is not None:
            live = snapshot(self._live[place])
            again = [tensor for _, content in live for tensor in tensors_in(content)]
        else:
            again = [t for mapping, _ in passage._after[place] for t in tensors_in(self._copies[id(mapping)])]
        forward = [t for _, content in passage._after[place] for t in tensors_in(content)]
        new = {id(t) for t in written(passage._before[place], passage._after[place])}
        for kept, made in zip(forward, again, strict=True):
            if id(kept) in new:
                self._expect(kept, made)

    def collect(self) -> None:
        """After backward: the leaves' gradients are added up for the passes to come."""
        for number, leaf in self._leaves.items():
            if leaf.grad is not None:
                held = self._passage._sums.get(number)
                if held is None:
                    self._passage._sums[number] = leaf.grad.float()
                else:
                    held += leaf.grad

    def _leaf(self, tensor: Any) -> Any:
        tensor = self._passage.actual(tensor)
        if id(tensor) not in self._passage._tracked:
            return tensor
        if id(tensor) not in self._leaves:
            self._leaves[id(tensor)] = tensor.detach().requires_grad_()
        return self._leaves[id(tensor)]

    def _expect(self, forward: torch.Tensor, made: torch.Tensor) -> None:
        total = self._passage._sums.pop(id(forward), None)
        if total is not None and made.requires_grad:
            self.outputs.append(made)
            self.gradients.append(total.to(made.dtype))


def replace_tensors(call: Arguments, change: Any, mappings: dict[int, Any]) -> Arguments:
    positional = rebuilt(call.positional, change, mappings)
    keywords = {name: rebuilt(value, change, mappings) for name, value in call.keywords.items()}
    return Arguments(call.keyword, positional, keywords, rebuilt(call.added, change, mappings))


def all_tensors(calls: list[Arguments]) -> list[torch.Tensor]:
    return [tensor for call in calls for tensor in tensors_in(list_given(call))]


def list_given(call: Arguments) -> list[Any]:
    return [call.positional, list(call.keywords.values()), call.added]


def snapshot(call: Arguments) -> Snapshot:
    return [(mapping, dict(mapping)) for mapping in mappings_in([call.positional, list(call.keywords.values())])]


def index_by_identity(held: Snapshot) -> list[tuple[int, tuple[MutableMapping[Any, Any], dict[Any, Any]]]]:
    return [(id(mapping), (mapping, content)) for mapping, content in held]


def written(before: Snapshot, after: Snapshot) -> list[torch.Tensor]:
    """Tensors of floating point that a mapping holds after a layer and did not hold before."""
    known = {id(t) for _, content in before for t in tensors_in(content)}
    return [t for _, content in after for t in tensors_in(content) if id(t) not in known and t.is_floating_point()]
