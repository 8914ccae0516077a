"""A micro-batch as data loaders and collators make it, checked and turned into what the engine's session takes.

The stream pads on the right and lets rows see what stands before them, so a mask may only hide the end of a row.
Anything else that a collator hands over would be lost; it is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from spillway.config.objectives import OBJECTIVES, ObjectiveEntry
from spillway.errors import InputError
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED

TAKEN = ("input_ids", "labels", "attention_mask", "position_ids")
# what padding-free collators add for kernels that want the same boundaries in another form
SAID_BY_POSITIONS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")  # of pairs, as TRL names them
ANSWER_REFERENCE = ("ref_logps", "ref_KL_logps")  # of answers and of their mismatched rows
PIXELS = "pixel_values"
TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")  # of processors for text and images: zero is text


# Arguments of images have to be said beforehand, since a plan counts the tower that makes their features.
NOT_FOR_IMAGES = "give `images` for rows with images: load(..., images=True), or Session(..., images=BATCH)"


def batch_of(inputs: Mapping[str, Any], packing: bool, arguments: frozenset[str] = frozenset()) -> Batch:
    """`packing`: the model was shown to keep rows apart by their positions. `arguments`: names of the model's arguments
    of images; none: rows are text. InputError for what cannot be streamed.

    input_ids, labels, attention_mask, position_ids: [rows, length]; a mask, if any, is 1 ... 1 0 ... 0 in every row.
    """
    images = images_of(inputs, arguments)
    if images is None:
        return text_of(inputs, packing, NOT_FOR_IMAGES if not arguments else "the batch has no pixels")
    if inputs.get("position_ids") is not None:
        raise InputError("batch: position_ids are the model's own where rows have images; leave them out")
    if packing:
        raise InputError("packing: it joins rows of text alone; leave it out for rows with images")
    text = text_of({name: value for name, value in inputs.items() if name not in images}, packing)
    for name in TOKEN_TYPES:
        if name in images and images[name].shape != text.input_ids.shape:
            raise InputError(
                f"batch: {name} are {list(images[name].shape)}, input_ids {list(text.input_ids.shape)}; both are one a "
                "token"
            )
    return replace(text, images=images)


def drop_row_numbers(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with a mask of 0 and 1, where Axolotl and LLaMA-Factory number the rows of a pack. Positions say the
    same."""
    mask = inputs.get("attention_mask")
    return dict(inputs) if mask is None else {**inputs, "attention_mask": (mask > 0).long()}


def images_of(inputs: Mapping[str, Any], arguments: frozenset[str]) -> dict[str, torch.Tensor] | None:
    """The model's arguments of images among `inputs`. None: the rows are text."""
    images = {name: value for name, value in inputs.items() if name in arguments and value is not None}
    if not images.keys() - set(TOKEN_TYPES):
        return None
    for name, value in images.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"batch: {name} is {type(value).__name__}; expects a tensor (return_tensors='pt')")
    return {name: value.detach().cpu() for name, value in images.items()}


def text_of(inputs: Mapping[str, Any], packing: bool, advice: str = NOT_FOR_IMAGES) -> Batch:
    """A micro-batch of tokens. `advice`: for types of tokens that are not those of text."""
    for name in TOKEN_TYPES:
        if inputs.get(name) is not None and bool(torch.as_tensor(inputs[name]).any()):
            raise InputError(f"batch: {name} is not zero everywhere, as for text; {advice}")
    others = sorted(
        key for key in inputs if key not in TAKEN + SAID_BY_POSITIONS + TOKEN_TYPES and inputs[key] is not None
    )
    if others:
        more = f"; {NOT_FOR_IMAGES}" if PIXELS in others else ""
        raise InputError(f"batch: {others[0]} is nothing the stream computes with; it takes {', '.join(TAKEN)}{more}")
    ids, labels = whole(inputs, "input_ids"), whole(inputs, "labels")
    if labels.shape != ids.shape:
        raise InputError(f"batch: labels are {list(labels.shape)}, input_ids {list(ids.shape)}; both are one a token")
    tokens, lengths = ids.numel(), None
    if inputs.get("attention_mask") is not None:
        mask = whole(inputs, "attention_mask")
        check_mask(mask, ids, labels)
        lengths = mask.sum(1)
        tokens = int(lengths.sum())
    return Batch(ids, labels, positions_of(inputs, ids, packing), tokens, lengths)


