"""The engine's contract in plain PyTorch: everything in memory, nothing moves, nothing is updated.

For the probe (gradients are looked at) and the dry run (they are thrown away). The order of passes, the offsets and
the layout of a block are those of the C++ engine.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from spillway import _engine
from spillway._engine import BlockRole, Description, Form, StepResult, StepUpdate, TensorSpec, Training
from spillway.model.head.logits import loss_gradient, loss_stats
from spillway.model.layers.pieces import AT_ONCE
from spillway.model.meta.describe import CHUNK_ELEMENTS, slice_rows
from spillway.model.source.source import DTYPES

TENSOR_ALIGNMENT = 64  # elements, state::kTensorAlignment
INSIDE = ("wants_whole_gradient", "signs")


@dataclass
class PlainPass:
    """See BlockPass in _engine.pyi."""

    kind: str
    block: int = 0
    slice: int = 0
    first_row: int = 0
    rows: int = 0
    weights: int = 0
    input: int = 0
    output: int = 0
    hidden_gradient: int = 0
    accumulator: int = 0
    spilled: int = 0
    spilled_bytes: int = 0
    features: int = 0
    feature_bytes: int = 0


class PlainEngine:
    """Weights, boundary activations and scratch in one arena; gradients summed in fp32 by tensor when `keep`."""

    def __init__(
        self,
        description: Description,
        keep: bool = True,
        chunk_elements: int = CHUNK_ELEMENTS,
        device: torch.device | None = None,
        touch: bool = True,
    ) -> None:
        """`touch`: all of the arena is in memory from the start; else what is written to is."""
        self._touch = touch
        self._device = device or torch.device("cpu")
        self.description = description
        self.dtype = DTYPES[description.compute_dtype]
        self.blocks = description.blocks
        self.tensors = [tensor for block in self.blocks for tensor in block.tensors]
        self.gradients: dict[int, torch.Tensor] = {}
        self._keep = keep
        self._chunk_elements = chunk_elements
        self._hidden = description.hidden_size
        self._layers = [b for b, block in enumerate(self.blocks) if block.role is BlockRole.layer]
        self._head = 0 if description.tied_head else len(self.blocks) - 1
        self._lay_out()
        self._projections: _engine.Projections | None = None
        if any(tensor.training is Training.reduced for tensor in self.tensors):
            self._projections = _engine.Projections(description)
        self._ids = torch.empty(0, dtype=torch.int64)
        self._passes: Iterator[PlainPass] = iter(())
        self._pass = PlainPass("end")

    @property
    def arena_bytes(self) -> int:
        return self._arena.numel()

    def memory(self) -> torch.Tensor:
        return self._arena

    def device_memory(self) -> torch.Tensor:
        return self._arena

    def tensor_offset(self, tensor: int) -> int:
        return self._offsets[tensor]

    def weight(self, tensor: int) -> torch.Tensor:
        """A tensor's compute weight, in place; of one in pieces the place that they share."""
        shape = self._held_shape(self.tensors[tensor])
        first = self._block_first[self._block_of[tensor]] + self._offsets[tensor]
        weight = self._typed[first : first + self._places(self.tensors[tensor])]
        return weight.view(torch.float32 if self._is_fp32(self.tensors[tensor]) else self.dtype).view(shape)

    def begin_step(
        self, ids: torch.Tensor, counts: list[int], training: bool, update: StepUpdate | None = None
    ) -> None:
        if sum(counts) != ids.numel() or ids.numel() > self.description.tokens:
            raise ValueError(f"{sum(counts)} tokens, {ids.numel()} ids, room for {self.description.tokens}")
        self._ids = ids.to(self._device)
        self.gradients = {}
        self._passes = self._schedule(training)

    def embedding_forward(self, output: torch.Tensor | None = None) -> None:
        first = self._boundary_at_element[0]
        columns = self.tensors[0].shape[1]
        boundary = self._typed[first : first + self._ids.numel() * columns].view(-1, columns)
        torch.index_select(self.weight(0), 0, self._ids, out=boundary if output is None else output)

    def next_pass(self) -> PlainPass:
        self._pass = next(self._passes)
        return self._pass

    def end_pass(self) -> None:
        self._pass = PlainPass("end")

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        if self._block_of[tensor] != self._pass.block or list(values.shape) != self._shape(tensor):
            raise ValueError(f"gradient of {self.tensors[tensor].name} in a pass of block {self._pass.block}")
        self._add(tensor, slice(None), values)

    def can_lend_sums(self) -> bool:
        return False

    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[torch.Tensor, bool]:
        raise NotImplementedError

    def end_sum(self, tensor: int, micro_batch: int) -> None:
        return

    def head_gradient(self, values: torch.Tensor, micro_batch: int) -> None:
        first = self._pass.first_row
        self._add(self._head_tensor(), slice(first, first + self._pass.rows), values)

    def embedding_backward(self, values: torch.Tensor) -> None:
        if self._keep:
            self._sum_of(0).index_add_(0, self._ids, values.float())

    def end_step(self, update: StepUpdate) -> StepResult:
        if self._projections is not None:
            self._projections.end_step()
        return StepResult()

    def __getattr__(self, name: str) -> Any:
        """Methods of reduced gradients that passes call."""
        if name in INSIDE and self._projections is not None:
            return getattr(self._projections, name)
        raise AttributeError(name)

    def whole_gradient(self, tensor: int, gradient: torch.Tensor) -> None:
        assert self._projections is not None
        self._projections.whole_gradient(tensor, gradient.cpu())

    def sample(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        return

    def compress(self, tensor: int, side: int, tokens: torch.Tensor, out: torch.Tensor) -> None:
        assert self._projections is not None
        if out.device.type == "cpu":
            self._projections.compress(tensor, side, tokens, out)
        else:
            out.zero_()  # the engine's kernels are not in reach here; beside the products theirs is a small part

    def _shape(self, tensor: int) -> list[int]:
        """The shape of a gradient."""
        rank = self.tensors[tensor].rank
        return [rank, rank] if rank else self.tensors[tensor].shape

    def loss_scale(self) -> tuple[float, int]:
        return 1.0, 0

    def loss_stats(self, *arguments: Any) -> None:
        loss_stats(*arguments)

    def loss_gradient(self, *arguments: Any) -> None:
        loss_gradient(*arguments)

    def _schedule(self, training: bool) -> Iterator[PlainPass]:
        last = len(self._layers)
        for place, block in enumerate(self._layers):
            yield PlainPass("forward", block, weights=self._weights_at(block), input=self._boundary_at(place),
                            output=self._boundary_at(place + 1))  # fmt: skip
        for kind in ("head_loss", "head_gradient") if training else ("head_loss",):
            for number, (first, rows) in enumerate(self._slices()):
                columns = self.tensors[self._head_tensor()].shape[1]
                weights = self._weights_at(self._head) + self._bytes(first * columns)
                sums = self._sums_at if kind == "head_gradient" else 0
                yield PlainPass(
                    kind, self._head, number, first, rows, weights, self._boundary_at(last), accumulator=sums
                )
        if training:
            for place in reversed(range(last)):
                block = self._layers[place]
                yield PlainPass("backward", block, weights=self._weights_at(block), input=self._boundary_at(place),
                                hidden_gradient=self._gradient_at,
                                accumulator=self._sums_at if place == last - 1 else 0)  # fmt: skip
            yield PlainPass("embedding_backward", hidden_gradient=self._gradient_at)
        yield PlainPass("end")

    def _slices(self) -> Iterator[tuple[int, int]]:
        rows, columns = self.tensors[self._head_tensor()].shape
        height = slice_rows(rows, columns, self._chunk_elements, self.description.virtual_ranks)
        for first in range(0, rows, height):
            yield first, min(height, rows - first)

    def _lay_out(self) -> None:
        self._offsets: list[int] = []
        self._block_of: list[int] = []
        self._block_first: list[int] = []
        self._block_whole: list[int] = []  # elements of the tensors that are not in pieces, gaps included
        end = 0
        for number, block in enumerate(self.blocks):
            self._block_first.append(end)
            at = 0
            whole = [tensor for tensor in block.tensors if not self._is_in_pieces(tensor)]
            pieces_at = sum(aligned(self._places(tensor)) for tensor in whole)  # one place for those of any tensor
            for tensor in block.tensors:
                self._offsets.append(pieces_at if self._is_in_pieces(tensor) else at)
                self._block_of.append(number)
                at += 0 if self._is_in_pieces(tensor) else aligned(self._places(tensor))
            self._block_whole.append(at)
            pieces = [self._places(tensor) for tensor in block.tensors if self._is_in_pieces(tensor)]
            end += at + aligned(max(pieces, default=0))
        boundary = aligned(self.description.tokens * self._hidden)
        self._boundary_at_element = [end + place * boundary for place in range(len(self._layers) + 1)]
        end += boundary * (len(self._layers) + 1)
        self._gradient_at = self._bytes(end)
        self._sums_at = self._bytes(end + boundary)
        self._arena = self._map(self._bytes(end + boundary) + 4 * boundary, self._touch)
        self._typed = self._arena.view(self.dtype)

    def _map(self, size: int, touch: bool = True) -> torch.Tensor:
        """So many bytes where layers compute."""
        return mapped(size, touch) if self._device.type == "cpu" else on_device(size, self._device)

    def _is_fp32(self, tensor: TensorSpec) -> bool:
        return tensor.form is Form.fp32 and self.dtype != torch.float32

    def _is_in_pieces(self, tensor: TensorSpec) -> bool:
        """True if passes ask for a few of its parts at a time (`layers.pieces`)."""
        return tensor.pieces > 0 and getattr(self, "convert_pieces", None) is not None

    def _held_shape(self, tensor: TensorSpec) -> list[int]:
        """The shape of the values that are held at once."""
        return [min(AT_ONCE, tensor.pieces), *tensor.shape[1:]] if self._is_in_pieces(tensor) else tensor.shape

    def _places(self, tensor: TensorSpec) -> int:
        """Elements of the compute type that it takes."""
        return count(self._held_shape(tensor)) * (2 if self._is_fp32(tensor) else 1)

    def _bytes(self, elements: int) -> int:
        return elements * self.dtype.itemsize

    def _weights_at(self, block: int) -> int:
        return self._bytes(self._block_first[block])

    def _boundary_at(self, place: int) -> int:
        return self._bytes(self._boundary_at_element[place])

    def _head_tensor(self) -> int:
        return 0 if self._head == 0 else len(self.tensors) - 1

    def _sum_of(self, tensor: int) -> torch.Tensor:
        if tensor not in self.gradients:
            self.gradients[tensor] = torch.zeros(self._shape(tensor))
        return self.gradients[tensor]

    def _add(self, tensor: int, rows: slice, values: torch.Tensor) -> None:
        if self._keep:
            self._sum_of(tensor)[rows] += values


def count(shape: list[int]) -> int:
    return torch.Size(shape).numel()


def mapped(size: int, touch: bool = True) -> torch.Tensor:
    """Zeroed bytes, mapped by themselves: leaving, they leave no hole in the heap. `touch`: they are in memory."""
    tensor = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    return tensor.zero_() if touch else tensor


def on_device(size: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=device)


def aligned(elements: int) -> int:
    return -(-elements // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
