"""Parts of a Session: its configuration, and the micro-batches that it is given."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.config import Config, normalised, read_file, resolve
from spillway.errors import InputError
from spillway.model.batches.batch import WorkShape
from spillway.model.source import hub
from spillway.output import identity
from spillway.run import rates

if TYPE_CHECKING:
    from spillway.model.batches.batch import Batch

# input_ids, labels, and where wanted attention_mask, position_ids: [rows, length]; of pairs see Session.reference
MicroBatch = Mapping[str, Any]
STEADY = ("constant", "constant_with_warmup", "inverse_sqrt")  # schedules that need no end


OF_COMMAND = (
    "save_steps", "save_strategy", "save_whole_steps", "save_only_model", "eval_steps", "eval_strategy",
    "eval_on_start", "push_to_hub",
)  # fmt: skip


def describe_unused_keys(config: Config, given: set[str]) -> str:
    """A notice of the keys that ask `spillway train` for saves and evaluations; empty without one. `given`: the keys
    that were said."""
    unused = [name for name in OF_COMMAND if name in given and getattr(config, name) not in (None, False, "no")]
    if not unused:
        return ""
    return (
        f"{', '.join(unused)}: no effect in a Session, which saves and evaluates when its `save` and `evaluate` are "
        "called"
    )


def logging_interval(config: Config) -> int:
    """Steps between two rows of metrics.jsonl; below 1 `logging_steps` is a share of `max_steps`."""
    asked = config.logging_steps
    if asked >= 1:
        return int(asked)
    if config.max_steps < 1:
        raise InputError(f"logging_steps: {asked} is a share of max_steps, which is not given")
    return math.ceil(config.max_steps * asked)


def schedule_of(config: Config) -> rates.Rate:
    if config.max_steps < 1 and config.lr_scheduler_type not in STEADY:
        raise InputError(
            f"max_steps: the schedule {config.lr_scheduler_type} needs an end; give it, or lr_scheduler_type: "
            "constant, or step(..., learning_rate=...)"
        )
    return rates.schedule(config, max(config.max_steps, 1))


def check_count(count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise InputError(
            f"gradient_accumulation_steps: the session was planned for steps of up to {most} micro-batches, not {count}"
        )


def plan_images(images: MicroBatch, shape: WorkShape, config: Config) -> tuple[WorkShape, frozenset[str]]:
    """The shape of a session whose largest images are those of this micro-batch, and the names of the arguments that
    come with images. InputError for a model, or a run, that takes text alone."""
    from spillway.data.batches import batch_of
    from spillway.integrations.image_sizes import pad, refuse_images
    from spillway.model.meta.image_tower import list_arguments
    from spillway.model.source.source import load_config

    refuse_images(config)
    if config.ranks.world > 1:
        raise InputError("images: several processes train rows with images by `spillway train`, or with a Trainer")
    arguments = list_arguments(load_config(hub.model_directory(config)))
    largest = batch_of(images, False, arguments)
    if largest.images is None:
        raise InputError("images: the batch has no pixels; give a micro-batch with the largest images there will be")
    return replace(shape, largest_images=pad(largest, shape.length)), arguments


def take_batches(
    batches: list[MicroBatch], shape: WorkShape, config: Config, referred: bool, arguments: frozenset[str]
) -> list[Batch]:
    """The micro-batches as the engine's session takes them. InputError where one is larger than `shape`. `referred`:
    pairs have what the reference makes of them; `arguments`: those of the model that come with images."""
    from spillway.data.batches import batch_of, pairs_of
    from spillway.integrations.image_sizes import require_room

    entry, referred = config.objective_entry, referred and not config.refers_in_step
    if entry.is_labelled:
        return [check_room(each, shape) for each in take_labelled(batches, config)]
    taken = [
        pairs_of(batch, referred, entry) if entry.compares else batch_of(batch, bool(config.packing), arguments)
        for batch in batches
    ]
    for batch in taken:
        check_room(batch, shape)
        require_room(batch.images, shape, "give the largest there will be: Session(..., images=BATCH)")
    return taken


def check_room(batch: Batch, shape: WorkShape) -> Batch:
    """The batch. InputError where it is larger than the session was planned for."""
    if batch.input_ids.numel() > max(shape.batch * shape.length, shape.eval_batch * shape.eval_length):
        rows, length = batch.input_ids.shape
        raise InputError(
            f"max_length: the session was planned for {shape.batch} rows of {shape.length} tokens, not {rows} "
            f"of {length}; set per_device_train_batch_size and max_length to the largest there will be"
        )
    return batch


def take_labelled(batches: list[MicroBatch], config: Config) -> list[Batch]:
    """Micro-batches of a classifier, as transformers' collators make them. The loss is a mean over all labels."""
    from spillway.integrations.classified import Classified
    from spillway.model.source.labels import load_run_config

    model = load_run_config(config, hub.model_directory(config))
    return [replace(Classified(model).batch(batch), rows_each=0) for batch in batches]


def name_columns(rows: list[float]) -> dict[str, Any]:
    """The figures of a micro-batch of pairs, in columns that are named as TRL names them."""
    import torch

    from spillway.data.batches import REFERENCE

    return dict(zip(REFERENCE, torch.tensor(rows, dtype=torch.float64).chunk(2), strict=True))


def same_place(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def refuse_a_run(target: Path) -> None:
    """A save would replace the file by which a run knows its storage paths."""
    try:
        known = identity.load(target)
    except InputError:  # an earlier save's file of the same name
        return
    if known is not None:
        raise InputError(f"save: {target} is the output_dir of a run; name another directory")


def merged(config: Config | Mapping[str, Any] | str | Path | None, values: dict[str, Any]) -> tuple[Config, set[str]]:
    """The configuration, and the names of the keys that were said."""
    name = "config" if config is None or isinstance(config, Config | Mapping) else str(config)
    if isinstance(config, Config):
        config = config.values() | ({"virtual_ranks": None} if config.any_ranks else {})
    config = {} if config is None else config
    file_values = normalised(config, name) if isinstance(config, Mapping) else read_file(Path(config))
    said = normalised(values, "Session()")
    return resolve(copy.copy(file_values), said, name), {*file_values, *said}


def shape_of(config: Config, given: set[str]) -> WorkShape:
    batch = config.rows_each * config.per_device_train_batch_size
    evaluates = "per_device_eval_batch_size" in given
    evaluated = config.rows_each * config.per_device_eval_batch_size if evaluates else batch
    return WorkShape(config.gradient_accumulation_steps, batch, config.max_length, evaluated, config.max_length)
