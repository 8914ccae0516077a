"""The tensors of a step in a flat one: each micro-batch's part of a boundary activation, the head's input."""

from __future__ import annotations

import torch

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.meta.meta_model import MetaModel
from spillway.model.stream.passage import Passage


class Regions:
    """Views of `typed`, which is flat, by offsets in bytes."""

    def __init__(self, meta_model: MetaModel, typed: torch.Tensor) -> None:
        self._meta_model, self._typed = meta_model, typed

    def source(self, offset: int, place: int, batch: MicroBatch, passage: Passage) -> torch.Tensor:
        """The input of a stage. The embedding's rows lie one after the other, whatever a boundary's width."""
        columns = self._meta_model.columns
        if place > 0 or columns == self._meta_model.width:
            return self.input(offset, place, batch, passage)
        rows = self._at(offset + batch.first * columns * self._typed.element_size(), batch.tokens * columns)
        return rows.view(batch.tokens, columns)

    def input(self, offset: int, place: int, batch: MicroBatch, passage: Passage) -> torch.Tensor:
        """The place of a stage's input, or of its gradient."""
        meta_model = self._meta_model
        if place > 0:
            shape = passage.shapes[place - 1]
        elif meta_model.simple_entry:
            shape = torch.Size((batch.rows, batch.length, meta_model.columns))
        else:
            shape = torch.Size((batch.tokens, meta_model.columns))
        return self._region(offset, batch)[: shape.numel()].view(shape)

    def output(self, offset: int, place: int, batch: MicroBatch, passage: Passage) -> torch.Tensor:
        """The output of a stage, or its gradient; the last one's lies as the head reads it."""
        shape = passage.shapes[place]
        if place < len(self._meta_model.stages) - 1:
            return self._region(offset, batch)[: shape.numel()].view(shape)
        columns = self._region(offset, batch).view(batch.tokens, -1)[:, : self._meta_model.head_columns]
        return columns.unflatten(0, (batch.rows, batch.length))

    def head_input(self, offset: int, tokens: int) -> torch.Tensor:
        """[tokens, columns] of what the head is given, or its gradient."""
        flat = self._at(offset, tokens * self._meta_model.width)
        return flat.view(tokens, self._meta_model.width)[:, : self._meta_model.head_columns]

    def sums(self, offset: int, tokens: int) -> torch.Tensor:
        """fp32 [tokens, columns] of the head's accumulator."""
        width, columns = self._meta_model.width, self._meta_model.head_columns
        flat = self._typed.view(torch.float32)[offset // 4 :][: tokens * width]
        return flat.view(tokens, width)[:, :columns]

    def table(self, offset: int, rows: int) -> torch.Tensor:
        """[rows, columns] of a slice of the head's matrix."""
        columns = self._meta_model.head_columns
        return self._at(offset, rows * columns).view(rows, columns)

    def _at(self, offset: int, elements: int) -> torch.Tensor:
        first = offset // self._typed.element_size()
        return self._typed[first : first + elements]

    def _region(self, offset: int, batch: MicroBatch) -> torch.Tensor:
        """A micro-batch's part of a boundary activation."""
        width = self._meta_model.width
        return self._at(offset + batch.first * width * self._typed.element_size(), batch.tokens * width)
