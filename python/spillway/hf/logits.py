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
