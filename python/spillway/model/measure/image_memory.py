"""Memory that images take: the weights of the tower that makes their features, a pass of it, and what layers are given.

Measured on the micro-batch of the data with the most pixels, by the code that a step runs. So a class that does more
with images than put their features in the place of tokens is refused before anything is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from spillway.base import stages
from spillway.base.sizes import size
from spillway.errors import DoesNotFit, InputError, first_line
from spillway.machine import process_memory
from spillway.machine.place import HOST, NO_ORDER, Place
from spillway.model.batches.batch import count_bytes
from spillway.model.batches.microbatch import arrange
from spillway.model.measure.gpu_room import is_out_of_memory
from spillway.model.measure.slack import DEVICE_SLACK
from spillway.model.measure.temporaries import watch_temporaries
from spillway.model.meta.image_tower import Features, ImageTower
from spillway.model.meta.layer_arguments import Recording, argument_bytes, record
from spillway.model.meta.meta_model import MetaModel
from spillway.model.meta.outline import leaves_behind
from spillway.model.meta.streamed_tower import StreamedTower, freeze_unreached
from spillway.model.source.model_code import refusal
from spillway.model.stream.passage import all_tensors

if TYPE_CHECKING:
    from spillway.model.batches.batch import Batch
    from spillway.model.batches.microbatch import MicroBatch

    Given = tuple[MetaModel, MicroBatch, torch.Tensor, torch.Tensor]  # for `record`

T = TypeVar("T")


@dataclass(frozen=True)
class ImageMemory:
    """Bytes where layers compute, beside the pixels of each micro-batch, which the host has, too."""

    tower: int = 0  # weights, which stay
    computing: int = 0  # temporaries of a pass of the tower
    kept: int = 0  # of a micro-batch, for as long as its step takes: masks, sums between layers
    pixels: int = 0  # of a micro-batch, and what comes with them
    features: int = 0  # of a micro-batch, which the engine has from forward to backward
    forward: float = 0.0  # seconds of a micro-batch before the first layer: the tower's, and the way of its features
    backward: float = 0.0  # the same of the backward pass
    place: Place = HOST

    def host_bytes(self, micro_batches: int, own: int) -> int:
        """`micro_batches`: of the whole step; `own`: those that this process computes."""
        there = 0 if self.place.on_gpu else self.tower + self.computing + own * self.kept
        return there + micro_batches * self.pixels

    def device_bytes(self, own: int) -> int:
        """Bytes of a GPU; none where layers compute in host memory."""
        if not self.place.on_gpu:
            return 0
        return self.tower + int((self.computing + own * (self.kept + self.pixels)) * (1 + DEVICE_SLACK))


def measure_images(meta_model: MetaModel, batch: Batch, place: Place) -> ImageMemory:
    """InputError, naming the model type, where its images cannot be streamed; DoesNotFit where a GPU has no room."""
    stages.say("measuring images")
    free = place.free()
    try:
        with place.current():
            return measure_pass(meta_model, batch, place)
    except InputError as error:
        raise InputError(f"images: {error}; train it on rows of text alone") from error
    except Exception as error:  # a model's own code, on pixels that do not fit it
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise DoesNotFit(
                f"does not fit on {place.device}: the features of images take more than the {size(free)} that are "
                "free. Use a smaller per_device_train_batch_size, or fewer or smaller images in a row"
            ) from error
        if isinstance(error, RuntimeError) and NO_ORDER.match(str(error)):
            raise
        reason = refusal(meta_model.config.model_type, f"its code fails on images: {first_line(error)}")
        raise InputError(f"images: {reason}; train it on rows of text alone") from error
    finally:
        place.give_back()


def measure_pass(meta_model: MetaModel, batch: Batch, place: Place) -> ImageMemory:
    place.take_buffers(meta_model.model)
    work = arrange([batch]).to(place.device)
    micro_batch = work.micro_batches[0]
    row = torch.zeros(1, dtype=meta_model.dtype, device=place.device)
    rows = row.expand(batch.input_ids.numel(), meta_model.columns)
    given = meta_model, micro_batch, work.ids_of(micro_batch), rows
    measure = measure_streamed_tower if meta_model.tower else measure_frozen_tower
    return replace(measure(given, place), pixels=count_bytes(batch.images), place=place)


def measure_frozen_tower(given: Given, place: Place) -> ImageMemory:
    meta_model = given[0]
    tower = ImageTower(meta_model, place.device)
    weights = tower.bytes
    tower.fill_with_zeros()
    features = Features(tower)
    process_memory.give_back()
    with torch.no_grad(), watch_temporaries(place) as temporaries, meta_model.stand_ins(device=place.device):
        recording = record(*given, features)
        probed, backward = time_call(place, lambda: record(*given, features, 1.0))  # features are made already
    require_sums(meta_model, recording, probed)
    computing, kept = temporaries.count(), count_kept(recording)
    del recording, probed
    with torch.no_grad(), meta_model.stand_ins(device=place.device):
        _, forward = time_call(place, lambda: record(*given, Features(tower)))
    return ImageMemory(weights, computing, kept, features=features.bytes, forward=forward, backward=backward)


def time_call(place: Place, call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call and its seconds, with the operations that it leaves to a GPU."""
    place.settle()
    began = time.perf_counter()
    result = call()
    place.settle()
    return result, time.perf_counter() - began


