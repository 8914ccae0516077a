"""How large micro-batches with images get. The collator makes their tokens and pixels, so rows are prepared once before
anything is planned: all, or as many as `load(images=...)` says.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from spillway.base import stages
from spillway.data.batches import TOKEN_TYPES, batch_of
from spillway.data.media import find_obstacle
from spillway.errors import InputError
from spillway.model.batches.batch import Batch, WorkShape, count_bytes
from spillway.model.batches.microbatch import IGNORED

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.integrations.loading import Origin

UNKNOWN = (
    "images: {name} is iterated, so the largest images cannot be found; say how many rows to look at: load(..., "
    "images=100, max_length=1024)"
)
NONE_FOUND = "images: none of the first {rows} rows of {name} has images; look at more: load(..., images={more})"


def refuse_images(config: Config) -> None:
    """InputError if a Trainer or a Session with this configuration takes text alone."""
    if obstacle := find_obstacle(config):
        raise InputError(f"images: {obstacle}")


@dataclass(frozen=True)
class Largest:
    """The largest rows of one dataset."""

    rows: int  # in a micro-batch
    length: int
    images: Batch | None  # of the rows with the most pixels, padded to `length`; None: the rows are text


def find_largest(loader: Any, batch: int, name: str, origin: Origin, cut: int | None, iterated: bool) -> Largest:
    """The largest micro-batch of a dataset. `loader` and `cut` as in `sizes.find_longest`. `iterated`: rows cannot be
    indexed."""
    stages.say(f"looking at the images of {name}")
    data, collate, most = loader.dataset, loader.collate_fn, origin.images.looked_at
    if most is None and iterated:
        raise InputError(UNKNOWN.format(name=name))
    count = None if iterated else len(data)
    sees_all = count is not None and (most is None or most >= count)
    longest = 0

    def measure() -> Iterator[tuple[int, Any]]:
        nonlocal longest
        for row in itertools.islice(data if iterated else map(data.__getitem__, range(len(data))), most):
            one = take(collate, [row], origin)
            longest = max(longest, one.input_ids.shape[1])
            yield count_pixels(one.images), row

    largest = heapq.nlargest(batch, measure(), key=lambda each: each[0])
    if not largest:
        raise InputError(f"{name}: it has no rows")
    given = origin.config.max_length if "max_length" in origin.given else None
    length = given or (longest if sees_all else cut or longest)
    rows = batch if count is None else min(batch, count)
    if not largest[0][0]:
        if not sees_all:
            raise InputError(NONE_FOUND.format(rows=most, name=name, more=10 * (most or 1)))
        return Largest(rows, length, None)
    return Largest(rows, length, pad(take(collate, [row for _, row in largest], origin), length))


def take(collate: Callable[[list[Any]], Mapping[str, Any]], rows: list[Any], origin: Origin) -> Batch:
    """A micro-batch as a step takes it. Collators of TRL write into the rows that they are given."""
    own = [dict(row) if isinstance(row, Mapping) else row for row in rows]
    return batch_of(collate(own), bool(origin.config.packing), origin.images.arguments)


def count_pixels(images: Mapping[str, torch.Tensor] | None) -> int:
    """Bytes of a micro-batch's images. Types of tokens grow with the rows."""
    return count_bytes({name: each for name, each in (images or {}).items() if name not in TOKEN_TYPES})


def pad(batch: Batch, length: int) -> Batch:
    """The micro-batch with rows of `length` tokens."""
    more = length - batch.input_ids.shape[1]
    if more <= 0:
        return batch
    images = {
        name: functional.pad(each, (0, more)) if name in TOKEN_TYPES else each
        for name, each in (batch.images or {}).items()
    }
    rows, before = batch.input_ids.shape
    return Batch(
        functional.pad(batch.input_ids, (0, more)),
        functional.pad(batch.labels, (0, more), value=IGNORED),
        None,
        batch.tokens,
        torch.full((rows,), before) if batch.lengths is None else batch.lengths,
        images=images,
    )


LOOK_AT_ALL = "look at all rows beforehand: load(..., images=True), or scale images down where rows are prepared"


def require_room(images: Mapping[str, torch.Tensor] | None, shape: WorkShape, advice: str = LOOK_AT_ALL) -> None:
    """InputError for a micro-batch with more pixels than planned."""
    planned = 0 if shape.largest_images is None else count_pixels(shape.largest_images.images)
    if (size := count_pixels(images)) > planned:
        raise InputError(
            f"images: a batch with {size} bytes of pixels was not planned for (the largest had {planned}); {advice}"
        )
