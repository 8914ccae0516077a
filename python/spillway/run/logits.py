"""Logits of whole rows out of a streamed pass, for generation and for metrics that look at them."""

from __future__ import annotations

import math

import torch

from spillway.base.calls import translated
from spillway.errors import InputError
from spillway.model.batch import Batch
from spillway.model.microbatch import MicroBatch, Work, arrange, consecutive
from spillway.model.objective import CrossEntropy
from spillway.model.stream import Outcome, Stream

PIECE = 256  # tokens whose logits are widened at a time


def logits(stream: Stream, most: int, ids: torch.Tensor, last: int = 0) -> torch.Tensor:
    """The logits of the `last` positions of every row (0: of all): [rows, positions, vocabulary]. ids: [rows, length].
    `most`: tokens that were planned for."""
    rows, length = ids.shape
    if rows * length > most:
        raise InputError(f"max_length: {rows} rows of {length} tokens are more than was planned for, {most} tokens")
    kept = min(last or length, length)
    tokens = torch.arange(rows * length).view(rows, length)[:, length - kept :].reshape(-1)
    return of_tokens(stream, ids, tokens, None, None)[0].view(rows, kept, -1)


def evaluate_whole(stream: Stream, batch: Batch) -> tuple[float, int, torch.Tensor]:
    """(loss summed over label tokens, label tokens) of one micro-batch, and its logits [rows, length, vocabulary]."""
    rows, length = batch.input_ids.shape
    (arranged,) = arrange([batch]).micro_batches
    found, outcome = of_tokens(
        stream, batch.input_ids, torch.arange(rows * length), arranged.position_ids, arranged.real
    )
    parts = list(zip(arranged.labelled.split(PIECE), arranged.labels.split(PIECE), strict=True))
    loss_sum = math.fsum(
        float(torch.nn.functional.cross_entropy(found[part].float(), labels, reduction="sum")) for part, labels in parts
    )
    right = sum(int((found[part].argmax(1) == labels).sum()) for part, labels in parts)
    accuracy = right / max(1, arranged.labelled.numel())
    stream.tell = lambda: [{"mean_token_accuracy": accuracy}]
    loss_sum += outcome.auxiliary / max(1, outcome.label_tokens) * arranged.labelled.numel()
    return loss_sum, arranged.labelled.numel(), found.view(rows, length, -1)


def of_tokens(
    stream: Stream,
    ids: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor | None,
    real: torch.Tensor | None,
) -> tuple[torch.Tensor, Outcome]:
    """[tokens, vocabulary], of these tokens counted row by row; the outcome of a pass in which each had label 0."""
    rows, length = ids.shape
    labels, ones = torch.zeros_like(tokens), 0.0 if real is None else float(real.sum())
    batch = MicroBatch(0, 0, rows, length, positions, tokens, labels, real, consecutive(tokens), ones)
    work = Work(ids.reshape(-1), [batch])
    meta_model = stream.meta_model
    found = torch.empty(tokens.numel(), meta_model.vocabulary, dtype=meta_model.dtype)

    def watch(_: MicroBatch, values: torch.Tensor, first: int) -> None:
        found[:, first : first + values.shape[1]] = values

    with translated():
        outcome = stream.evaluate(work, watch, CrossEntropy)
    return found, outcome
