"""Losses and gradients of the head, which sees a vocabulary in slices and label tokens in groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED, Work, arrange
from spillway.model.head.head import HeadPass, Scratch, Stats
from spillway.model.head.head_groups import form_groups
from spillway.model.head.logits import loss_gradient, loss_stats
from spillway.model.head.objective import Choice, CrossEntropy
from spillway.model.head.preference import Compared
from spillway.model.head.row_losses import Preference
from spillway.model.layers.token_tiles import Parts, TokenTiles

TOKENS, VOCABULARY = 37, 4096
LENGTH, HIDDEN, SLICE = 12, 24, 40  # of a small head: tokens of a row, columns, rows of a slice
JOINED = TokenTiles(head_tokens=10**6)


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


@dataclass
class Gradients:
    """Stands for the engine: adds the table's gradients, and notes their parts."""

    parts: list[int] = field(default_factory=list)  # of one slice, in the order they came
    sums: dict[int, torch.Tensor] = field(default_factory=dict)  # by the slice's first row
    first_row: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def loss_scale(self) -> tuple[float, int]:
        return 1.0, 0

    def loss_stats(self, *arguments: Any) -> None:
        self.calls["loss_stats"] += 1
        loss_stats(*arguments)

    def loss_gradient(self, *arguments: Any) -> None:
        self.calls["loss_gradient"] += 1
        loss_gradient(*arguments)

    def head_gradient(self, values: torch.Tensor, part: int) -> None:
        self.calls["head_gradient"] += 1
        if self.first_row == 0:
            self.parts.append(part)
        self.sums[self.first_row] = self.sums.get(self.first_row, 0) + values.double()


def masked_batches(count: int, pairs: bool = False) -> list[Batch]:
    """Rows whose prompts have no label, packed rows of labels without a gap, and a micro-batch without any label."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for number in range(count):
        ids = torch.randint(0, 3 * SLICE, (2, LENGTH), generator=generator)
        labels = ids.clone()
        if number % 3 == 0:
            labels[:, : 3 + number % 5] = IGNORED
        if number == 2 and not pairs:
            labels[:] = IGNORED
        reference = torch.tensor([-3.0, -4.0], dtype=torch.float64) if pairs else None
        batches.append(Batch(ids, labels, None, 2 * LENGTH, reference=reference, rows_each=2 * pairs))
    return batches


def run_head(work: Work, tiles: TokenTiles, objective: Choice, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Losses by micro-batch, d loss / d hidden [tokens, HIDDEN], the table's gradient [rows, HIDDEN], the engine."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(work.tokens, HIDDEN, generator=generator).to(dtype)
    table = torch.randn(3 * SLICE - 7, HIDDEN, generator=generator).to(dtype)
    work = arrange_within(work, len(table))
    parts, engine = Parts(tiles), Gradients()
    parts.begin(work.micro_batches)
    head = HeadPass(engine, work.micro_batches, objective(work, True), Scratch(), parts=parts)  # type: ignore[arg-type]
    slices = [(first, table[first : first + SLICE]) for first in range(0, len(table), SLICE)]
    for first, rows in slices:
        head.add_loss(hidden, rows, first)
    sums = torch.full((work.tokens, HIDDEN), torch.nan)
    for first, rows in reversed(slices):
        engine.first_row = first
        head.add_gradient(hidden, rows, first, sums)
    gradient = torch.full_like(hidden, torch.nan)
    head.spread(sums, gradient)
    return head.losses(), gradient, torch.cat([engine.sums[first] for first, _ in slices]), engine


def arrange_within(work: Work, rows: int) -> Work:
    """The same work with labels that the table has."""
    for batch in work.micro_batches:
        batch.labels.clamp_(max=rows - 1)
    return work


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("objective", [CrossEntropy, partial(Compared, Preference())], ids=["cross-entropy", "dpo"])
@pytest.mark.parametrize("limit", [10**6, 30], ids=["whole ranks", "30 tokens"])
def test_joined_micro_batches_give_the_gradients_of_single_ones(ranks: int, objective: Choice, limit: int) -> None:
    work = arrange(masked_batches(7, objective is not CrossEntropy), virtual_ranks=ranks)
    one = run_head(work, TokenTiles(), objective)
    other = run_head(work, TokenTiles(head_tokens=limit), objective)
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    assert torch.allclose(one[1], other[1], rtol=1e-5, atol=1e-7)
    assert torch.allclose(one[2], other[2], rtol=1e-5, atol=1e-6)
    assert one[1].abs().max() > 1e-3


def test_joined_micro_batches_equal_autograd() -> None:
    work = arrange(masked_batches(4))
    losses, gradient, of_table, _ = run_head(work, JOINED, CrossEntropy)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(work.tokens, HIDDEN, generator=generator).double().requires_grad_()
    table = torch.randn(3 * SLICE - 7, HIDDEN, generator=generator).double().requires_grad_()
    rows = torch.cat([batch.labelled + batch.first for batch in work.micro_batches])
    labels = torch.cat([batch.labels for batch in work.micro_batches])
    loss = torch.nn.functional.cross_entropy(hidden[rows] @ table.t(), labels, reduction="sum")
    (loss / len(labels)).backward()
    assert sum(losses) == pytest.approx(loss.item(), rel=1e-6)
    assert torch.allclose(gradient.double(), hidden.grad, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(of_table, table.grad, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_a_group_is_a_virtual_rank_in_the_order_of_the_step() -> None:
    work = arrange(masked_batches(7), virtual_ranks=3)
    parts = Parts(JOINED)
    parts.begin(work.micro_batches)
    groups = form_groups(work.micro_batches, parts)
    members: dict[int, list[int]] = defaultdict(list)
    for batch in work.micro_batches:
        members[batch.rank].append(batch.index)
    assert [[member.batch.index for member in group.members] for group in groups] == list(members.values())
    assert [group.part for group in groups] == [indices[-1] for indices in members.values()]
    assert [group.size for group in groups] == [
        sum(work.micro_batches[index].labelled.numel() for index in indices) for indices in members.values()
    ]


def test_a_limit_splits_a_virtual_rank_between_micro_batches() -> None:
    work = arrange(masked_batches(7))
    counts = [batch.labelled.numel() for batch in work.micro_batches]
    parts = Parts(TokenTiles(head_tokens=2 * max(counts)))
    parts.begin(work.micro_batches)
    groups = form_groups(work.micro_batches, parts)
    assert len(groups) > 1 and all(group.size <= 2 * max(counts) for group in groups)
    assert sum(group.size for group in groups) == sum(counts)
    assert [group.part for group in groups] == sorted(group.part for group in groups)


class Launches(TorchDispatchMode):
    """Counts the operations that a GPU would launch a kernel for: all but views and tensors without values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {
            each.untyped_storage()._cdata for each in tree_leaves([args, kwargs]) if isinstance(each, torch.Tensor)
        }
        new = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        makes = any(each.untyped_storage()._cdata not in given for each in new) and "empty" not in func._schema.name
        if makes or func._schema.is_mutable:
            self.names[func._schema.name] += 1
        return made


