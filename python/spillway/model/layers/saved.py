"""Activations that autograd saves of a layer, from its forward to its backward pass: recomputed, kept, or spilled.

A layer that keeps runs forward with history, under hooks that see every tensor which is saved. What lies in the
engine's memory (the layer's weights, its input) is not held as a view of bytes that are used for something else
meanwhile: a reference stands for it, and leads to where the engine has put it when the backward pass asks. Experts that
are converted in pieces (`pieces`) are such references themselves. Everything
else is PyTorch's own memory, stays, and is counted, each storage once.

A layer that spills runs forward as one that keeps. When a micro-batch's pass has ended, what is PyTorch's own is
copied, storage by storage, to where the engine sends it to a path from, and let go; its backward pass finds it, bit for
bit, where the engine has brought it back. What has no room there recomputes.

All ways give the same bits: the same operations run on the same values, and their backward passes are the same ones.
That a type of model is so is verified (`equivalence`, `saved_profile`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from spillway._engine import PlannedActivations
from spillway.model.layers.pieces import Experts

ALIGNED = 64  # bytes: where storages begin, as PyTorch's own
OF_GRAPH = 2048  # bytes for each tensor that is saved, about: nodes, its record, the object that stands for it


class Saved(enum.Enum):
    """The fate of the activations that autograd saves of a layer."""

    RECOMPUTE = "recompute"  # backward computes it again from the layer's input
    KEEP = "keep"  # it stays in the memory that the layer computes in
    SPILL = "spill"  # the engine sends it to a path, and brings it back for backward


@dataclass(frozen=True)
class SavedChoice:
    """A run's choice for the saved activations of each stage."""

    stages: Mapping[int, Saved] = field(default_factory=dict)  # by place; the others recompute
    most: int | None = None  # bytes that all of them may keep at once; what comes on top recomputes. None: any number

    def fate(self, place: int) -> Saved:
        return self.stages.get(place, Saved.RECOMPUTE)


RECOMPUTE_ALL = SavedChoice()


def choice_of(planned: PlannedActivations | None, slack: float) -> SavedChoice:
    """The choice of a plan; `slack`: what its bytes have beyond those of tensors."""
    if planned is None:
        return RECOMPUTE_ALL
    stages = {block - 1: Saved.KEEP for block in planned.blocks}
    stages |= {block - 1: Saved.SPILL for block in planned.spilled_blocks}
    return SavedChoice(stages, int(planned.bytes / (1 + slack)) + 1)


@dataclass(frozen=True)
class View:
    """Which elements of another tensor, without gaps, a tensor has."""

    first: int
    size: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def from_element(cls, first: int, tensor: torch.Tensor) -> View:
        return cls(first, tensor.size(), tensor.stride())

    def apply(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.first)


@dataclass(frozen=True)
class Reference:
    """A saved tensor that is part of what lies in the engine's memory."""

    of: int
    view: View


