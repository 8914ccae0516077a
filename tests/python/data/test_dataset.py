"""Rows as batches: cutting, padding, packing, dropping. The packed case is compared with an obvious version."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.data.dataset import Builder, Dataset
from spillway.data.encode import Encoded

PAD = 0


def built(rows: list[Encoded], max_length: int, packing: bool = False, pieces: bool = False) -> Dataset:
    builder = Builder(max_length, packing, pieces, PAD)
    for row in rows:
        builder.add(row)
    return builder.finish()


def everything(dataset: Dataset) -> tuple[list[list[int]], list[list[int]], Any]:
    batch = dataset.batch(np.arange(len(dataset)))
    positions = None if batch.position_ids is None else batch.position_ids.tolist()
    return batch.input_ids.tolist(), batch.labels.tolist(), positions


def counted(length: int, first: int = 1) -> Encoded:
    return Encoded(range(first, first + length), [True] * length)


def test_rows_are_cut_and_padded_on_the_right() -> None:
    dataset = built([counted(5), counted(2), Encoded([7, 8, 9], [False, True, False])], max_length=4)
    ids, labels, positions = everything(dataset)
    assert ids == [[1, 2, 3, 4], [1, 2, 0, 0], [7, 8, 9, 0]]
    assert labels == [[1, 2, 3, 4], [1, 2, -100, -100], [-100, 8, -100, -100]]
    assert positions is None
    assert dataset.longest == 4
    assert dataset.batch(np.array([1, 2])).tokens == 5


def test_padding_is_to_the_longest_of_the_micro_batch() -> None:
    dataset = built([counted(5), counted(2), counted(3)], max_length=8)
    assert dataset.batch(np.array([2, 1])).input_ids.tolist() == [[1, 2, 3], [1, 2, 0]]


def test_a_label_that_equals_the_padding_stays() -> None:
    ids, labels, _ = everything(built([Encoded([4, PAD, 5], [True] * 3), counted(4)], max_length=8))
    assert (ids[0], labels[0]) == ([4, PAD, 5, PAD], [4, PAD, 5, -100])


def test_rows_without_labels_are_dropped_and_counted() -> None:
    rows = [counted(3), Encoded([1, 2], [True, False]), counted(1), Encoded([], []), Encoded([1, 2, 3], [False] * 3)]
    dataset = built(rows, max_length=8)
    assert (len(dataset), dataset.dropped) == (1, 4)


def test_a_completion_beyond_the_cut_leaves_no_label() -> None:
    assert built([Encoded([1, 2, 3], [False, False, True])], max_length=2).dropped == 1


def test_a_document_is_cut_into_pieces() -> None:
    ids, _, positions = everything(built([counted(10)], max_length=4, pieces=True))
    assert ids == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]
    assert positions is None


def test_packing_by_hand() -> None:
    dataset = built([counted(3), counted(4, 11), counted(2, 21)], max_length=5, packing=True)
    ids, labels, positions = everything(dataset)
    assert ids == [[1, 2, 3, 11, 12], [13, 14, 21, 22, 0]]
    assert labels == [[-100, 2, 3, -100, 12], [13, 14, -100, 22, -100]]
    assert positions == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 0]]
    assert dataset.token_count == 9


def test_rows_of_a_piece_count_as_many_of_one_length() -> None:
    """By what attention does: the square of each."""
    rows = [counted(8), counted(12), counted(4)]
    assert built(rows, 4, packing=True).packed_rows == 1.0 and built(rows, 24).packed_rows == 1.0
    assert built(rows, 24, packing=True).packed_rows == pytest.approx(24**2 / (8**2 + 12**2 + 4**2))
    by_hand = built([counted(3), counted(4, 11), counted(2, 21)], max_length=5, packing=True)
    assert by_hand.packed_rows == pytest.approx((5**2 + 4**2) / (3**2 + 2**2 + 2**2 + 2**2))


def test_a_piece_without_labels_is_dropped() -> None:
    silent = Encoded([5] * 6, [False] * 5 + [True])
    dataset = built([counted(2), silent], max_length=2, packing=True)
    assert everything(dataset)[0] == [[1, 2], [5, 5]]
    assert dataset.dropped == 2


def test_nothing_at_all() -> None:
    for packing in (False, True):
        dataset = built([], 4, packing)
        assert (len(dataset), dataset.longest, dataset.token_count) == (0, 0, 0)


ROWS = st.lists(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12), max_size=12)


def obvious_packing(rows: list[list[tuple[int, bool]]], size: int) -> list[list[tuple[int, int, int]]]:
    """(token, label, position) of every piece, by walking over single tokens."""
    joined = []
    for number, row in enumerate(rows):
        if any(loss for _, loss in row[1:]):
            joined += [(token, loss, number) for token, loss in row]
    pieces = []
    for first in range(0, len(joined), size):
        piece: list[tuple[int, int, int]] = []
        position = 0
        for at in range(first, min(first + size, len(joined))):
            token, loss, row_number = joined[at]
            starts_row = at == 0 or joined[at - 1][2] != row_number
            position = 0 if at == first or starts_row else position + 1
            piece.append((token, token if loss and not starts_row else -100, position))
        pieces.append(piece)
    return [piece for piece in pieces if any(label != -100 for _, label, _ in piece[1:])]


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(2, 9))
def test_packing_equals_the_obvious_version(rows: list[list[tuple[int, bool]]], size: int) -> None:
    encoded = [Encoded([token for token, _ in row], [loss for _, loss in row]) for row in rows]
    dataset = built(encoded, size, packing=True)
    expected = obvious_packing(rows, size)
    assert len(dataset) == len(expected)
    for number, piece in enumerate(expected):
        batch = dataset.batch(np.array([number]))
        assert batch.position_ids is not None
        found = zip(batch.input_ids[0].tolist(), batch.labels[0].tolist(), batch.position_ids[0].tolist(), strict=True)
        assert list(found) == piece


@settings(deadline=None)
@given(ROWS, st.integers(2, 9), st.booleans())
def test_every_row_trains_on_something(rows: list[list[tuple[int, bool]]], size: int, packing: bool) -> None:
    encoded = [Encoded([token for token, _ in row], [loss for _, loss in row]) for row in rows]
    dataset = built(encoded, size, packing)
    for number in range(len(dataset)):
        labels = dataset.batch(np.array([number])).labels[0]
        assert bool((labels[1:] != -100).any())
    assert dataset.longest <= size


def test_padding_of_a_packed_batch_is_a_row_of_its_own() -> None:
    dataset = built([counted(6)], max_length=4, packing=True)
    _, labels, positions = everything(dataset)
    assert positions == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert labels[1] == [5, 6, -100, -100]


@pytest.mark.parametrize("change", [[counted(3), counted(4)], [counted(4), counted(3)], [counted(3, 2)]])
def test_fingerprint_tells_data_apart(change: list[Encoded]) -> None:
    rows = [counted(3)]
    for packing in (False, True):
        assert built(rows, 4, packing).fingerprint() == built(rows, 4, packing).fingerprint()
        assert built(rows, 4, packing).fingerprint() != built(change, 4, packing).fingerprint()
    assert built(rows, 4, False).fingerprint() != built(rows, 4, True).fingerprint()
