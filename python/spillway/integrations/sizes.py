"""How large the steps of a Trainer get: found from its data before anything is planned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.errors import InputError
from spillway.integrations.classified import Classified
from spillway.integrations.image_sizes import count_pixels, find_largest, pad
from spillway.integrations.loading import Origin
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.source.source import is_classifier
from spillway.output.directory import checkpoints
from spillway.run import room
from spillway.run.protocol import Saving
from spillway.run.world import World

if TYPE_CHECKING:
    from spillway.config import Config

UNKNOWN = (
    "max_length: how long rows get cannot be seen from {}; say it: load(..., max_length=1024), and cut rows to it "
    "where they are tokenized"
)
PAIR_IDS = ("chosen_ids", "rejected_ids")  # columns of whole rows, as TRL has them
ANSWER_IDS = ("prompt_ids", "completion_ids", "KL_completion_ids")  # columns of answers, as TRL has them


# Trainer's loop keeps the logits of all batches, a tensor that they are joined in, and a NumPy array, fp32 for bf16.
HELD = 4


@dataclass(frozen=True)
class Sizes:
    shape: WorkShape
    packing: bool  # rows are joined, kept apart by their positions


@dataclass(frozen=True)
class Longest:
    """The largest micro-batch that the collator of one dataset makes."""

    rows: int
    length: int
    packing: bool
    images: Batch | None = None  # the micro-batch with the most pixels


def largest(trainer: Any, origin: Origin) -> Sizes:
    """From `load(max_length=...)` where that was given, else from the rows, through the collator."""
    args = trainer.args
    train = held_out = None
    others: list[Longest] = []
    each = 1 if trainer._pairs is None or isinstance(trainer._pairs, Classified) else 2
    rows: dict[str, Any] = {"cut": getattr(args, "max_length", None), "each": each}
    with torch.random.fork_rng(devices=[]):
        if trainer.train_dataset is not None:
            train = find_longest(trainer.get_train_dataloader(), args.train_batch_size, "train_dataset", origin, **rows)
        if trainer.eval_dataset is not None:
            sets = trainer.eval_dataset
            names = list(sets) if isinstance(sets, dict) else [None]
            others = [
                find_longest(trainer.get_eval_dataloader(name), args.eval_batch_size, "eval_dataset", origin, **rows)
                for name in names
            ]
            held_out = max(others, key=lambda each: each.rows * each.length)
    if train is None and held_out is None:
        raise InputError("train_dataset: there is neither this nor eval_dataset, so nothing can be planned")
    planned = train or held_out
    assert planned is not None
    packing = any(each.packing for each in (train, held_out) if each) or bool(origin.config.packing)
    shape = WorkShape(
        micro_batches=(args.gradient_accumulation_steps if train else 1) * trainer._world.ranks.world,
        batch=planned.rows,
        length=planned.length,
        eval_batch=held_out.rows if held_out else 0,
        eval_length=held_out.length if held_out else 0,
        logits=held_logits(trainer, held_out) if held_out else 0,
        largest_images=find_most_pixels(each.images for each in (train, *others) if each is not None),
    )
    return Sizes(shape, packing)


def join_sizes(world: World, own: Sizes) -> Sizes:
    """The largest of any process, which may have other rows than the others."""
    every = world.gather(own)
    names = ("batch", "length", "eval_batch", "eval_length", "logits")
    largest = {name: max(getattr(each.shape, name) for each in every) for name in names}
    images = find_most_pixels(each.shape.largest_images for each in every)
    padded = None if images is None else pad(images, largest["length"])
    return Sizes(replace(own.shape, **largest, largest_images=padded), any(each.packing for each in every))


def find_most_pixels(batches: Iterable[Batch | None]) -> Batch | None:
    """The micro-batch with the most pixels; None: no micro-batch has images."""
    given = (batch for batch in batches if batch is not None)
    return max(given, key=lambda batch: count_pixels(batch.images), default=None)


def held_logits(trainer: Any, held_out: Longest) -> int:
    """Positions whose logits are there at once where compute_metrics looks at them: a batch's where
    preprocess_logits_for_metrics makes less of it, else every one's, HELD times over."""
    if trainer.compute_metrics is None or is_classifier(trainer.model.config):
        return 0  # scores of a few labels take next to nothing
    batch = held_out.rows * held_out.length
    if trainer.preprocess_logits_for_metrics is not None or trainer.args.batch_eval_metrics:
        return batch
    sets = trainer.eval_dataset
    try:
        rows = max(map(len, sets.values() if isinstance(sets, dict) else [sets]))
    except TypeError:
        raise InputError(
            "compute_metrics: how many logits the evaluation would hold cannot be seen from an iterated eval_dataset; "
            "give preprocess_logits_for_metrics, which makes less of each batch's"
        ) from None
    return batch + HELD * rows * held_out.length


