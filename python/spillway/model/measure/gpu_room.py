"""A dry run on a GPU that lacks memory: which micro-batch has room there instead."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from spillway.base import sizes
from spillway.errors import DoesNotFit
from spillway.machine.place import Place
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import Work
from spillway.model.layers.packed_attention import count_most_rows
from spillway.model.measure import growth
from spillway.model.measure.synthetic import sample
from spillway.model.meta.meta_model import MetaModel

FIRST = 512  # tokens of the first short row, or an eighth of the row if that is less
# Words of CUDA's libraries where PyTorch's own allocator has not raised torch.cuda.OutOfMemoryError.
WORDS = re.compile(r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")

T = TypeVar("T")


def measure(
    place: Place, shape: WorkShape, run: Callable[[WorkShape], T], device_bytes: Callable[[WorkShape], int]
) -> T:
    """The dry run of `shape`. Where the GPU has no room for it, DoesNotFit names the largest micro-batch that has.
    `device_bytes`: of the GPU, in one step of a shape."""
    free = place.free()
    measurement = attempt(place, run, shape)
    if measurement is None:
        raise DoesNotFit(f"does not fit on {place.device}: {refusal(place, shape, free, device_bytes)}")
    return measurement


def sample_extremes(place: Place, packing: bool, meta_model: MetaModel, shape: WorkShape) -> list[Work]:
    """Packed on a GPU: one row a sequence, and the most rows of one call of attention. Attention's backward pass has
    the most accumulators at one of these ends: few rows have more copies of them, many rows pad them more."""
    if not (packing and place.on_gpu):
        return []
    most = -(-count_most_rows(shape.batch * shape.length) // shape.batch)
    return [sample(meta_model, shape.batch, shape.length, rows) for rows in (1, min(most, shape.length))]


def attempt(place: Place, run: Callable[[WorkShape], T], shape: WorkShape) -> T | None:
    """None: the GPU has no room. Its memory is free again."""
    try:
        return run(shape)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    gc.collect()  # when nobody holds the error, whose traceback holds tensors
    place.give_back()
    return None


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.cuda.OutOfMemoryError) or WORDS.search(str(error)) is not None


def refusal(place: Place, shape: WorkShape, free: int, device_bytes: Callable[[WorkShape], int]) -> str:
    """The request, the free memory, and the settings that would fit."""
    train = replace(shape, micro_batches=1, share=0, eval_batch=0, eval_length=0)
    words = f"more than the {sizes.size(free)} that are free"
    evaluates = shape.eval_batch * shape.eval_length > shape.batch * shape.length
    if evaluates and attempt(place, device_bytes, train) is not None:
        return (
            f"one layer takes {words} to evaluate {shape.eval_batch} x {shape.eval_length} tokens. "
            "Use a smaller per_device_eval_batch_size or max_length"
        )
    asked = f"one layer takes {words} to train on {shape.batch} x {shape.length} tokens"

    def measured(rows: int, length: int) -> int | None:
        return attempt(place, device_bytes, replace(train, batch=rows, length=length))

    first = max(1, min(FIRST, shape.length // 8))
    seen = growth.climb_shape(measured, lambda _: place.free(), first, (shape.batch, shape.length), 0)
    keys = [f"pass_tokens {seen.rows * seen.length}"] if shape.joined > 1 else []
    if seen.length < shape.length:
        keys = [f"max_length {seen.length}", "per_device_train_batch_size 1", *keys]
    elif seen.rows * shape.joined < shape.batch:
        keys = [f"per_device_train_batch_size {seen.rows}", *keys]
    if seen.length:
        return f"{asked}. One layer has room with {' and '.join(keys)}"
    return f"{asked}, and has no room for {first} tokens either. End other programs on the GPU, or use another one"
