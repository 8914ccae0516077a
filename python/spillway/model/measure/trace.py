"""The operations of PyTorch's part of a step: a dry run over shapes alone, that computes nothing.

The stream's own code runs on a narrow copy of the model as in a dry run (`dry_run`), on tensors that have shapes and no
bytes (PyTorch's FakeTensorMode, which runs every operation's rule of shapes). Written down are the products, attention
and the bytes that everything else touches, by kind of pass; how far the heap would grow (`heap`); and what autograd
saves of a layer, by the hooks that keep it in a run (`saved`). With the rates of a machine's profile this says of that
machine what a dry run measures here (the engine's plan/operations.h).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from transformers import masking_utils

from spillway import _engine
from spillway._engine import Description, StepResult, StepUpdate, TracedPass
from spillway.model.layers.saved import RECOMPUTE_ALL
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.layers.weight_sums import TYPES, add_product, has_operation
from spillway.model.measure import quick_dry_run, saved_profile
from spillway.model.measure.heap import Heap
from spillway.model.measure.libraries import Libraries
from spillway.model.measure.narrow import NarrowStep, narrow_of_its_kind
from spillway.model.measure.recorder import Operations, Recorder, largest
from spillway.model.measure.saved_profile import SavedProfile
from spillway.model.measure.slack import BRIEF_SLACK, MARGIN, SLACK
from spillway.model.measure.synthetic import sample
from spillway.model.measure.timed_engine import KINDS, TimedEngine
from spillway.model.source.source import text_config
from spillway.model.stream.passage import Passage, replace_tensors
from spillway.model.stream.saved_layers import NOT_ALONE, SHARING, keep_all
from spillway.model.stream.stream import Stream

if TYPE_CHECKING:
    from spillway.model.batches.batch import WorkShape
    from spillway.model.batches.microbatch import Work
    from spillway.model.meta.meta_model import MetaModel
    from spillway.model.stream.plain_engine import PlainPass

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_layer")
OUTSIDE = "between"  # of passes
ONCE = "once"  # for all micro-batches of a step
KEPT = saved_profile.KINDS
HEAD = ("head_loss", "head_gradient")

Passes = dict[str, TracedPass]  # by kind


@dataclass(frozen=True)
class Trace:
    passes: Passes
    bytes: int  # of temporaries at their peak, holes of the heap among them
    tokens: int

    def count_growth(self, shorter: Trace) -> float:
        """Bytes of each token beyond those of a shorter one."""
        return max(0, self.bytes - shorter.bytes) / max(1, self.tokens - shorter.tokens)


@dataclass(frozen=True)
class StepTrace:
    """The figures of PyTorch's part of a step for a described machine's plan."""

    whole: Trace  # of the largest micro-batch
    half: Trace  # of one with rows of half the length
    few: Trace  # of one that is measured first of all
    kept_bytes: int  # that a step has for every micro-batch beyond the first
    saved: SavedProfile

    def work(self) -> _engine.Trace:
        """The trace as the engine takes it, with the slack and the margin of a plan on the machine itself."""
        return _engine.Trace(
            passes=self.whole.passes,
            bytes=self.whole.bytes + self.kept_bytes,
            per_token=self.whole.count_growth(self.half),
            slack=(1 + SLACK) * (1 + MARGIN),
            brief_slack=(1 + SLACK + BRIEF_SLACK) * (1 + MARGIN),
            few=_engine.FewTokens(
                tokens=self.few.tokens,
                passes=self.few.passes,
                most_seconds=quick_dry_run.AS_A_RUN / quick_dry_run.REPEATS,
            ),
        )


def trace_step(
    meta_model: MetaModel,
    compute_dtype: str,
    shape: WorkShape,
    unneeded: Collection[str],
    not_kept: str = "",
    tiles: TokenTiles = ALL_AT_ONCE,
    shorter: StepTrace | None = None,
    fused: bool = False,
) -> StepTrace:
    """Traces the largest micro-batch of `shape`, rows one by one. `not_kept`: why no layer may keep what autograd
    saves. `tiles`: what runs in tiles of tokens. `shorter`: of shorter rows, of which the fewest are not traced again.
    `fused`: kernels stand for norms, SwiGLU and rotary embedding.
    Raises whatever a model's code raises that asks for values."""
    small = narrow_of_its_kind(meta_model, not not_kept, shape.virtual_ranks)
    step = NarrowStep(small, shape, compute_dtype, unneeded, tiles, fused)
    few, tracer = Tracer(step), Tracer(step)
    fewest = shorter.few if shorter else few.trace(*quick_dry_run.shapes(shape.batch, shape.length)[0])
    half = tracer.trace(shape.batch, max(1, shape.length // 2))  # first: the heap keeps what it has grown to
    whole = tracer.trace(shape.batch, shape.length, again=True)
    saved = SavedProfile(why=not_kept)
    if not not_kept:
        passes, saved = tracer.saved(shape.batch, shape.length)
        whole.passes.update(passes)
    kept = step.count_kept(whole.tokens)
    if tiles.head_tokens is not None and shape.largest_share > 1:
        whole.passes.update(tracer.joined_head())
        kept += step.count_head_bytes()
    return StepTrace(whole, half, fewest, kept, saved)


class Tracer:
    """A stream over a narrow copy of the model, and the heap that its steps share."""

    def __init__(self, step: NarrowStep) -> None:
        self._step, self._small, self._shape = step, step.small, step.shape
        self._heap = Heap()
        self._libraries = None if step.fused else Libraries(self._heap)  # on a GPU they have memory of their own
        self._experts = largest(vars(text_config(step.small.config)).items(), EXPERTS)
        self._product = add_product if step.fused and step.small.dtype in TYPES and has_operation() else None
        self._lends = self._product is not None and step.lends

    def trace(self, rows: int, length: int, again: bool = False) -> Trace:
        """`again`: the heap is that of two steps. Where products of a run add to sums, those of the second step do, and
        the passes are its own."""
        work = sample(self._small, rows, length)
        with self._opened() as (stream, engine):
            stream.step(work)
            passes = {kind: engine.describe(kind) for kind in (*KINDS, OUTSIDE)}
            if again:
                engine.lends = self._lends
                stream.step(work)
            if engine.lends:
                passes = {kind: engine.describe(kind) for kind in (*KINDS, OUTSIDE)}
        return Trace(passes, self._heap.most, rows * length)

    def joined_head(self) -> Passes:
        """The head's passes over all micro-batches of a virtual rank, as one micro-batch of them has its part."""
        shape = self._shape
        joined = -(-shape.largest_share // shape.virtual_ranks)
        work = sample(self._small, joined * shape.batch, shape.length)
        with self._opened(work.tokens) as (stream, engine):
            stream.step(work)
            return {kind: engine.describe(kind, joined) for kind in HEAD}

    def saved(self, rows: int, length: int) -> tuple[Passes, SavedProfile]:
        """The trace of a step in which layers keep what autograd saves of them: their passes, and the bytes."""
        choice = keep_all(self._small)
        if not choice.stages:
            return {}, SavedProfile(why=NOT_ALONE)
        work = sample(self._small, rows, length)
        with self._opened() as (stream, engine):
            stream.saved, engine.kept_blocks = choice, frozenset(place + 1 for place in choice.stages)
            engine.lends = self._lends
            stream.step(work)
            saved = stream.last_saved
            passes = {kind: engine.describe(kind) for kind in KEPT}
            stream.saved = RECOMPUTE_ALL
        if not saved.kept:
            return {}, SavedProfile(why=SHARING)
        return passes, saved_profile.profile_of(saved, work.tokens)

    @contextmanager
    def _opened(self, tokens: int = 0) -> Iterator[tuple[TracedStream, TracedEngine]]:
        """Inside nothing is computed. `tokens`: of a step that has more than a micro-batch of the shape, which the heap
        does not see."""
        description = self._step.describe(max(tokens, self._shape.batch * self._shape.length))
        of_gpu = dropout_of_gpu() if self._step.fused else nullcontext()
        with rows_apart(), of_gpu, FakeTensorMode(allow_non_fake_inputs=True) as mode:
            engine = TracedEngine(description, self._step.parts > 1)
            engine.keep_weights()
            stream = self._step.open_stream(TracedStream, engine, product=self._product)
            stream.mode = mode
            lies_in, libraries = (Heap(), None) if tokens else (self._heap, self._libraries)
            recorder = Recorder(lies_in, engine.operations, self._experts, libraries)
            engine.recorder = recorder
            try:
                with recorder:
                    yield stream, engine
            finally:
                stream.close()


@contextmanager
def rows_apart() -> Iterator[None]:
    """Inside nobody looks for rows of a packed sequence in positions, which have no values."""
    known = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # type: ignore[assignment]
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = known


@contextmanager
def dropout_of_gpu() -> Iterator[None]:
    """Inside dropout is one operation, as on a GPU. On a CPU it is three."""
    known = torch.nn.functional.dropout

    def dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(values, p, True)[0] if training and p > 0 else values

    torch.nn.functional.dropout = dropout
    try:
        yield
    finally:
        torch.nn.functional.dropout = known


class TracedStream(Stream):
    """A stream over shapes. Layers' arguments besides the hidden state are made of positions, and are made; then they
    become shapes, too."""

    mode: FakeTensorMode

    def _passages(self, work: Work, balanced: bool = True) -> list[Passage]:
        with _disable_current_modes():
            passages = super()._passages(work, balanced)
        mappings: dict[int, Any] = {}
        for passage in passages:
            passage.calls = [replace_tensors(call, self._shape_of, mappings) for call in passage.calls]
        return passages

    def _shape_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Not of a mask that stands for one of all tokens by all, nor of what stands for a layer's result."""
        plain = type(tensor) is torch.Tensor and tensor.numel() > 0
        return self.mode.from_tensor(tensor) if plain else tensor


class TracedEngine(TimedEngine):
    """Keeps what passes ask of PyTorch, by kind of pass. What a run's engine computes itself it only counts."""

    convert_pieces = None  # type: ignore[assignment]  # weights without bytes are converted as one

    def __init__(self, description: Description, several: bool) -> None:
        super().__init__(description, several, None)
        self.recorder: Recorder | None = None
        self._converting = False
        self._done: dict[str, Operations] = defaultdict(Operations)
        self._counted: Counter[str] = Counter()

    def operations(self) -> Operations:
        """The operations of the pass that runs, to which the next one is added."""
        kind = self._kind() + self._pass.kind if self._pass.kind != "end" else OUTSIDE
        return self._done[kind + ONCE if self._converting else kind]

    def describe(self, kind: str, micro_batches: int = 1) -> TracedPass:
        """The operations of one pass of that kind on average, for one of so many micro-batches that it joins."""
        count = max(1, self._counted[kind]) * micro_batches
        return TracedPass(
            each=operations_of(self._done[kind], count), once=operations_of(self._done[kind + ONCE], count)
        )

    def begin_step(self, *arguments: Any, **keywords: Any) -> None:
        self._done.clear()
        self._counted.clear()
        super().begin_step(*arguments, **keywords)

    def next_pass(self) -> PlainPass:
        self._converting = True
        try:
            return super().next_pass()
        finally:
            self._converting = False

    def end_pass(self) -> None:
        self._counted[self._kind() + self._pass.kind] += 1
        super().end_pass()

    def loss_stats(self, logits: Any, *_: Any) -> None:
        self._count("loss_stats", [logits], [])

    def loss_gradient(self, logits: Any, *_: Any) -> None:
        self._count("loss_gradient", [logits], [logits])

    def rms_norm(self, values: Any, weight: Any, out: Any, *_: Any, addend: Any = None, sum: Any = None) -> None:
        self._count("rms_norm", [values, weight, *list_of(addend)], [out, *list_of(sum)])

    def rms_norm_backward(
        self,
        values: Any,
        weight: Any,
        gradient: Any,
        scales: Any,
        out: Any,
        sums: Any,
        to_weight: Any,
        *_: Any,
        skip_gradient: Any = None,
    ) -> None:
        self._count("rms_norm_scales", [values, weight, gradient], [scales])
        self._count(
            "rms_norm_backward", [values, weight, gradient, scales, *list_of(skip_gradient)], [out, *list_of(sums)]
        )
        if sums is not None:
            self._count("rms_norm_weight", [sums], [to_weight])

    def swiglu(self, gate: Any, up: Any, out: Any) -> None:
        self._count("swiglu", [gate, up], [out])

    def swiglu_backward(self, gate: Any, up: Any, gradient: Any, to_gate: Any, to_up: Any, product: Any = None) -> None:
        self._count("swiglu_backward", [gate, up, gradient], [to_gate, to_up, *list_of(product)])

    def rotate(self, heads: Any, cosines: Any, sines: Any, out: Any, backward: bool) -> None:
        self._count("rotary", [heads, cosines, sines], [out])

    def wants_whole_gradient(self, tensor: int, micro_batch: int) -> bool:
        return False

    def compress(self, tensor: int, side: int, tokens: torch.Tensor, out: torch.Tensor) -> None:
        self._count("compress", [tokens], [out])

    def signs(self, tensor: int, out: torch.Tensor) -> None:
        return

    def sample(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        return

    def end_step(self, update: StepUpdate) -> StepResult:
        return StepResult()

    def _count(self, name: str, given: list[Any], made: list[Any]) -> None:
        assert self.recorder is not None
        self.recorder.note(name, True, given, made)

    def _map(self, size: int, touch: bool = True) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def _forget(self, block_pass: PlainPass) -> None:
        return


def list_of(tensor: Any) -> list[Any]:
    return [] if tensor is None else [tensor]


def operations_of(found: Operations, count: int) -> _engine.PassOperations:
    products = [
        _engine.ProductCalls(product=which, tokens=tokens, inner=inner, outer=outer, calls=calls / count)
        for (which, tokens, inner, outer), calls in found.products.items()
    ]
    attention = [
        _engine.AttentionCalls(
            tokens=tokens, head_size=size, operations=operations, backward=backward, calls=calls / count
        )
        for (tokens, size, operations, backward), calls in found.attention.items()
    ]
    elements = [
        _engine.ElementCalls(operation=name, strided=strided, bytes=taken, calls=calls / count)
        for (name, strided, taken), calls in found.elements.items()
    ]
    return _engine.PassOperations(products=products, attention=attention, elements=elements, calls=found.calls / count)
