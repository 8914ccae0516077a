"""The head's two passes over slices of the vocabulary give what plain PyTorch gives of whole logits."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch

import distilled
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import Work, arrange
from spillway.model.head.distillation import Distilled, Divergence, LargestLogits, TopTokens
from spillway.model.head.head import Stats

VOCABULARY, LENGTH = 50, 9
SLICES = (0, 7, 20, 21, 50)  # narrower and wider than the entries that are stored


def make_work(teacher: TopTokens | None = None) -> Work:
    """Two rows, whose first tokens carry no loss."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    labels = ids.clone()
    labels[:, :3] = -100
    return arrange([Batch(ids, labels, None, ids.numel(), teacher=teacher)])


def draw(seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(2 * (LENGTH - 3), VOCABULARY, generator=generator)).to(dtype)


def tiles(tokens: int) -> list[slice]:
    return [slice(0, 5), slice(5, tokens)]


def ask(logits: torch.Tensor, top_k: int, temperature: float, slices: tuple[int, ...] = SLICES) -> TopTokens:
    work = make_work()
    largest = LargestLogits(top_k, temperature, work)
    for first, after in pairwise(slices):
        for tile in tiles(len(logits)):
            largest.add_logits(work.micro_batches[0], tile, logits[tile, first:after], first)
    (found,) = largest.take()
    return found


@pytest.mark.parametrize("top_k", [1, 16, VOCABULARY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_largest_logits_of_slices_are_those_of_the_whole(top_k: int, dtype: torch.dtype) -> None:
    logits = draw(2, dtype)
    before = logits.clone()
    found = ask(logits, top_k, 2.0)
    assert torch.equal(logits, before)
    order = logits.float().sort(1, descending=True)
    assert torch.equal(found.logits, order.values[:, :top_k])
    assert torch.equal(logits.float().gather(1, found.ids.long()), found.logits)
    assert all(len(set(row)) == top_k for row in found.ids.tolist())
    rest = (order.values[:, top_k:].double() / 2).logsumexp(1)
    torch.testing.assert_close(found.rest, rest, rtol=1e-6, atol=1e-6)


CASES = [
    distilled.Loss(VOCABULARY),
    distilled.Loss(16),
    distilled.Loss(1, reverse=True, temperature=0.5),
    distilled.Loss(16, reverse=True, temperature=2.0, alpha=0.3),
    distilled.Loss(16, alpha=0.0),
]


@pytest.mark.parametrize("loss", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_equal_those_of_whole_logits(loss: Any, dtype: torch.dtype) -> None:
    teacher, logits = draw(2, dtype), draw(3, dtype)
    work = make_work(ask(teacher, loss.top_k, loss.temperature))
    (batch,) = work.micro_batches
    leaf = logits.double().requires_grad_()
    expected, divergence = loss.of(leaf, teacher.double(), batch.labels)
    (gradient,) = torch.autograd.grad(expected / work.units, leaf)
    objective = Distilled(Divergence(loss.reverse, loss.temperature, loss.alpha), work, True)
    stats = Stats(len(logits))
    for first, after in pairwise(SLICES):
        stats.fold(logits[:, first:after].float(), first, batch.labels)
        for tile in tiles(len(logits)):
            objective.add_logits(batch, tile, logits[tile, first:after], first)
    (found,) = objective.losses({0: stats})
    assert found == pytest.approx(float(expected), rel=1e-6)
    (told,) = objective.list_figures({0: stats})
    assert told["kl"] == pytest.approx(float(divergence) / len(logits), rel=1e-6)
    made = logits.clone()
    for first, after in pairwise(SLICES):
        for tile in tiles(len(logits)):
            part = stats.select(tile)
            objective.differentiate(batch, tile, made[tile, first:after], first, part, objective.weigh(4.0))
    close = {"rtol": 1e-5, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-6}
    torch.testing.assert_close(made.double(), 4 * gradient, **close)


def test_the_rest_keeps_masses_that_a_difference_from_one_would_lose() -> None:
    logits = torch.zeros(12, VOCABULARY)
    logits[:, 3] = 60.0
    found = ask(logits, 1, 1.0)
    assert torch.equal(found.ids, torch.full((12, 1), 3, dtype=torch.int32))
    torch.testing.assert_close(found.rest.exp(), torch.full((12,), VOCABULARY - 1.0, dtype=torch.float64))


def test_parts_of_a_pass_keep_the_order_of_the_data() -> None:
    """Virtual ranks take micro-batches in another order."""
    work = make_work()
    batch = work.micro_batches[0]
    batches = [dataclasses.replace(batch, index=index, number=1 - index) for index in (0, 1)]
    largest = LargestLogits(2, 1.0, dataclasses.replace(work, micro_batches=batches))
    logits = [draw(seed, torch.float32) for seed in (4, 5)]
    for each, given in zip(batches, logits, strict=True):
        largest.add_logits(each, slice(0, len(given)), given, 0)
    assert [torch.equal(found.logits, given.topk(2, 1).values) for found, given in
            zip(largest.take(), reversed(logits), strict=True)] == [True, True]  # fmt: skip
