"""What the head keeps of a vocabulary that it sees in slices."""

from __future__ import annotations

import pytest
import torch

from spillway.model.head import Stats

TOKENS, VOCABULARY = 37, 4096


def peaked_logits() -> tuple[torch.Tensor, torch.Tensor]:
    """As a trained model has them: one token far above the rest. Labels on both ends and between."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator) * 3
    logits[torch.arange(TOKENS), torch.randint(VOCABULARY, (TOKENS,), generator=generator)] += 12
    labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    labels[0], labels[1] = 0, VOCABULARY - 1
    return logits, labels


def folded(logits: torch.Tensor, labels: torch.Tensor, rows: int) -> Stats:
    stats = Stats(TOKENS)
    for first in range(0, VOCABULARY, rows):
        part = logits[:, first : first + rows].contiguous()
        stats.fold(part, first, labels)
        stats.add_spread(part)
    return stats


def test_one_slice_is_the_librarys_log_softmax_bit_for_bit() -> None:
    logits, labels = peaked_logits()
    stats = folded(logits, labels, VOCABULARY)
    mine = (logits - stats.maximum[:, None]) - stats.log_sum[:, None]
    assert torch.equal(mine, logits.log_softmax(1))


@pytest.mark.parametrize("rows", [VOCABULARY, 1024, 1000, 1])
def test_slices_add_up_to_the_loss(rows: int) -> None:
    logits, labels = peaked_logits()
    exact = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum").item()
    assert folded(logits, labels, rows).loss() == pytest.approx(exact, rel=2e-6)


def test_a_token_whose_slice_is_all_minus_infinity() -> None:
    logits, labels = peaked_logits()
    logits[3, :2048] = -torch.inf
    labels[3] = 3000
    exact = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum").item()
    assert folded(logits, labels, 2048).loss() == pytest.approx(exact, rel=2e-6)


@pytest.mark.parametrize("rows", [VOCABULARY, 1000, 1])
def test_slices_add_up_to_the_entropy(rows: int) -> None:
    """Of peaked tokens and flat ones, those whose first slices are all minus infinity, and one far below zero."""
    logits, labels = peaked_logits()
    logits[5:20] /= 10
    logits[20:25, :2000] = -torch.inf
    logits[25] -= 1000
    expected = torch.special.entr(logits.double().softmax(1)).sum(1)
    assert torch.allclose(folded(logits, labels, rows).entropy(), expected, rtol=1e-5, atol=1e-5)
