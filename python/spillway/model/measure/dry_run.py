"""The cost of PyTorch's part of a step on this machine: seconds of every kind of pass and the peak of its temporaries.

Measured, before anything is allocated, by the stream itself on a model of the same width with one layer of each kind
and one slice of the vocabulary.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spillway.base import stages
from spillway.base.own_thread import in_own_thread
from spillway.errors import DoesNotFit
from spillway.machine import process_memory, threads
from spillway.machine.place import HOST, Place
from spillway.model.batches.microbatch import Work
from spillway.model.layers.row_attention import DenseMasks, attention_width, grows_linearly
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.measure import gpu_room, growth, quick_dry_run, saved_profile
from spillway.model.measure.narrow import NarrowStep, narrow_of_its_kind
from spillway.model.measure.saved_profile import SavedProfile
from spillway.model.measure.slack import BRIEF_SLACK, DEVICE_SLACK, SLACK
from spillway.model.measure.synthetic import fill, sample
from spillway.model.measure.temporaries import Temporaries, watch_temporaries
from spillway.model.measure.timed_engine import KINDS, LossKernels, TimedEngine
from spillway.model.meta.layer_arguments import masks
from spillway.model.meta.meta_model import MetaModel
from spillway.model.stream.stream import Stream

if TYPE_CHECKING:
    from spillway.model.batches.batch import WorkShape

FEW_TOKENS = 2048  # of a micro-batch that is measured at once, however little memory there is
LONG = 10.0  # seconds; a step longer than this is measured once, shorter ones several times:
LEAST_RUNS, MOST_RUNS, LEAST_SECONDS = 4, 40, 2.0  # so often, and so long; the first half warms up


@dataclass(frozen=True)
class DryRun:
    process_bytes: int  # in memory before: interpreter, libraries, the meta model
    work_bytes: int  # PyTorch's temporaries at their peak, beyond that
    seconds: dict[str, float]  # by kind of pass, at the largest step, all micro-batches
    device_bytes: int = 0  # PyTorch's temporaries on a GPU at their peak
    per_token: tuple[float, float] = (0.0, 0.0)  # by which both grow with the tokens of a micro-batch, when asked for
    measured_rows: int = 0  # the largest micro-batch that was measured: `work_bytes` of a larger one are extrapolated
    measured_length: int = 0
    firm_bytes: int = 0  # of `work_bytes`: of the tokens beyond one tile, which is measured alike each time
    left_bytes: int = 0  # that stay when all is given back: libraries' pages, what PyTorch keeps for later
    saved: SavedProfile = SavedProfile()  # of layers that keep what autograd saves, when asked for


def profile_dry_run(
    meta_model: MetaModel,
    compute_dtype: str,
    shape: WorkShape,
    packing: bool,
    unneeded: Collection[str] = (),
    kernels: LossKernels | None = None,
    place: Place = HOST,
    half: bool = False,
    budget: int | None = None,
    saved: bool = False,
    tiles: TokenTiles = ALL_AT_ONCE,
    fused: bool = False,
) -> DryRun:
    """Runs the largest micro-batch of `shape` a few times. `half`: for a plan alone: before, one with rows of half the
    length, to know how memory grows with them; where all of that would take long, fewer tokens tell what more of them
    take. `budget`: bytes that the process may hold meanwhile; where the largest micro-batch would
    pass it, or takes more than a few seconds to find that out, shorter rows tell what it takes. `saved`: before it
    ends, steps in which layers keep what autograd saves of them, too. `tiles`: what runs in tiles of tokens. `fused`:
    `kernels` stand for parts of layers, too (`fused`). Raises DoesNotFit when not even shorter rows have room; on a
    GPU, when the largest micro-batch has no room. `meta_model` itself is not touched."""
    stages.say("measuring one layer")
    before = process_memory.resident()

    def begin(of: WorkShape, saves: bool) -> Measurement:
        asked = (meta_model, compute_dtype, of, packing, unneeded, kernels, place, budget, saves, tiles)
        return Measurement(*asked, fused)

    def measured(of: WorkShape = shape) -> DryRun:
        with closing(begin(of, saved)) as measurement:
            return measurement.run(before, half)

    def device_bytes(of: WorkShape) -> int:
        with closing(begin(of, False)) as measurement:
            return measurement.device_bytes()

    try:
        if place.on_gpu:
            result = gpu_room.measure(place, shape, measured, device_bytes)
        elif budget is None:
            result = measured()
        else:  # a thread that a bound has refused room for code is of no more use: see `bounded`
            threads.rest()
            result = in_own_thread(measured, process_memory.in_main_arena)
    finally:
        process_memory.give_back()
        place.give_back()
    return replace(result, left_bytes=max(0, process_memory.resident() - before))


class Measurement:
    """A stream over a narrow copy of the model, and what it was seen to take."""

    def __init__(
        self,
        meta_model: MetaModel,
        compute_dtype: str,
        shape: WorkShape,
        packing: bool,
        unneeded: Collection[str],
        kernels: LossKernels | None,
        place: Place,
        budget: int | None,
        saved: bool,
        tiles: TokenTiles,
        fused: bool,
    ) -> None:
        self._shape, self._packing, self._place, self._asks_saved, self._tiles = shape, packing, place, saved, tiles
        self._held = 0  # bytes of the process, without what lies in the arena by token, before the first step
        self._budget = None if place.on_gpu else budget
        self._small = narrow_of_its_kind(meta_model, saved, shape.virtual_ranks)
        self._step_of = NarrowStep(self._small, shape, compute_dtype, unneeded, tiles, fused)
        self._tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
        self._engine = TimedEngine(self._step_of.describe(self._tokens), self._step_of.parts > 1, kernels, place)
        fill(self._engine)
        self._engine.keep_weights()
        self._stream = self._step_of.open_stream(Stream, self._engine, place=place)
        self._dense_masks = DenseMasks.made  # until now

    def run(self, before: int, half: bool) -> DryRun:
        """`before`: bytes of the process when there was no dry run."""
        shape = self._shape
        if half and not self._place.on_gpu and (brief := self._briefly(before)) is not None:
            return brief
        seen = self._climb(shape.batch, shape.length, self._step)
        if seen.there:
            try:
                return self._largest(before, half)
            except process_memory.OutOfBounds:  # so it takes at least what there is
                seen = replace(seen, bytes=max(seen.bytes, (self._budget or 0) - before))
        if not seen.length:
            what = f"a layer over {shape.batch} rows of {shape.length} tokens"
            raise DoesNotFit(process_memory.no_room(self._budget or 0, what))
        return self._extrapolated(before, seen)

    def close(self) -> None:
        self._stream.close()

    def device_bytes(self) -> int:
        """Bytes of PyTorch's temporaries on a GPU in one step."""
        temporaries = Temporaries(self._place)
        extremes = gpu_room.sample_extremes(self._place, self._packing, self._small, self._shape)
        for work in (self._sample(self._shape.batch, self._shape.length), *extremes):
            self._step(work)
        return temporaries.count_on_device()

    def _briefly(self, before: int) -> DryRun | None:
        """For a plan alone, where the largest micro-batch takes long: see `quick_dry_run`. None: it does not."""
        shape = self._shape
        largest = shape.batch * shape.length
        (rows, length), *rest = quick_dry_run.shapes(shape.batch, shape.length)
        process_memory.give_back()  # what the heap has free is nothing that steps leave
        self._held = process_memory.anonymous() - self._engine.touched_bytes()
        warm_up = self._measure_step(rows, length)
        if warm_up is None or not quick_dry_run.is_long(sum(warm_up.seconds.values()), warm_up.tokens, largest):
            return None
        process_memory.use_huge_pages()
        first = self._measure_step(rows, length) or warm_up
        warm = self._measure_step(rows, length, cold=False) or first
        points = quick_dry_run.measured(first, rest, self._measure_step)
        linear = self._linear()
        points[-1] = self._settle(points[-1], linear)
        tile, every = self._tiles.tokens or 0, quick_dry_run.shapes(shape.batch, shape.length)

        def beyond() -> float | None:
            return quick_dry_run.slope_in_tiles(every, points[-1], self._in_tiles)

        work_bytes = quick_dry_run.bytes_of(points, largest, linear, tile, beyond)
        if shape.eval_batch * shape.eval_length > largest:
            work_bytes = max(work_bytes, self._evaluated_briefly())
        more = int(self._other_lengths_briefly() * (1 + SLACK))
        kept = self._count_kept(self._sample(rows, length))
        more_seconds = self._beyond_a_line(points[-1])
        seconds = quick_dry_run.seconds_of(points, warm.seconds, largest, shape.micro_batches, more_seconds)
        saved = self._saved_briefly(points[-1], seconds, linear)
        margin = 0.0 if tile < points[-1].tokens < largest else BRIEF_SLACK
        planned, firm = self._add_slack(work_bytes + kept, SLACK + BRIEF_SLACK, margin)
        return DryRun(
            before,
            planned + more,
            seconds,
            firm_bytes=firm,
            per_token=(quick_dry_run.bytes_per_token(points) * (1 + SLACK + BRIEF_SLACK), 0.0),
            saved=saved,
        )

    def _beyond_a_line(self, last: quick_dry_run.Taken) -> quick_dry_run.Kinds:
        """Seconds that attention takes in longer rows, beyond a line through the measurements."""
        shape = self._shape
        rows, length = quick_dry_run.shape_of(shape.batch, shape.length, last.tokens)
        longest, now = float(shape.length), float(length)
        if self._packing:
            longest, now = longest / shape.packed_rows, now / shape.rows_in(length)
        times = longest / now
        shorter = length // quick_dry_run.SHORTER
        if times <= 1 or longest < quick_dry_run.LONG_ROW or shorter < 2:
            return {}
        taken = self._measure_step(rows * quick_dry_run.SHORTER, shorter)
        return {} if taken is None else quick_dry_run.beyond_a_line(last, taken, shape.batch * shape.length, times)

    def _settle(self, last: quick_dry_run.Taken, linear: bool) -> quick_dry_run.Taken:
        """The last measurement, if it speaks for the tokens beyond a tile: the median of three, since a heap that grows
        has other holes each time."""
        if not linear or not (self._tiles.tokens or last.tokens) < last.tokens < self._tokens:
            return last
        shape = quick_dry_run.shape_of(self._shape.batch, self._shape.length, last.tokens)
        again = [self._measure_step(*shape) for _ in range(2)]
        return quick_dry_run.middle([last, *[each for each in again if each is not None]])

    def _saved_briefly(self, last: quick_dry_run.Taken, seconds: dict[str, float], linear: bool) -> SavedProfile:
        """The profile of saved activations with the tokens of the last measurement; adds to `seconds`. `linear`: see
        `quick_dry_run.bytes_of`."""
        if not self._asks_saved:
            return SavedProfile()
        rows, length = quick_dry_run.shape_of(self._shape.batch, self._shape.length, last.tokens)
        self._engine.forget_seconds()
        profile = saved_profile.measure(self._stream, self._engine, self._sample(rows, length), False, 1, self._budget)
        ratios = saved_profile.ratios(self._engine, last.seconds["forward"], last.seconds["backward"])
        for kind, ratio in zip(("forward", "backward"), ratios, strict=True):
            seconds["kept_" + kind] = seconds[kind] * ratio
        longer = 1.0 if linear else self._shape.length / length  # scores of attention, of which each row keeps all
        return profile.longer(longer)

    def _saved(self, work: Work, warm_up: float, seconds: dict[str, float]) -> SavedProfile:
        """Measures what the largest micro-batch saves; adds to `seconds`."""
        if not self._asks_saved:
            return SavedProfile()
        several = self._shape.micro_batches > 1
        rounds = 0 if warm_up > LONG else max(saved_profile.ROUNDS, runs_after(warm_up) // 4)
        self._engine.forget_seconds()
        profile = saved_profile.measure(self._stream, self._engine, work, several, rounds, self._budget)
        if profile.token_bytes:
            seconds |= self._engine.pass_seconds(saved_profile.KINDS, self._shape.micro_batches)
        return profile

    def _add_slack(self, work_bytes: float, slack: float, margin: float = growth.MARGIN) -> tuple[int, int]:
        """Temporaries with holes of the heap, and bytes of them that vary little: what grows with the tokens beyond one
        tile are hidden states, a few blocks of one size, which have the `margin` of a measurement. With `margin` 0 they
        were not measured, and have what `bytes_of` says, or what attention holds with the holes of a heap if more."""
        tile = self._measure_tile()
        if tile is None:
            return int(work_bytes * (1 + slack)), 0
        beyond = self._tokens - (self._tiles.tokens or 0)
        least = attention_width(self._small.config) * self._small.dtype.itemsize * beyond * (1 + slack)
        firm = max(0.0, (work_bytes - tile) * (1 + margin), 0.0 if margin else least)
        return int(firm + min(work_bytes, tile) * (1 + slack)), int(firm)

    def _measure_tile(self) -> int | None:
        """Bytes of temporaries of one tile's tokens. None: there are no more tokens, or their memory grows faster."""
        tile, length = self._tiles.tokens, self._shape.length
        if tile is None or self._shape.batch * length <= tile or self._place.on_gpu or not self._linear():
            return None
        work = self._sample(max(1, tile // length), min(tile, length))
        bytes_taken = [self._measured(work, self._step) for _ in range(2)][-1]
        return None if bytes_taken is None else bytes_taken + (self._count_left() if self._held else 0)

    def _linear(self) -> bool:
        """True if the measurements so far show that attention's memory grows with the tokens of a row."""
        return grows_linearly(self._small.model, self._packing) and DenseMasks.made == self._dense_masks

    def _measure_step(self, rows: int, length: int, cold: bool = True) -> quick_dry_run.Taken | None:
        """One step of so many tokens; None: it has no room."""
        stages.say(f"measuring one layer with {rows} x {length} of {self._shape.batch} x {self._shape.length} tokens")
        self._engine.cold = cold
        stays = self._count_left()
        settled = partial(self._engine.time_settled_step, self._stream)
        bytes_taken = self._measured(self._timed(rows, length), settled)
        if bytes_taken is None:
            return None
        seconds = {kind: statistics.median(self._engine.seconds[cold][kind] or [0.0]) for kind in KINDS}
        return quick_dry_run.Taken(rows * length, bytes_taken + stays, seconds | {"between": self._engine.between[-1]})

    def _in_tiles(self, rows: int, length: int, tile: int) -> quick_dry_run.Taken | None:
        """`_measure_step` in tiles of so many tokens."""
        self._stream.tiles = replace(self._tiles, tokens=tile)
        try:
            return self._measure_step(rows, length)
        finally:
            self._stream.tiles = self._tiles

    def _evaluated_briefly(self) -> int:
        """Bytes of the largest evaluation, by small ones, each the second of its shape: with the first PyTorch keeps
        what it makes for a shape, as much for few tokens as for many."""
        points = []
        for rows, length in quick_dry_run.shapes(self._shape.eval_batch, self._shape.eval_length)[:3]:
            taken = [self._measured(self._sample(rows, length), self._stream.evaluate) for _ in range(2)][-1]
            if taken is not None:
                points.append(quick_dry_run.Taken(rows * length, taken, {}))
        tokens = self._shape.eval_batch * self._shape.eval_length
        most = quick_dry_run.bytes_of(points, tokens, self._linear(), self._tiles.tokens or 0) if points else 0
        return most + self._count_left()

    def _other_lengths_briefly(self) -> int:
        """Bytes that PyTorch keeps for rows of other lengths, which few tokens tell, too."""
        before, lengths = self._count_left(), quick_dry_run.other_lengths(min(quick_dry_run.SHORT, self._shape.length))
        for length in [] if self._packing else lengths:
            self._measured(self._sample(1, length), self._step)
        return max(0, self._count_left() - before)

    def _count_left(self) -> int:
        """Bytes that the steps so far have left in memory, in a plan alone."""
        return max(0, process_memory.anonymous() - self._engine.touched_bytes() - self._held)

    def _largest(self, before: int, half: bool) -> DryRun:
        """The cost of the requested shape, measured as often as its seconds need."""
        shape, engine, stream, place = self._shape, self._engine, self._stream, self._place
        self._engine.touch(shape.batch * shape.length)
        temporaries = Temporaries(place)
        train, timed = self._sample(shape.batch, shape.length), self._timed(shape.batch, shape.length)
        with process_memory.bounded(self._budget), temporaries.peak:
            if half:
                stream.step(self._sample(shape.batch, max(1, shape.length // 2)))
            before_whole = process_memory.anonymous(), place.peak()
            engine.forget_seconds()
            warm_up = engine.time_step(stream, train)
            after_whole = process_memory.anonymous(), place.peak()
            process_memory.use_huge_pages()
            engine.lends = self._step_of.lends  # from here on: the memory of the first steps is measured
            for number in range(runs_after(warm_up)):
                engine.cold = shape.micro_batches == 1 or number % 2 == 0
                engine.time_step(stream, timed)
            seconds = engine.step_seconds(shape.micro_batches)
            for work in gpu_room.sample_extremes(place, self._packing, self._small, shape):
                stream.step(work)
            if not self._packing:  # rows of many lengths: what PyTorch keeps for each, as many as it will keep
                for length in quick_dry_run.other_lengths(shape.length):
                    stream.step(self._sample(shape.batch, length))
        work_bytes = temporaries.count_on_host()
        if shape.eval_batch * shape.eval_length > shape.batch * shape.length:
            work_bytes = max(work_bytes, self._evaluated(temporaries.before))
        others = self._count_kept(train)
        device_bytes = temporaries.count_on_device() + others + self._step_of.count_head_bytes()
        saved = self._saved(train, warm_up, seconds)
        more = max(1, shape.batch * (shape.length - shape.length // 2))
        grown = [max(0, now - then) / more for now, then in zip(after_whole, before_whole, strict=True)]
        planned, firm = self._add_slack(work_bytes + others, SLACK)
        return DryRun(
            before,
            planned,
            seconds,
            int(device_bytes * (1 + DEVICE_SLACK)),
            (grown[0] * (1 + SLACK), grown[1] * (1 + DEVICE_SLACK)) if half else (0.0, 0.0),
            firm_bytes=firm,
            measured_rows=shape.batch,
            measured_length=shape.length,
            saved=saved,
        )

    def _evaluated(self, with_arena: int) -> int:
        """Bytes of the largest evaluation, which is larger than a step, beyond `with_arena`."""
        shape = self._shape
        seen = self._climb(shape.eval_batch, shape.eval_length, self._stream.evaluate)
        if seen.there:
            before = process_memory.resident()
            self._engine.touch(shape.eval_batch * shape.eval_length)
            with_arena += max(0, process_memory.resident() - before)
            with suppress(process_memory.OutOfBounds):
                with process_memory.bounded(self._budget), process_memory.PeakWatch() as watch:
                    self._stream.evaluate(self._sample(shape.eval_batch, shape.eval_length))
                return max(watch.bytes, process_memory.resident()) - with_arena
        return max(seen.bytes, (self._budget or 0) - with_arena)

    def _extrapolated(self, before: int, seen: growth.Seen) -> DryRun:
        """The extrapolated cost of a shape that is too large to be measured."""
        shape = self._shape
        times = shape.length / seen.length
        kept = 0
        if self._packing:
            longer = times if self._linear() else times**2
            kept = int(masks(self._small, self._sample(1, seen.length), self._place) * longer) * shape.batch
        work_bytes = seen.bytes + self._step_of.count_kept(shape.batch * shape.length, kept)
        slower = times**2 * shape.batch / seen.rows
        seconds = {kind: value * slower for kind, value in self._seconds.items()}
        planned, firm = self._add_slack(work_bytes, SLACK)
        return DryRun(
            before,
            planned,
            seconds,
            firm_bytes=firm,
            measured_rows=seen.rows,
            measured_length=seen.length,
            saved=SavedProfile(why=saved_profile.SHORTER if self._asks_saved else ""),
        )

    def _climb(self, rows: int, length: int, call: Callable[[Work], object]) -> growth.Seen:
        """The memory of fewer and shorter rows, and whether all of them have room. Few tokens are not worth it."""
        if self._budget is None or rows * length <= FEW_TOKENS:
            return growth.Seen(0, 0, 0, True)

        def measure(rows: int, length: int) -> int | None:
            return self._measured(self._sample(rows, length), call)

        return growth.climb_shape(measure, self._room, FEW_TOKENS // 4, (rows, length), self._tiles.tokens or 0)

    def _measured(self, work: Work, call: Callable[[Work], object]) -> int | None:
        """Bytes of its temporaries; None: there is not enough memory for them."""
        self._engine.touch(work.micro_batches[0].rows * work.micro_batches[0].length)
        try:
            with watch_temporaries(self._place, self._budget) as temporaries:
                call(work)
            return temporaries.count_on_host()
        except process_memory.OutOfBounds:
            return None
        finally:
            process_memory.give_back()

    def _step(self, work: Work) -> None:
        self._engine.forget_seconds()
        self._engine.time_step(self._stream, work)
        self._seconds = self._engine.step_seconds(self._shape.micro_batches)

    def _room(self, tokens: int) -> int:
        """Bytes for temporaries beside what there is and what the arena takes for so many tokens."""
        assert self._budget is not None
        return self._budget - process_memory.resident() - self._engine.untouched(tokens)

    def _sample(self, rows: int, length: int) -> Work:
        """Work that shows the memory: a sequence of several rows takes more than one row does, whatever their
        lengths."""
        joined = (2 if self._shape.packed_rows > 1 else 1) if self._packing else 0
        return sample(self._small, rows, length, min(joined, length))

    def _timed(self, rows: int, length: int) -> Work:
        """Work on which attention takes as long as on the data's rows."""
        return sample(self._small, rows, length, self._shape.rows_in(length) if self._packing else 0)

    def _count_kept(self, train: Work) -> int:
        more = masks(self._small, train, self._place) if self._packing else 0
        return self._step_of.count_kept(self._tokens, more)


def runs_after(warm_up: float) -> int:
    """How many runs take at most twice the seconds of those that follow."""
    if warm_up > LONG:
        return 1
    return max(LEAST_RUNS, min(MOST_RUNS, math.ceil(2 * LEAST_SECONDS / warm_up)))