def pairs_of(inputs: Mapping[str, Any], referred: bool, objective: ObjectiveEntry = OBJECTIVES["dpo"]) -> Batch:
    """A micro-batch of pairs as TRL's collator makes it: rows that were chosen, then as many that were rejected, and of
    which tokens are completions. `referred`: it has to hold what a reference model makes of them, if there is one."""
    mask = whole(inputs, "completion_mask")
    if inputs.get("labels") is not None:
        raise InputError("batch: labels come from completion_mask where rows are pairs; leave them out")
    columns = ("completion_mask", *(REFERENCE if objective.has_reference else ()))
    others = {name: value for name, value in inputs.items() if name not in columns}
    ids = whole(inputs, "input_ids")
    if mask.shape != ids.shape or len(ids) % 2:
        raise InputError(
            f"batch: completion_mask is {list(mask.shape)}, input_ids {list(ids.shape)}; both are one a token, of as "
            "many rows that were rejected as were chosen"
        )
    found = batch_of({**others, "labels": ids.masked_fill(mask == 0, IGNORED)}, packing=False)
    found = replace(found, rows_each=objective.rows)
    if objective.labels_prompt:
        found = label_prompts(found, mask)
    if not objective.has_reference or (not referred and inputs.get(REFERENCE[0]) is None):
        return found
    return replace(found, reference=torch.cat([of_pairs(inputs, name, len(ids) // 2) for name in REFERENCE]))


def answers_of(inputs: Mapping[str, Any], referred: bool) -> Batch:
    """A micro-batch of answers as `join_answers` makes it. `referred` as in `pairs_of`."""
    others = {name: value for name, value in inputs.items() if name not in ("label", *ANSWER_REFERENCE)}
    found = pairs_of(others, False, OBJECTIVES["kto"])
    answers = len(found.input_ids) // 2
    assert found.lengths is not None
    tokens = int(found.lengths[:answers].sum())  # TRL counts no mismatched rows
    found = replace(found, verdicts=torch.as_tensor(inputs["label"]).bool().cpu(), tokens=tokens)
    if not referred and inputs.get(ANSWER_REFERENCE[0]) is None:
        return found
    return replace(found, reference=torch.cat([of_pairs(inputs, name, answers) for name in ANSWER_REFERENCE]))


def join_answers(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A micro-batch of TRL's KTOTrainer, whose mismatched rows follow the answers: [2 * answers, length]. `label` comes
    first, by which transformers counts a micro-batch's examples."""
    names = ("input_ids", "attention_mask", "completion_mask")
    length = max(batch[f"{prefix}input_ids"].shape[1] for prefix in ("", "KL_"))
    found = {"label": batch["label"]}
    for name in names:
        halves = [batch[f"{prefix}{name}"] for prefix in ("", "KL_")]
        found[name] = torch.cat([functional.pad(half, (0, length - half.shape[1])) for half in halves])
    return found | {name: batch[name] for name in ANSWER_REFERENCE if name in batch}


def label_prompts(batch: Batch, mask: torch.Tensor) -> Batch:
    """The prompts of chosen rows, the first half, carry loss, too. mask: [rows, length], 1 for completions."""
    middle = len(mask) // 2
    before = (mask.cumsum(1) == 0)[:middle]  # of prompts, which end where the completion begins
    labels = batch.labels.clone()
    labels[:middle][before] = batch.input_ids[:middle][before]
    prompts = torch.cat([(before.sum(1) - 1).clamp(min=0), torch.zeros(middle, dtype=torch.int64)])
    return replace(batch, labels=labels, prompts=prompts)


def of_pairs(inputs: Mapping[str, Any], name: str, pairs: int) -> torch.Tensor:
    value = inputs.get(name)
    if value is None:
        raise InputError(
            f"batch: {name} is missing, what the reference makes of the pairs; Session.reference gives it before the "
            f"first step; found {', '.join(inputs)}"
        )
    found = torch.as_tensor(value).detach().cpu()
    if found.shape != (pairs,) or not found.is_floating_point() or not bool(found.isfinite().all()):
        raise InputError(
            f"batch: {name} is {list(found.shape)} {found.dtype}; expects a finite log-probability of each of the "
            f"{pairs} pairs"
        )
    return found


def whole(inputs: Mapping[str, Any], name: str) -> torch.Tensor:
    """A [rows, length] tensor of whole numbers."""
    value = inputs.get(name)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"batch: {name} is missing; found {', '.join(inputs) or 'nothing'}")
    if value.dim() != 2 or value.is_floating_point():
        raise InputError(f"batch: {name} is {list(value.shape)} {value.dtype}; expects whole numbers, [rows, length]")
    return value.detach().to("cpu", torch.int64)


def check_mask(mask: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> None:
    if mask.shape != ids.shape:
        raise InputError(f"batch: attention_mask is {list(mask.shape)}, input_ids {list(ids.shape)}; one a token")
    if bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise InputError(
            "batch: attention_mask hides tokens before others; rows are padded on the right here: "
            "tokenizer.padding_side = 'right'"
        )
    if bool((labels[:, 1:].ne(IGNORED) & mask[:, :-1].eq(0)).any()):
        raise InputError("batch: a label follows a token that attention_mask hides; labels of padding are -100")


def positions_of(inputs: Mapping[str, Any], ids: torch.Tensor, packing: bool) -> torch.Tensor | None:
    """None where they are 0, 1, 2 ... in every row, as the model counts by itself."""
    if inputs.get("position_ids") is None:
        return None
    positions = whole(inputs, "position_ids")
    plain = torch.arange(ids.shape[1]).expand_as(ids)
    if positions.shape == ids.shape and bool(positions.eq(plain).all()) and not packing:
        return None
    follows = positions[:, 1:].eq(positions[:, :-1] + 1) | positions[:, 1:].eq(0)
    if positions.shape != ids.shape or not bool(follows.all()) or bool(positions[:, 0].ne(0).any()):
        raise InputError("batch: position_ids do not count from 0 in every packed row")
    if not packing:
        raise InputError(
            "packing: position_ids begin anew within a row; set packing, so that the model is tried for it"
        )
    return positions