class Silent(Gradients):
    """Counts the engine's kernels, and runs none."""

    def loss_stats(self, *_: Any) -> None:
        self.calls["loss_stats"] += 1

    def loss_gradient(self, *_: Any) -> None:
        self.calls["loss_gradient"] += 1

    def head_gradient(self, values: torch.Tensor, part: int) -> None:
        self.calls["sum"] += 1
        self.calls["round"] += 1


@pytest.mark.parametrize("micro_batches", [8, 16])
def test_a_slice_takes_at_most_twelve_launches(micro_batches: int) -> None:
    """Of bf16 on a GPU, both passes together, whatever the number of micro-batches: the second slice of each pass."""
    work = arrange(masked_batches(micro_batches))
    parts, engine = Parts(JOINED), Silent()
    parts.begin(work.micro_batches)
    objective = CrossEntropy(work)
    head = HeadPass(engine, work.micro_batches, objective, Scratch(), parts=parts)  # type: ignore[arg-type]
    hidden, table = torch.randn(work.tokens, HIDDEN).bfloat16(), torch.randn(2 * SLICE, HIDDEN).bfloat16()
    sums = torch.zeros(work.tokens, HIDDEN)
    head.add_loss(hidden, table[:SLICE], 0)
    with Launches() as first:
        head.add_loss(hidden, table[SLICE:], SLICE)
    head.add_gradient(hidden, table[SLICE:], SLICE, sums)
    engine.calls.clear()
    with Launches() as second:
        head.add_gradient(hidden, table[:SLICE], 0, sums)
    names = first.names + second.names
    assert names["aten::mm"] == 4
    assert names.total() + engine.calls.total() + 1 <= 12, (names, engine.calls)  # and pass 1's loss_stats
