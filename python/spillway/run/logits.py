"""Logits of whole rows out of a streamed pass, for generation and for metrics that look at them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from spillway.base.calls import translated
from spillway.errors import InputError
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import MicroBatch, Share, Work, arrange, consecutive
from spillway.model.head.objective import CrossEntropy
from spillway.model.stream.stream import Stream

PIECE = 256  # tokens whose logits are widened at a time


def logits(stream: Stream, most: int, ids: torch.Tensor, last: int, share: Share) -> torch.Tensor:
    """The logits of the `last` positions of every row (0: of all): [rows, positions, vocabulary]. ids: [rows, length],
    the same in all processes. `most`: tokens that were planned for."""
    rows, length = ids.shape
    if rows * length > most:
        raise InputError(f"max_length: {rows} rows of {length} tokens are more than was planned for, {most} tokens")
    if any(other != ids.tolist() for other in share.gather(ids.tolist())):
        raise InputError("model: all processes of a run call the model with the same input_ids, and these differ")
    kept = min(last or length, length)
    tokens = torch.arange(rows * length).view(rows, length)[:, length - kept :].reshape(-1)
    batch = micro_batch(0, 0, ids, tokens, None, None)
    share_of = share.take(1)
    values = compute_token_logits(stream, Work(ids.reshape(-1), [batch]), 0).view(rows, kept, -1)
    return next(each for each in share.gather(values if share_of.stop else None) if each is not None)


def evaluate_whole(stream: Stream, batches: Sequence[Batch], own: int) -> tuple[float, int, torch.Tensor]:
    """(loss summed over label tokens, label tokens) of micro-batch `own`, and its logits [rows, length, vocabulary].
    `batches`: one of each process."""
    work = arrange(batches)
    asked = [
        replace(
            micro_batch(
                each.number, each.first, batch.input_ids, torch.arange(each.tokens), each.position_ids, each.real
            ),
            images=batch.images,
        )
        for each, batch in zip(work.micro_batches, batches, strict=True)
    ]
    predictions = compute_token_logits(stream, replace(work, micro_batches=asked), own)
    arranged, (rows, length) = work.micro_batches[own], batches[own].input_ids.shape
    parts = list(zip(arranged.labelled.split(PIECE), arranged.labels.split(PIECE), strict=True))
    loss_sum = math.fsum(
        float(torch.nn.functional.cross_entropy(predictions[part].float(), labels, reduction="sum"))
        for part, labels in parts
    )
    right = sum(int((predictions[part].argmax(1) == labels).sum()) for part, labels in parts)
    accuracy = right / max(1, arranged.labelled.numel())
    told = {"mean_token_accuracy": accuracy}
    stream.tell = lambda: stream.share.gather(told)
    loss_sum += stream.auxiliaries.get(own, 0.0) / arranged.tokens * arranged.labelled.numel()
    return loss_sum, arranged.labelled.numel(), predictions.view(rows, length, -1)


def micro_batch(
    number: int,
    first: int,
    ids: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor | None,
    real: torch.Tensor | None,
) -> MicroBatch:
    """In which each of these tokens, counted row by row, has label 0."""
    rows, length = ids.shape
    labels, ones = torch.zeros_like(tokens), 0.0 if real is None else float(real.sum())
    return MicroBatch(
        number, first, rows, length, positions, tokens, labels, real, consecutive(tokens), ones, number=number
    )


def compute_token_logits(stream: Stream, work: Work, own: int) -> torch.Tensor:
    """[tokens, vocabulary], of the label tokens of micro-batch number `own`, where this process computes it."""
    meta_model = stream.meta_model
    rows = torch.empty(work.micro_batches[own].labelled.numel(), meta_model.vocabulary, dtype=meta_model.dtype)

    def watch(batch: MicroBatch, values: torch.Tensor, first: int) -> None:
        if batch.number == own:
            rows[:, first : first + values.shape[1]] = values

    with translated():
        stream.evaluate(work, watch, CrossEntropy)
    return rows
