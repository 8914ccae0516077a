"""Logits [tokens, rows] of one slice of the vocabulary, taken a few tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def token_parts(logits: torch.Tensor) -> Iterator[slice]:
    """Runs of tokens whose fp32 logits take a megabyte or so."""
    step = max(1, (1 << 18) // logits.shape[1])
    for first in range(0, logits.shape[0], step):
        yield slice(first, first + step)


def labels_inside(labels: torch.Tensor, first_row: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which labels lie in the slice, and a valid column for each."""
    columns = labels - first_row
    here = (columns >= 0) & (columns < rows)
    return here, torch.where(here, columns, 0)


def loss_gradient(
    logits: torch.Tensor,
    first_row: int,
    labels: torch.Tensor,
    maximum: torch.Tensor,
    log_sum: torch.Tensor,
    scale: float | torch.Tensor,
) -> None:
    """In place: d loss / d logits of the slice, times scale, which is one number or fp32 [tokens]; see
    Engine.loss_gradient."""
    for part in token_parts(logits):
        values = ((logits[part].float() - maximum[part][:, None]) - log_sum[part][:, None]).exp_()
        here, columns = labels_inside(labels[part], first_row, logits.shape[1])
        values.scatter_add_(1, columns[:, None], -here.float()[:, None])
        logits[part] = values.mul_(scale[part][:, None] if isinstance(scale, torch.Tensor) else scale)


def loss_stats(
    logits: torch.Tensor,
    first_row: int,
    labels: torch.Tensor,
    maximum: torch.Tensor,
    sum: torch.Tensor,
    gold: torch.Tensor,
) -> None:
    """Folds a slice into the running log-sum-exp; see Engine.loss_stats."""
    for part in token_parts(logits):
        values = logits[part].float()
        highest = torch.maximum(maximum[part], values.amax(1))
        sum[part] = sum[part] * (maximum[part] - highest).exp() + (values - highest[:, None]).exp_().sum(1)
        maximum[part] = highest
        here, columns = labels_inside(labels[part], first_row, logits.shape[1])
        gold[part] = torch.where(here, values.gather(1, columns[:, None]).view(-1), gold[part])