class Leaving:
    """A saved tensor whose storage leaves PyTorch's memory: itself, until it has left, and then its place there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self._dtype, self._view = tensor.dtype, View.from_element(tensor.storage_offset(), tensor)
        self._begin, self._bytes = 0, tensor.untyped_storage().nbytes()

    def leave(self, begin: int) -> None:
        """`begin`: the byte of the room at which a copy of its storage begins."""
        self.tensor, self._begin = None, begin

    def locate(self, room: torch.Tensor | None) -> torch.Tensor:
        """It, or where its copy lies in the room that has come back."""
        if self.tensor is not None:
            return self.tensor
        assert room is not None
        whole = self._bytes - self._bytes % self._dtype.itemsize
        return self._view.apply(room[self._begin : self._begin + whole].view(self._dtype))


def move_storages(leaving: Sequence[Leaving], room: torch.Tensor) -> int | None:
    """Copies the storages of these tensors to the start of `room` (bytes) and lets go of them. How many bytes of it
    that takes; None: it has not so many, and nothing has changed."""
    wholes = {address(it.tensor): bytes_of(it.tensor) for it in leaving if it.tensor is not None}
    *begins, end = accumulate((aligned(each.numel()) for each in wholes.values()), initial=0)
    if end > room.numel():
        return None
    for begin, whole in zip(begins, wholes.values(), strict=True):
        room[begin : begin + whole.numel()].copy_(whole)
    begin_of = dict(zip(wholes, begins, strict=True))
    for it in leaving:
        assert it.tensor is not None
        it.leave(begin_of[address(it.tensor)])
    return end


class Packing:
    """The hooks of one layer's forward pass. Autograd holds it as long as the graph lives, so it holds no graph."""

    def __init__(
        self,
        memory: torch.Tensor,
        there: Sequence[torch.Tensor],
        beside: Iterable[torch.Tensor],
        spills: bool = False,
    ) -> None:
        """`memory`: the engine's; `there`: what of the layer lies in it, each without gaps; `beside`: tensors that
        somebody else holds anyway, and that do not change; `spills`: whether `spill` will be called."""
        self.there = list(there)  # where references lead
        self.complete = True  # False: something that is saved lies in the engine's memory and is nothing of `there`
        self._memory = address(memory)
        self._beside = {address(tensor) for tensor in beside}
        self.room: torch.Tensor | None = None  # where what has left has come back to
        self._spills = spills
        self._leaving: list[Leaving] = []
        self._kept: dict[int, int] = {}
        self._tensors = 0

    @property
    def bytes(self) -> int:
        """The bytes of the storages that are kept, and of the graph."""
        return sum(self._kept.values()) + self.graph

    @property
    def graph(self) -> int:
        return self._tensors * OF_GRAPH

    @property
    def room_bytes(self) -> int:
        """The bytes of a room for the storages that are kept."""
        return sum(map(aligned, self._kept.values()))

    def spill(self, room: torch.Tensor) -> int | None:
        """Copies what is kept to the start of `room` (bytes) and lets go of it. How many bytes of it that takes; None:
        it has not so many, and nothing has changed."""
        if (end := move_storages(self._leaving, room)) is not None:
            self._leaving.clear()
            self._kept.clear()
        return end

    def hooks(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | Reference | Leaving:
        """Packs a tensor without its history: an operation that saves its own output would hold itself, as long as no
        backward pass lets go of it."""
        self._tensors += 1
        if isinstance(tensor, Experts):
            return tensor.detach()
        storage = address(tensor)
        if storage == self._memory:
            return self._reference(tensor)
        if storage not in self._beside:
            self._kept[storage] = tensor.untyped_storage().nbytes()
            if self._spills and self._kept[storage] > 0:
                self._leaving.append(Leaving(tensor.detach()))
                return self._leaving[-1]
        return tensor.detach()

    def _reference(self, tensor: torch.Tensor) -> torch.Tensor | Reference:
        at = byte_of(tensor)
        for number, whole in enumerate(self.there):
            if isinstance(whole, Experts):
                continue
            first = at - byte_of(whole)
            if 0 <= first < whole.nbytes and whole.dtype == tensor.dtype:
                return Reference(number, View.from_element(first // tensor.element_size(), tensor))
        self.complete = False
        return tensor.detach()

    def _unpack(self, held: torch.Tensor | Reference | Leaving) -> torch.Tensor:
        if isinstance(held, torch.Tensor):
            return held
        if isinstance(held, Leaving):
            return held.locate(self.room)
        return held.view.apply(self.there[held.of].detach())


class Root(torch.autograd.Function):
    """The start of a backward pass: it leads to the graph of an output without holding its bytes."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, gradient: list[torch.Tensor]) -> torch.Tensor:
        ctx.gradient = gradient
        return output.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient.pop(), None


class SavedPass:
    """One layer's forward pass of one micro-batch, with its history."""

    def __init__(self, packing: Packing, leaf: torch.Tensor, output: torch.Tensor) -> None:
        """`leaf`: the layer's input, which lies in the engine's memory; `output`: what it gave, with history."""
        self.bytes = packing.bytes
        self.graph, self.room_bytes = packing.graph, packing.room_bytes  # see Packing
        self._packing, self._leaf = packing, leaf
        self._first = 0
        self._gradient: list[torch.Tensor] = []
        self._root: torch.Tensor = Root.apply(output, self._gradient)

    def spill(self, room: torch.Tensor, first: int) -> int | None:
        """Spills as Packing.spill does, to `room` from byte `first` on."""
        taken = self._packing.spill(room[first:])
        self.bytes, self._first = self._packing.bytes, first
        return taken

    def backward(
        self, there: Sequence[torch.Tensor], gradient: torch.Tensor, room: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`there`: as `Packing` was given, where it lies now; d loss / d output in, d loss / d input out. `room`: with
        the bytes of the one that it was spilled to, where it was. Once."""
        self._packing.there = list(there)
        self._packing.room = None if room is None else room[self._first :]
        self._gradient.append(gradient)
        torch.autograd.backward([self._root], [self._root.new_empty(0)])
        self._packing.there, self._packing.room = [], None
        return torch.zeros_like(self._leaf) if self._leaf.grad is None else self._leaf.grad


class SavedStep:
    """The activations kept in one step, by stage and micro-batch."""

    def __init__(self, choice: SavedChoice = RECOMPUTE_ALL) -> None:
        self._choice = choice
        self._passes: dict[tuple[int, int], SavedPass] = {}
        self._bytes = 0
        self.kept: dict[tuple[int, int], int] = {}  # bytes of what was kept, by stage and micro-batch
        self.spilled: dict[tuple[int, int], int] = {}  # bytes of what was spilled
        self.graphs: dict[tuple[int, int], int] = {}  # bytes of graphs alone, of both
        self.rooms: dict[tuple[int, int], int] = {}  # bytes of a room for what was kept
        self.most = 0  # bytes of what was kept, and of all graphs, at once
        self._ends: dict[int, int] = {}  # bytes that are taken of the room of a stage

    def keeps(self, place: int) -> bool:
        """Or spills."""
        return self._choice.fate(place) is not Saved.RECOMPUTE

    def spills(self, place: int) -> bool:
        return self._choice.fate(place) is Saved.SPILL

    def add(self, place: int, micro_batch: int, saved: SavedPass | None, room: torch.Tensor | None = None) -> None:
        """Adds a saved pass. A pass that is None or too large recomputes. `room`: of a stage that spills, for all
        micro-batches."""
        if saved is None or (room is not None and not self._spill(place, micro_batch, saved, room)):
            return
        if self._choice.most is not None and self._bytes + saved.bytes > self._choice.most:
            return
        self.graphs[place, micro_batch], self.rooms[place, micro_batch] = saved.graph, saved.room_bytes
        self._passes[place, micro_batch] = saved
        self.kept[place, micro_batch] = saved.bytes
        self._bytes += saved.bytes
        self.most = max(self.most, self._bytes)

    def _spill(self, place: int, micro_batch: int, saved: SavedPass, room: torch.Tensor) -> bool:
        taken = saved.spill(room, first := self._ends.get(place, 0))
        if taken is not None:
            self.spilled[place, micro_batch] = taken
            self._ends[place] = first + taken
        return taken is not None

    def take(self, place: int, micro_batch: int) -> SavedPass | None:
        saved_pass = self._passes.pop((place, micro_batch), None)
        self._bytes -= 0 if saved_pass is None else saved_pass.bytes
        return saved_pass

    def release(self) -> None:
        """Lets go of what no backward pass has taken, of a step that failed."""
        self._passes.clear()


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of its storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def address(tensor: torch.Tensor) -> int:
    """The address of its storage; for one without bytes, in which nothing is computed (`trace`), what tells it from
    others."""
    storage = tensor.untyped_storage()
    return storage._cdata if storage.device.type == "meta" else storage.data_ptr()


def byte_of(tensor: torch.Tensor) -> int:
    """The byte where the tensor begins in its storage."""
    return tensor.storage_offset() * tensor.element_size()
