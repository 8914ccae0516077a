"""What PyTorch's part of a step costs here: seconds of every kind of visit and the peak of its temporaries.

Measured, before anything is allocated, by the stream itself on a model of the same width with one layer of each kind
and one slice of the vocabulary.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import PreTrainedConfig

from spillway import _engine
from spillway.hf import heap
from spillway.hf.bare import BareEngine, BareVisit, count, mapped, on_device
from spillway.hf.building import build
from spillway.hf.describe import WorkSize, describe, slice_rows
from spillway.hf.freeze import freeze_kinds
from spillway.hf.microbatch import Work, arrange
from spillway.hf.own import OwnConfig
from spillway.hf.place import HOST, Place
from spillway.hf.prologue import Arguments, Prologue
from spillway.hf.shrink import fewer_layers
from spillway.hf.skeleton import Skeleton
from spillway.hf.stream import Stream
from spillway.hf.subspaces import choose_kinds
from spillway.protocol import Batch

if TYPE_CHECKING:
    from spillway.protocol import WorkShape

BYTES_PER_TOKEN = 64  # ids, labels, positions, running log-sum-exp: what a step keeps for every token besides states
SLACK = 0.35  # of the working set: holes of the heap, and huge pages that fill them (0.25 seen at 1.5 G parameters)
DEVICE_SLACK = 0.2  # the same on a GPU, whose allocator keeps blocks that it has split
LONG = 10.0  # seconds; a step longer than this is measured once, shorter ones several times:
LEAST_RUNS, MOST_RUNS, LEAST_SECONDS = 4, 40, 2.0  # so often, and so long; the first half warms up


STREAMED = ("forward", "head_loss", "head_gradient", "backward")  # visits with weights


@dataclass(frozen=True)
class Rehearsed:
    process_bytes: int  # in memory before: interpreter, libraries, the skeleton
    work_bytes: int  # PyTorch's temporaries at their peak, beyond that
    seconds: dict[str, float]  # by kind of visit, at the largest step, all micro-batches
    device_bytes: int = 0  # PyTorch's temporaries on a GPU at their peak
    per_token: tuple[float, float] = (0.0, 0.0)  # by which both grow with the tokens of a micro-batch, when asked for


class LossKernels(Protocol):
    """The part of spillway._engine.Engine that computes."""

    def loss_stats(self, logits: Any, first_row: int, labels: Any, maximum: Any, sum: Any, gold: Any) -> None: ...
    def loss_gradient(
        self, logits: Any, first_row: int, labels: Any, maximum: Any, log_sum: Any, scale: float
    ) -> None: ...


class TimedEngine(BareEngine):
    """Takes gradients as the engine does, keeps none, and keeps the seconds of every visit."""

    def __init__(
        self, description: dict[str, Any], several: bool, kernels: LossKernels | None, place: Place = HOST
    ) -> None:
        """`several`: gradients are summed over micro-batches. `kernels`: None for slow ones of its own."""
        super().__init__(description, keep=False, device=place.device)
        self._place = place
        largest = max(count(tensor["shape"]) for tensor in self.tensors)
        taken = mapped(4 * largest) if place.device.type == "cpu" else on_device(4 * largest, place.device)
        self._taken = taken.view(torch.float32 if several else self.dtype)
        if kernels is not None:
            self.loss_stats = kernels.loss_stats  # type: ignore[method-assign]
            self.loss_gradient = kernels.loss_gradient  # type: ignore[method-assign]
        self.cold = True  # weights come from memory, as for the first micro-batch of a visit, not from caches
        self.seconds: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
        self.aside = 0.0  # seconds that no run has
        self._tail = max(self._layers)
        self._began = 0.0

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        super().gradient(tensor, values, micro_batch)
        self._taken[: values.numel()].copy_(values.view(-1))

    def head_gradient(self, values: torch.Tensor, micro_batch: int) -> None:
        self._taken[: values.numel()].copy_(values.view(-1))

    def next_visit(self) -> BareVisit:
        visit = super().next_visit()
        if self.cold and visit.kind in STREAMED and self._place.device.type == "cpu":
            self._forget(visit)
        self._place.settle()
        self._began = time.perf_counter()
        return visit

    def _forget(self, visit: BareVisit) -> None:
        """In a run all other blocks have been computed since, so weights come from memory and gradients go there."""
        columns = self.tensors[self._head_tensor()]["shape"][1]
        elements = visit.rows * columns or self._block_elements(visit.block)
        began = time.perf_counter()
        _engine.drop_from_caches(self._arena.data_ptr() + visit.weights, self._bytes(elements))
        _engine.drop_from_caches(self._taken.data_ptr(), self._taken.nbytes)
        self.aside += time.perf_counter() - began

    def end_visit(self) -> None:
        self._place.settle()
        seconds = time.perf_counter() - self._began
        tail = "tail_" if self._visit.block == self._tail and self._visit.kind in ("forward", "backward") else ""
        self.seconds[self.cold][tail + self._visit.kind].append(seconds)
        super().end_visit()

    def in_visits(self) -> float:
        """Seconds of all visits so far."""
        return sum(sum(map(sum, kinds.values())) for kinds in self.seconds.values())


def rehearse(
    skeleton: Skeleton,
    compute_dtype: str,
    shape: WorkShape,
    packing: bool,
    unneeded: Collection[str] = (),
    kernels: LossKernels | None = None,
    place: Place = HOST,
    half: bool = False,
) -> Rehearsed:
    """Runs the largest micro-batch of `shape` a few times. `half`: before, one with rows of half the length, to know
    how memory grows with them. `skeleton` itself is not touched."""
    before = heap.resident()
    small = narrow_copy(skeleton)
    if skeleton.adapters is not None:
        skeleton.adapters.like(small)
    freeze_kinds(small, skeleton)
    choose_kinds(small, skeleton)
    tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
    engine = TimedEngine(describe(small, WorkSize(1, tokens), compute_dtype), shape.micro_batches > 1, kernels, place)
    fill(engine)
    with_arena, anonymous = heap.resident(), heap.anonymous()
    held = place.watch_peak()
    stream = Stream(small, engine, 0, unneeded, place=place)
    train = sample(small, shape.batch, shape.length, packing)
    between: list[float] = []
    with heap.PeakWatch() as watch:
        if half:
            stream.step(sample(small, shape.batch, max(1, shape.length // 2), packing), {}, 0)
        before_whole = heap.anonymous(), place.peak()
        engine.seconds = {True: defaultdict(list), False: defaultdict(list)}
        warm_up = run(stream, engine, train, between)
        after_whole = heap.anonymous(), place.peak()
        heap.use_huge_pages()
        for number in range(runs_after(warm_up)):
            engine.cold = shape.micro_batches == 1 or number % 2 == 0
            run(stream, engine, train, between)
        seconds = seconds_of(engine, between, shape)
        if not packing:  # rows of many lengths: the products that PyTorch keeps for each, as many as it will keep
            for length in sorted({shape.length * part // 8 for part in (7, 6, 5)} - {0, 1}):
                stream.step(sample(small, shape.batch, length, packing), {}, 0)
        if shape.eval_batch * shape.eval_length > shape.batch * shape.length:
            stream.evaluate(sample(small, shape.eval_batch, shape.eval_length, packing))
    kept = tokens * BYTES_PER_TOKEN + (masks(small, train, place) if packing else 0)
    # The heap keeps what it was given. Libraries' pages may leave meanwhile, where memory is short, and lower the peak.
    work_bytes = max(0, watch.bytes - with_arena, heap.anonymous() - anonymous) + (shape.micro_batches - 1) * kept
    device_bytes = max(0, place.peak() - held) + (shape.micro_batches - 1) * kept
    more = max(1, shape.batch * (shape.length - shape.length // 2))
    growth = [max(0, now - then) / more for now, then in zip(after_whole, before_whole, strict=True)]
    stream.close()
    del stream, engine
    heap.give_back()
    place.give_back()
    return Rehearsed(
        before,
        int(work_bytes * (1 + SLACK)),
        seconds,
        int(device_bytes * (1 + DEVICE_SLACK)),
        (growth[0] * (1 + SLACK), growth[1] * (1 + DEVICE_SLACK)) if half else (0.0, 0.0),
    )


def narrow_copy(skeleton: Skeleton) -> Skeleton:
    """With as few layers as its class can be built with."""
    least = 1 if skeleton.own_tail else 2
    for layers in (least, 2, 4):
        try:
            return build(narrow(skeleton.config, skeleton, layers), skeleton.dtype)
        except Exception as error:  # of whatever kind a class's own checks are
            refused = error
    raise refused


def narrow(config: PreTrainedConfig | OwnConfig, skeleton: Skeleton, layers: int) -> PreTrainedConfig | OwnConfig:
    """The same widths, one layer of each kind, one slice of the vocabulary."""
    vocabulary = slice_rows(skeleton.vocabulary, skeleton.columns)
    if isinstance(config, OwnConfig):
        return config.cut(layers, vocabulary)
    small = fewer_layers(config, layers, vocab_size=vocabulary)
    if getattr(small, "pad_token_id", None) is not None:
        small.pad_token_id = min(small.pad_token_id, small.vocab_size - 1)
    return small


def fill(engine: BareEngine) -> None:
    """Weights of a usual size: zeros would run faster than a model does, in some places."""
    generator = torch.Generator(engine.memory().device).manual_seed(0)
    for number, tensor in enumerate(engine.tensors):
        weight = engine.weight(number)
        if len(tensor["shape"]) == 1:
            weight.fill_(1.0)
        else:
            weight.normal_(0, 0.02, generator=generator)


def sample(skeleton: Skeleton, rows: int, length: int, packed: bool) -> Work:
    """One micro-batch in which every token has a label, as many as there can be; packed: two rows in each."""
    ids = torch.randint(0, skeleton.vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    positions = None
    if packed and length > 1:
        half = length // 2
        positions = torch.cat([torch.arange(half), torch.arange(length - half)]).expand(rows, length)
    return arrange([Batch(ids, ids, positions, rows * length)])


def run(stream: Stream, engine: TimedEngine, work: Work, between: list[float]) -> float:
    """Seconds of one step; what lies outside its visits goes to `between`."""
    visits, aside = engine.in_visits(), engine.aside
    began = time.perf_counter()
    stream.step(work, {}, 0)
    seconds = time.perf_counter() - began - (engine.aside - aside)
    between.append(seconds - (engine.in_visits() - visits))
    return seconds


def runs_after(warm_up: float) -> int:
    """Of at most twice the seconds of those that follow."""
    if warm_up > LONG:
        return 1
    return max(LEAST_RUNS, min(MOST_RUNS, math.ceil(2 * LEAST_SECONDS / warm_up)))


def masks(skeleton: Skeleton, work: Work, place: Place = HOST) -> int:
    """Bytes of what the layers are given besides the hidden state: kept for every packed micro-batch of a step."""
    if not skeleton.simple_entry:
        return 0
    return argument_bytes(Prologue(skeleton, place.device).record(work.to(place.device).micro_batches[:1])[0].calls)


def argument_bytes(calls: list[Arguments]) -> int:
    """Bytes of the tensors that the layers are given besides the hidden state, each counted once."""
    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            visit(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item)

    for call in calls:
        visit([call.positional, call.keywords])
    return sum(storages.values())


def seconds_of(engine: TimedEngine, between: list[float], shape: WorkShape) -> dict[str, float]:
    """Medians over the later half of the runs: PyTorch's heap and caches take a few to settle."""

    def median(kind: str, cold: bool) -> float:
        values = engine.seconds[cold][kind]
        return statistics.median(values[len(values) // 2 :]) if values else 0.0

    def visit(kind: str) -> float:
        first = median(kind, True)
        return first + (shape.micro_batches - 1) * (median(kind, False) or first)

    kinds = ("forward", "backward", "tail_forward", "tail_backward", "head_loss", "head_gradient")
    found = {kind: visit(kind) for kind in kinds}
    found["prologue"] = statistics.median(between[len(between) // 2 :]) * shape.micro_batches
    return found
