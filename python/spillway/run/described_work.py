"""The work of a step of a described machine: its shape, and what the model's code is traced to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from spillway.errors import first_line
from spillway.run import described_images
from spillway.run.machine_request import widths

if TYPE_CHECKING:
    from spillway._engine import StepWork
    from spillway.config import Config
    from spillway.model.batches.batch import WorkShape
    from spillway.model.measure.trace import StepTrace
    from spillway.model.spec import Verified
    from spillway.run.described_images import DescribedImages

Tell = Callable[[str], None]


def twice_as_long(config: Config) -> Config:
    return config.replaced(max_length=2 * config.max_length)


def shape_of(config: Config, model: Verified, images: DescribedImages | None = None) -> WorkShape:
    """The shape of a step whose rows are all of maximum length; nothing is evaluated."""
    from spillway.model.batches.batch import WorkShape
    from spillway.model.batches.joining import join_shape
    from spillway.model.batches.microbatch import Share

    rows, micro_batches = config.per_device_train_batch_size * config.rows_each, config.gradient_accumulation_steps
    ranks, virtual = config.ranks, config.virtual_ranks
    share = Share(ranks.rank, ranks.world, virtual).most(micro_batches) if ranks.world > 1 else 0
    more = {"virtual_ranks": virtual, "share": share, "refers": config.refers_in_step}
    largest = images.batch if images else None
    shape = WorkShape(micro_batches, rows, config.max_length, 0, 0, **more, largest_images=largest)
    return join_shape(shape, config, model.spec.meta_model)


def traced(
    config: Config,
    model: Verified,
    tell: Tell = lambda _: None,
    shorter: StepTrace | None = None,
    images: DescribedImages | None = None,
) -> StepTrace | None:
    """None: the model's code asks for values, which a trace has not. `shorter`: of rows of half the length."""
    from spillway.model.measure.trace import trace_step

    not_kept = "activation_recompute all" if config.activation_recompute == "all" else model.not_kept
    try:
        return trace_step(
            model.spec.meta_model,
            config.compute_dtype,
            shape_of(config, model, images),
            model.unneeded,
            not_kept,
            model.tiles,
            shorter,
            model.fused,
        )
    except Exception as error:  # of whatever kind a model's code has for it
        kind, why = model.spec.model_config.model_type, first_line(error)
        tell(f"profile: what a layer of {kind} does is taken to be what one of Llama does, since its code asks for "
             f"values ({type(error).__name__}: {why})")  # fmt: skip
        return None


def work_of(
    config: Config, model: Verified, trace: StepTrace | None, images: DescribedImages | None = None
) -> StepWork:
    """The work of one micro-batch."""
    from spillway import _engine
    from spillway.model.source.source import text_config

    shape = shape_of(config, model, images)
    rows = shape.batch
    work = _engine.StepWork(sequence=config.max_length, batch=rows)
    work.query, work.key, work.feed_forward = widths(text_config(model.spec.model_config))
    if trace is not None:
        work.trace = trace.work()
    return described_images.add_work(work, images, model.spec.meta_model, shape)


def growing(work: StepWork, trace: StepTrace | None, longer: StepTrace | None) -> StepWork:
    """The work with the bytes by which the working set grows with each further token: what runs in tiles grows less
    than before."""
    work = copy.copy(work)
    if trace is None or longer is None or (traced := work.trace) is None:
        return work
    traced.per_token = longer.whole.count_growth(trace.whole)
    work.trace = traced
    return work