def find_longest(loader: Any, batch: int, name: str, origin: Origin, cut: int | None = None, each: int = 1) -> Longest:
    """The largest batch of a dataset. `loader`: the dataset after columns were removed, and its collator. For an
    iterable dataset, `cut`: tokens that TRL cuts rows to; `each`: rows that the collator makes of one."""
    if origin.images.arguments:
        measured = find_largest(loader, batch, name, origin, cut, is_iterated(loader.dataset))
        return Longest(measured.rows, measured.length, False, measured.images)
    given = origin.config.max_length if "max_length" in origin.given else None
    rows = loader.dataset
    if is_iterated(rows):
        if (given := given or cut) is None:
            raise InputError(UNKNOWN.format(f"{name}, which is iterated"))
        if is_padding_free(loader.collate_fn):
            return Longest(1, given * batch, True)
        return Longest(each * batch, given, bool(origin.config.packing))
    sample = [rows[0]] * min(2, batch)
    one, packing = collated(loader.collate_fn, sample)
    many = one.shape[0]
    flat = len(sample) > 1 and many == 1  # padding-free: the rows of a batch lie one after the other
    if given is None:
        place = longest_place(rows, name)
        one, _ = collated(loader.collate_fn, [rows[place]])
        given = one.shape[1]
    count = min(batch, len(rows))
    each = many // len(sample)  # of a pair two
    return Longest(1, given * count, packing) if flat else Longest(each * count, given, packing)


def is_iterated(rows: Any) -> bool:
    """True if rows cannot be indexed: the class says so, or the dataset gives no first row."""
    if isinstance(rows, torch.utils.data.IterableDataset) or not hasattr(rows, "__getitem__"):
        return True
    try:
        rows[0]
    except (TypeError, KeyError, NotImplementedError):
        return True
    return False


def is_padding_free(collator: Any) -> bool:
    """True if the rows of a batch lie one after the other, by the attributes of TRL's collators."""
    while inner := getattr(collator, "data_collator", None):
        collator = inner
    return bool(getattr(collator, "padding_free", False))


def collated(collator: Any, rows: list[Any]) -> tuple[torch.Tensor, bool]:
    """input_ids of a batch, and whether positions in it begin anew."""
    batch = collator(rows)
    positions = batch.get("position_ids")
    anew = positions is not None and bool((positions[:, 1:] == 0).any())
    return batch["input_ids"], anew


def longest_place(rows: Any, name: str) -> int:
    """Index of the row with most tokens."""
    try:
        columns = getattr(rows, "column_names", None) or ()
        if "chosen_ids" in columns and "prompt_ids" not in columns:  # pairs of whole rows
            lengths = [max(pair) for pair in zip(*(map(len, rows[each]) for each in PAIR_IDS), strict=True)]
        elif "chosen_ids" in columns:  # pairs, as TRL has them
            parts = zip(*(map(len, rows[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")), strict=True)
            lengths = [prompt + max(chosen, rejected) for prompt, chosen, rejected in parts]
        elif "KL_completion_ids" in columns:  # answers, each with a mismatched one
            parts = zip(*(map(len, rows[name]) for name in ANSWER_IDS), strict=True)
            lengths = [prompt + max(own, other) for prompt, own, other in parts]
        elif "chosen_input_ids" in columns:  # the same, as trl.experimental has them
            names = ("chosen_input_ids", "rejected_input_ids")
            lengths = [max(pair) for pair in zip(*(map(len, rows[each]) for each in names), strict=True)]
        else:
            ids = rows["input_ids"] if "input_ids" in columns else (row["input_ids"] for row in each_of(rows))
            lengths = [len(each) for each in ids]
    except (KeyError, TypeError, IndexError):
        raise InputError(UNKNOWN.format(f"{name}: its rows have no input_ids")) from None
    return max(range(len(lengths)), key=lengths.__getitem__)


def each_of(rows: Any) -> Iterator[Any]:
    """The rows, read by number: indexed data need not be iterable."""
    return (rows[place] for place in range(len(rows)))


def row_count(rows: Any) -> int | None:
    """None where they are iterated."""
    try:
        return len(rows)
    except TypeError:
        return None


def saves(trainer: Any) -> int:
    """Checkpoints that there are at once while it trains, by its arguments."""
    args = trainer.args
    if args.save_total_limit:
        return int(args.save_total_limit) + bool(args.load_best_model_at_end)
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no":
        return 0
    steps, epochs = length_of(trainer)
    every = args.save_steps if strategy == "steps" else args.eval_steps
    if strategy == "epoch" or not every:
        return epochs
    return math.ceil(1 / every) if every < 1 else steps // int(every)


def saving_of(trainer: Any, config: Config) -> Saving | None:
    """The files that training writes to output_dir; None: it writes none."""
    args = trainer.args
    if trainer.train_dataset is None:
        return None
    output_dir, most = Path(args.output_dir), saves(trainer)
    there = tuple(room.freeable(path) for _, path in checkpoints(output_dir))
    steps, _ = length_of(trainer)
    log = max(0, steps) * room.ROW_BYTES
    return Saving(
        output_dir=output_dir,
        saves=most + 1 if args.save_total_limit else max(0, most - len(there)),
        limit=most if args.save_total_limit else None,
        there=there,
        small=room.tokenizer_bytes(config) + room.FILE_BYTES + log,
        beside=room.RUN_BYTES + log,
        model_only=bool(args.save_only_model),
        copies=True,
    )


def length_of(trainer: Any) -> tuple[int, int]:
    """Steps and epochs of a training; data that is iterated is trained on once."""
    args = trainer.args
    with torch.random.fork_rng(devices=[]):
        batches = row_count(trainer.get_train_dataloader())
    if batches is None:
        return args.max_steps, 1
    an_epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * an_epoch)
    return steps, math.ceil(steps / an_epoch)