def measure_streamed_tower(given: Given, place: Place) -> ImageMemory:
    """The pass forward and backward that the first layer's block begins and ends with. Freezes what it does not reach
    (`freeze_unreached`)."""
    meta_model = given[0]
    tower = StreamedTower(meta_model, place.device)
    with meta_model.stand_ins(device=place.device) as leaves:
        with torch.no_grad():
            recording = record(*given, tower)
            probed, forward = time_call(place, lambda: record(*given, tower, 1.0))
            require_sums(meta_model, recording, probed)
            del probed
        for leaf, parameter in zip(leaves, meta_model.entry, strict=True):
            if leaf.requires_grad_(parameter.requires_grad).requires_grad:
                leaf.register_post_accumulate_grad_hook(let_go)

        def differentiate() -> tuple[Recording, set[int]]:
            recording = record(*given, tower)
            made = [tensor for tensor in collect_inputs(recording) if tensor.requires_grad]
            reached = set(leaves_behind(made))
            if made:
                torch.autograd.backward(made, [torch.zeros_like(tensor) for tensor in made])
            return recording, reached

        process_memory.give_back()
        with torch.enable_grad(), watch_temporaries(place) as temporaries:
            recording, reached = differentiate()
        computing = temporaries.count()
        with torch.enable_grad():
            _, backward = time_call(place, differentiate)
    reached_parameters = (p for p, leaf in zip(meta_model.entry, leaves, strict=True) if id(leaf) in reached)
    freeze_unreached(meta_model, set(map(id, reached_parameters)))
    return ImageMemory(computing=computing, kept=count_kept(recording), forward=forward, backward=backward)


def let_go(leaf: torch.Tensor) -> None:
    leaf.grad = None


def collect_inputs(recording: Recording) -> list[torch.Tensor]:
    """The tensors that layers are given, the hidden state first."""
    return [recording.first, *all_tensors(recording.calls)]


def count_kept(recording: Recording) -> int:
    """Bytes of what layers are given, and of what the model adds between them."""
    added = [call.added for call in recording.calls if call.added is not None]
    return argument_bytes(recording.calls) + sum(each.numel() * each.element_size() for each in added)


def require_sums(meta_model: MetaModel, recording: Recording, probed: Recording) -> None:
    """InputError if a model does more between its layers than to add features. `probed`: of layers that return ones."""
    for one, other in zip(recording.calls, probed.calls, strict=True):
        if one.added is None and other.added is None:
            continue
        if one.added is None or other.added is None or not torch.equal(one.added + 1.0, other.added):
            raise refusal(meta_model.config.model_type, "its backbone changes the hidden state between its layers")
