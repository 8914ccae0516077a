"""An engine without placement or updates that keeps the seconds of every pass, and the steps of a dry run on it."""

from __future__ import annotations

import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from spillway import _engine
from spillway._engine import Description, TensorSpec, Training
from spillway.machine.place import HOST, Place
from spillway.model.layers.kernels import NAMES
from spillway.model.source.source import DTYPES
from spillway.model.stream.plain_engine import PlainEngine, PlainPass, count

if TYPE_CHECKING:
    from spillway.model.batches.microbatch import Work
    from spillway.model.stream.stream import Stream

KINDS = ("forward", "backward", "tail_forward", "tail_backward", "head_loss", "head_gradient")  # of passes
AGAIN = 2.0  # seconds that a step takes at most of which the second one counts
STREAMED = ("forward", "head_loss", "head_gradient", "backward")  # passes with weights


class LossKernels(Protocol):
    """The part of spillway._engine.Engine that computes."""

    def loss_stats(self, logits: Any, first_row: int, labels: Any, maximum: Any, sum: Any, gold: Any) -> None: ...
    def loss_gradient(
        self, logits: Any, first_row: int, labels: Any, maximum: Any, log_sum: Any, scale: float
    ) -> None: ...


class TimedEngine(PlainEngine):
    """Takes gradients as the engine does, keeps none, and keeps the seconds of every pass."""

    def __init__(
        self, description: Description, several: bool, kernels: LossKernels | None, place: Place = HOST
    ) -> None:
        """`several`: gradients are summed over micro-batches. `kernels`: None for slow ones of its own."""
        super().__init__(description, keep=False, device=place.device, touch=False)
        self._place = place
        largest = max((count(it.shape) for it in self.tensors if it.training is not Training.frozen), default=1)
        self._taken = self._map(4 * largest).view(torch.float32 if several else self.dtype)
        if kernels is not None:
            self.loss_stats = kernels.loss_stats  # type: ignore[method-assign]
            self.loss_gradient = kernels.loss_gradient  # type: ignore[method-assign]
            for name in NAMES:
                setattr(self, name, getattr(kernels, name, None))
        self.lends = False  # products add to sums; `several` is true then
        self.cold = True  # weights come from memory, as for the first micro-batch of a pass, not from caches
        self.forget_seconds()
        self.aside = 0.0  # seconds that no run has
        self.kept_blocks: frozenset[int] = frozenset()  # whose passes keep what autograd saves: kinds of their own
        # Checksums of gradients by tensor and micro-batch, of the embedding by (0, -1), where they are asked for.
        self.digests: dict[tuple[int, int], int] | None = None
        self._kept: torch.Tensor | None = None  # where weights are widened from, when they are
        self._tail = max(self._layers)
        self._began = 0.0
        self._touched = 0  # tokens

    def forget_seconds(self) -> None:
        """Begins their record anew: by kind of pass, with weights from memory and with weights from caches."""
        self.seconds: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
        self.between: list[float] = []  # of steps, outside their passes

    def touch(self, tokens: int) -> None:
        """Has in memory what so many tokens take of the arena."""
        if tokens > self._touched and self._place.device.type == "cpu":
            for first, stride in self._regions():
                self._arena[first + self._touched * stride : first + tokens * stride].zero_()
            self._touched = tokens

    def touched_bytes(self) -> int:
        return self._touched * sum(stride for _, stride in self._regions())

    def untouched(self, tokens: int) -> int:
        """Bytes by which touch() would grow the process."""
        return max(0, tokens - self._touched) * sum(stride for _, stride in self._regions())

    def _regions(self) -> list[tuple[int, int]]:
        """First byte and bytes per token of what lies in the arena by token."""
        width = self._bytes(self._hidden)
        boundaries = [(self._bytes(first), width) for first in self._boundary_at_element]
        return [*boundaries, (self._gradient_at, width), (self._sums_at, 4 * self._hidden)]

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        super().gradient(tensor, values, micro_batch)
        self._taken[: values.numel()].copy_(values.view(-1))
        if self.tensors[tensor].training is not Training.reduced:  # which is reduced otherwise in every step
            self._digest((tensor, micro_batch), values)

    def can_lend_sums(self) -> bool:
        return self.lends

    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[torch.Tensor, bool]:
        return self._taken[: count(self._shape(tensor))], False

    def embedding_backward(self, values: torch.Tensor) -> None:
        super().embedding_backward(values)
        self._digest((0, -1), values)

    def _digest(self, of: tuple[int, int], values: torch.Tensor) -> None:
        """Takes up the values in the digest of a pass, which no run makes, so that it does not count as the pass's
        time; but not those of a GPU, whose kernels may add up in any order."""
        if self.digests is None or values.device.type != "cpu":
            return
        began = time.perf_counter()
        self.digests[of] = zlib.crc32(values.detach().contiguous().view(-1).view(torch.uint8).numpy())
        self._leave_out(time.perf_counter() - began)

    def head_gradient(self, values: torch.Tensor, micro_batch: int) -> None:
        self._taken[: values.numel()].copy_(values.view(-1))

    def next_pass(self) -> PlainPass:
        block_pass = super().next_pass()
        if self.cold and block_pass.kind in STREAMED and self._place.device.type == "cpu":
            self._forget(block_pass)
        self._place.settle()
        self._began = time.perf_counter()
        if self.cold and self._converts(block_pass):
            self._weights_in(self._typed, block_pass).copy_(self._weights_in(self._kept, block_pass))
        return block_pass

    def _converts(self, block_pass: PlainPass) -> bool:
        """True if layers multiply by a copy of the pass's weights."""
        if self._kept is None or block_pass.kind not in STREAMED:
            return False
        return self._kept.dtype != self.dtype or any(map(self._has_copy, self.blocks[block_pass.block].tensors))

    def _has_copy(self, tensor: TensorSpec) -> bool:
        return tensor.form.is_packed or self._is_in_pieces(tensor)

    def keep_weights(self) -> None:
        """Keeps the weights as they are now in the type that they are stored in, where layers compute in another. Codes
        are kept as if they were of that type: what they save of the reading, making values of them takes."""
        kept = DTYPES[self.description.weight_dtype]
        if kept != self.dtype or any(map(self._has_copy, self.tensors)):
            weights = self._typed[: self._boundary_at_element[0]]
            self._kept = self._map(weights.numel() * kept.itemsize).view(kept).copy_(weights)

    def convert_pieces(self, tensor: int, first: int, count: int) -> None:
        """Puts so many pieces in their place. They come from memory, as for each micro-batch of a run: a layer has more
        than caches hold. All pieces are kept as the same few."""
        assert self._kept is not None
        at = self._block_first[self._block_of[tensor]] + self._offsets[tensor]
        pieces = self.weight(tensor)[:count].data.view(-1)  # autograd does not count this change
        kept = self._kept[at : at + pieces.numel()]
        if self._place.device.type == "cpu":
            began = time.perf_counter()
            _engine.drop_from_caches(kept.data_ptr(), kept.nbytes)
            self._leave_out(time.perf_counter() - began)
        pieces.copy_(kept)

    def _leave_out(self, seconds: float) -> None:
        """Seconds of the pass that runs that no run has."""
        self._began += seconds
        self.aside += seconds

    def _weights_in(self, memory: torch.Tensor, block_pass: PlainPass) -> torch.Tensor:
        """The weights of a pass, in the arena or as they are kept."""
        of_head = block_pass.rows * self.tensors[self._head_tensor()].shape[1]
        elements = of_head or self._block_whole[block_pass.block]
        first = block_pass.weights // self.dtype.itemsize
        return memory[first : first + elements]

    def _forget(self, block_pass: PlainPass) -> None:
        """In a run all other blocks have been computed since, so weights come from memory and gradients go there."""
        began = time.perf_counter()
        weights = self._weights_in(self._typed if self._kept is None else self._kept, block_pass)
        _engine.drop_from_caches(weights.data_ptr(), weights.nbytes)
        _engine.drop_from_caches(self._taken.data_ptr(), self._taken.nbytes)
        self.aside += time.perf_counter() - began

    def end_pass(self) -> None:
        self._place.settle()
        seconds = time.perf_counter() - self._began
        self.seconds[self.cold][self._kind() + self._pass.kind].append(seconds)
        super().end_pass()

    def _kind(self) -> str:
        """The prefix of a layer pass's name."""
        if self._pass.kind not in ("forward", "backward"):
            return ""
        return "tail_" if self._pass.block == self._tail else "kept_" if self._pass.block in self.kept_blocks else ""

    def in_passes(self) -> float:
        """Seconds of all passes so far."""
        return sum(sum(map(sum, kinds.values())) for kinds in self.seconds.values())

    def pass_seconds(self, kinds: Iterable[str], micro_batches: int) -> dict[str, float]:
        """The seconds of a step's passes by kind: medians over the later half of the runs, since PyTorch's heap and
        caches take a few to settle."""

        def median(cold: bool, kind: str) -> float:
            values = self.seconds[cold][kind]
            return statistics.median(values[len(values) // 2 :]) if values else 0.0

        first = {kind: median(True, kind) for kind in kinds}
        return {kind: it + (micro_batches - 1) * (median(False, kind) or it) for kind, it in first.items()}

    def time_step(self, stream: Stream, work: Work) -> float:
        """Seconds of one step; those outside its passes go to `between`."""
        passes, aside = self.in_passes(), self.aside
        began = time.perf_counter()
        stream.step(work)
        seconds = time.perf_counter() - began - (self.aside - aside)
        self.between.append(seconds - (self.in_passes() - passes))
        return seconds

    def time_settled_step(self, stream: Stream, work: Work) -> None:
        """Runs a step twice, where that is quick, and keeps the second one's seconds: it finds pages in the heap, which
        had given them back, as in a run."""
        for _ in range(2):
            self.forget_seconds()
            if self.time_step(stream, work) > AGAIN:
                return

    def step_seconds(self, micro_batches: int) -> dict[str, float]:
        """Seconds of a step by kind of pass, and those between passes."""
        between = statistics.median(self.between[len(self.between) // 2 :]) * micro_batches
        return self.pass_seconds(KINDS, micro_batches) | {"between": between}
