"""A step over the engine's visits: the engine says whose turn it is and where its bytes lie, this computes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spillway.hf.head import HeadPass, Scratch, Watch
from spillway.hf.layer import StreamedLayer, slots_of
from spillway.hf.microbatch import MicroBatch, Work
from spillway.hf.prologue import Arguments, Prologue
from spillway.hf.skeleton import Skeleton

if TYPE_CHECKING:
    from spillway._engine import Engine, Visit
    from spillway.hf.bare import BareEngine, BareVisit


@dataclass(frozen=True)
class Outcome:
    """What a step or an evaluation gave."""

    loss_sum: float
    label_tokens: int
    update: dict[str, float]  # what Engine.end_step returned; empty for an evaluation


class Stream:
    """Runs a skeleton on a started engine. One step at a time."""

    def __init__(
        self,
        skeleton: Skeleton,
        engine: Engine | BareEngine,
        seed: int,
        unneeded: Collection[str] = (),
        after_visit: Callable[[], None] = lambda: None,
    ) -> None:
        """`seed`: of dropout, drawn anew for every (step, micro-batch, layer). `unneeded`: linear layers that need
        not be computed again in backward, as `probe.prove` found them. `after_visit` is called between visits, when
        PyTorch holds no temporaries.
        """
        self._skeleton = skeleton
        self._engine = engine
        self._arena = as_tensor(engine.memory())
        self._typed = self._arena.view(skeleton.dtype)
        self._prologue = Prologue(skeleton)
        self._scratch = Scratch()
        self._micro_batch = 0  # whose gradients are being handed over
        self._stack = self._streamed_layers(unneeded)
        self._dropout = Dropout(skeleton, seed)
        self._after_visit = after_visit

    def step(self, work: Work, update: dict[str, float], step: int) -> Outcome:
        """One optimizer step, number `step` (for dropout alone); `update` goes to Engine.end_step."""
        return Outcome(self.gradients(work, update, step), work.label_tokens, self.update(update))

    def gradients(self, work: Work, update: dict[str, float], step: int) -> float:
        """The first part of a step, up to its gradients: the summed loss. `update`: a guess at what `update` gets."""
        return self._run(work, True, update, step)

    def update(self, update: dict[str, float]) -> dict[str, float]:
        """The last part of a step: what Engine.end_step returns."""
        return self._engine.end_step(update)

    def evaluate(self, work: Work, watch: Watch | None = None) -> Outcome:
        """The loss alone; nothing changes. `watch` sees the logits of labelled tokens, slice by slice."""
        return Outcome(self._run(work, False, {}, 0, watch), work.label_tokens, self._engine.end_step({}))

    def close(self) -> None:
        """Lets go of the engine's memory, which may be unmapped from here on."""
        for layer in self._stack:
            layer.release()
        del self._arena, self._typed

    def _run(
        self, work: Work, training: bool, update: dict[str, float], step: int, watch: Watch | None = None
    ) -> float:
        self._skeleton.train(training)
        self._engine.begin_step(work.ids, work.counts, training, update if training else None)
        self._engine.embedding_forward(None)
        calls = self._prologue.record(work.micro_batches)
        head = HeadPass(self._engine, work.micro_batches, work.label_tokens, self._scratch, watch)
        turn = Turn(work, calls, head)
        with self._dropout.step(step, training):
            while (visit := self._engine.next_visit()).kind != "end":
                self._visit(visit, turn)
                self._engine.end_visit()
                self._after_visit()
        return head.loss()

    def _visit(self, visit: Visit | BareVisit, turn: Turn) -> None:
        if visit.kind == "forward":
            self._forward(visit, turn)
        elif visit.kind == "head_loss":
            turn.head.add_loss(self._hidden(visit.input, turn), self._table(visit), visit.first_row)
        elif visit.kind == "head_gradient":
            sums = self._sums(visit.accumulator, turn)
            turn.head.add_gradient(self._hidden(visit.input, turn), self._table(visit), visit.first_row, sums)
        elif visit.kind == "backward":
            self._backward(visit, turn)
        else:
            self._embedding_backward(visit, turn)

    def _forward(self, visit: Visit | BareVisit, turn: Turn) -> None:
        place = visit.block - 1
        layer = self._bound(visit)
        source, target = self._hidden(visit.input, turn), self._hidden(visit.output, turn)
        for batch in turn.work.micro_batches:
            self._dropout.seed(batch.index, place)
            output = layer.forward(self._rows(source, batch), turn.calls[batch.index][place])
            self._rows(target, batch).copy_(output)

    def _backward(self, visit: Visit | BareVisit, turn: Turn) -> None:
        place = visit.block - 1
        layer = self._bound(visit)
        source, gradient = self._hidden(visit.input, turn), self._hidden(visit.hidden_gradient, turn)
        if place == len(self._stack) - 1:
            turn.head.spread(self._sums(visit.accumulator, turn), gradient)
        for batch in turn.work.micro_batches:
            self._micro_batch = batch.index
            self._dropout.seed(batch.index, place)
            layer.backward(self._rows(source, batch), self._rows(gradient, batch), turn.calls[batch.index][place])
        turn.hidden_gradient = visit.hidden_gradient

    def _embedding_backward(self, visit: Visit | BareVisit, turn: Turn) -> None:
        gradient = self._hidden(turn.hidden_gradient, turn)
        padding = self._skeleton.embedding.padding_idx
        if padding is not None:  # as nn.Embedding does: this row learns nothing from being read
            gradient[turn.work.ids == padding] = 0
        self._engine.embedding_backward(gradient)

    def _streamed_layers(self, unneeded: Collection[str]) -> list[StreamedLayer]:
        layers, first = [], 1  # tensor 0 is the embedding's table
        for module in self._skeleton.stack:
            slots = slots_of(module, first, self._engine.tensor_offset)
            layers.append(StreamedLayer(module, slots, self._hand_over, unneeded))
            first += len(slots)
        return layers

    def _hand_over(self, tensor: int, gradient: torch.Tensor) -> None:
        self._engine.gradient(tensor, gradient, self._micro_batch)

    def _bound(self, visit: Visit | BareVisit) -> StreamedLayer:
        layer = self._stack[visit.block - 1]
        layer.bind(self._typed, visit.weights // self._typed.element_size())
        return layer

    def _view(self, flat: torch.Tensor, offset: int, rows: int) -> torch.Tensor:
        columns = self._skeleton.hidden_size
        first = offset // flat.element_size()
        return flat[first : first + rows * columns].view(rows, columns)

    def _hidden(self, offset: int, turn: Turn) -> torch.Tensor:
        return self._view(self._typed, offset, turn.work.tokens)

    def _sums(self, offset: int, turn: Turn) -> torch.Tensor:
        return self._view(self._arena.view(torch.float32), offset, turn.work.tokens)

    def _table(self, visit: Visit | BareVisit) -> torch.Tensor:
        return self._view(self._typed, visit.weights, visit.rows)

    def _rows(self, hidden: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return batch.part(hidden).view(batch.rows, batch.length, -1)


@dataclass
class Turn:
    """What the visits of one step share."""

    work: Work
    calls: list[list[Arguments]]  # by micro-batch, then by place in the stack
    head: HeadPass
    hidden_gradient: int = 0  # offset of d loss / d hidden after the last backward visit


class Dropout:
    """Random numbers that are a function of (seed, step, micro-batch, layer), so that a recomputed layer drops alike.

    Costs nothing for a model without dropout; leaves PyTorch's own generator as it was.
    """

    def __init__(self, skeleton: Skeleton, seed: int) -> None:
        self._active = uses_dropout(skeleton)
        self._seed = seed
        self._step = 0
        self._training = False

    def step(self, step: int, training: bool) -> AbstractContextManager[None]:
        self._step, self._training = step, training
        forked: AbstractContextManager[None] = torch.random.fork_rng(devices=[], enabled=self._active and training)
        return forked

    def seed(self, micro_batch: int, layer: int) -> None:
        if self._active and self._training:
            torch.default_generator.manual_seed(mixed(self._seed, self._step, micro_batch, layer))


def uses_dropout(skeleton: Skeleton) -> bool:
    settings: dict[str, Any] = skeleton.config.to_dict()
    named = any("drop" in key and isinstance(value, int | float) and value > 0 for key, value in settings.items())
    return named or any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in skeleton.model.modules())


def mixed(*numbers: int) -> int:
    """A 63-bit number from several, well spread (splitmix64's finaliser over a running sum)."""
    mask = (1 << 64) - 1
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def as_tensor(array: Any) -> torch.Tensor:
    """Shares the bytes of whatever the engine hands out."""
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_dlpack(array) if hasattr(array, "__dlpack__") else torch.frombuffer(array, dtype=torch.uint8)
