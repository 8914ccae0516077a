"""Data of a dry run: weights of a usual size, and micro-batches of random tokens."""

from __future__ import annotations

from itertools import pairwise

import torch

from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import Work, arrange
from spillway.model.meta.meta_model import MetaModel
from spillway.model.stream.plain_engine import PlainEngine

DRAWN = 1 << 20  # random weights, which are repeated: drawing all of a large layer takes seconds


def fill(engine: PlainEngine) -> None:
    """Weights of a usual size: zeros would run faster than a model does, in some places."""
    generator = torch.Generator(engine.memory().device).manual_seed(0)
    drawn = torch.empty(DRAWN, device=engine.memory().device, dtype=engine.dtype).normal_(0, 0.02, generator=generator)
    for number, tensor in enumerate(engine.tensors):
        weight = engine.weight(number)
        if len(tensor.shape) == 1:
            weight.fill_(1.0)
            continue
        for part in weight.view(-1).split(DRAWN):
            part.copy_(drawn[: part.numel()])


def sample(meta_model: MetaModel, sequences: int, length: int, rows: int = 0) -> Work:
    """One micro-batch [sequences, length] in which every token has a label, as many as there can be. Packed, each
    sequence joins so many `rows` of one length, as near as can be; 0: it is not packed."""
    ids = torch.randint(0, meta_model.vocabulary, (sequences, length), generator=torch.Generator().manual_seed(0))
    positions = None
    if rows:
        cuts = [length * row // rows for row in range(rows + 1)]
        positions = torch.cat([torch.arange(end - begin) for begin, end in pairwise(cuts)]).expand(sequences, length)
    return arrange([Batch(ids, ids, positions, sequences * length)])
