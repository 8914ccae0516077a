"""The third stage of a run's pipeline, `Verified -> Profiled`: seconds and memory of PyTorch's part of a step, from a
dry run of the model's layers on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spillway.base.calls import EngineType, loss_kernels
from spillway.errors import InputError
from spillway.machine import device
from spillway.machine.compute import Compute
from spillway.machine.place import Place
from spillway.model.batches.batch import WorkShape
from spillway.model.checkpoint import initialise
from spillway.model.head.distillation import working_bytes
from spillway.model.layers.packed_attention import PackedRows
from spillway.model.measure.dry_run import DryRun, profile_dry_run
from spillway.model.measure.image_memory import ImageMemory, measure_images
from spillway.model.measure.slack import add_margin
from spillway.model.spec import ModelSpec, Verified
from spillway.run.settings import memory_budget


@dataclass(frozen=True)
class Profiled:
    """A model that may be streamed, and what its computation takes here."""

    verified: Verified
    compute: Compute
    shape: WorkShape
    dry_run: DryRun  # its `work_bytes` with what the run adds to them
    images: ImageMemory = ImageMemory()  # of what is added, what images take

    @property
    def spec(self) -> ModelSpec:
        return self.verified.spec


def profiled(
    verified: Verified,
    compute: Compute,
    shape: WorkShape,
    engine_type: EngineType,
    only_plan: bool,
    processes: int = 1,
) -> Profiled:
    """DoesNotFit where `dram_budget` has no room for the smallest dry run. `only_plan`: with the margin of a run in
    another process, and for rows of half the length, too. `processes`: of the run on this machine."""
    spec = verified.spec
    config, meta_model = spec.config, spec.meta_model
    dtype = config.compute_dtype
    if shape.largest_images is not None:
        meta_model.take_images()
    elif meta_model.tower:
        raise InputError(
            "freeze_vision_tower, freeze_multi_modal_projector: no row has images, which alone train these parts; "
            "leave both keys at true"
        )
    with loss_kernels(engine_type, dtype, device.small(compute.place)) as kernels:
        budget = memory_budget(config, processes)
        own = replace(shape, micro_batches=shape.largest_share)
        saved = config.activation_recompute != "all"

        def run(place: Place) -> DryRun:
            arguments = (meta_model, dtype, own, spec.packing, verified.unneeded, kernels, place)
            return profile_dry_run(*arguments, only_plan, budget, saved, verified.tiles, verified.fused)

        def measure(place: Place) -> tuple[ImageMemory, DryRun]:
            largest = shape.largest_images
            return ImageMemory() if largest is None else measure_images(meta_model, largest, place), run(place)

        PackedRows.refusal = None
        try:
            images, memory = measure(compute.place)
        except RuntimeError as refused:
            compute = replace(compute, place=compute.place.without(refused))
            images, memory = measure(compute.place)
    tokens = shape.largest_share * max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
    distilled = working_bytes(tokens, shape.teacher_top_k, compute.place.on_gpu)
    logits = shape.logits * meta_model.vocabulary * meta_model.dtype.itemsize
    drawn = initialise.work_bytes(meta_model) if config.init == "random" else 0  # before the first step
    work = max(memory.work_bytes + logits + distilled, memory.left_bytes + max(drawn, shape.between))
    work += images.host_bytes(shape.micro_batches, shape.largest_share)
    if only_plan:
        work = add_margin(work, memory.firm_bytes)
    on_gpu = memory.device_bytes + distilled + images.device_bytes(shape.largest_share)
    on_device = max(on_gpu if compute.place.on_gpu else 0, shape.between_on_device)
    seconds = {**memory.seconds, **entry_seconds(images, shape)}
    dry_run = replace(memory, seconds=seconds, work_bytes=work, device_bytes=on_device)
    return Profiled(verified, compute, shape, dry_run, images)


def entry_seconds(images: ImageMemory, shape: WorkShape) -> dict[str, float]:
    """Seconds of the first layer's passes in which images become features, as `_engine.PassSeconds` has them."""
    share = shape.largest_share
    return {"entry_forward": share * images.forward, "entry_backward": share * images.backward}
