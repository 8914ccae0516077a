"""Masks that number the rows of a pack, as Axolotl and LLaMA-Factory make them."""

from __future__ import annotations

import torch

from spillway.data.batches import batch_of, drop_row_numbers


def test_mask_with_row_numbers_becomes_one_of_zeros_and_ones() -> None:
    ids = torch.arange(3, 11).view(1, 8)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0]])
    inputs = {"input_ids": ids, "labels": ids.clone(), "position_ids": positions}
    inputs["labels"][:, 6:] = -100
    inputs["attention_mask"] = torch.tensor([[1, 1, 1, 2, 2, 2, 0, 0]])
    batch = batch_of(drop_row_numbers(inputs), packing=True)
    assert batch.tokens == 6 and batch.lengths is not None and batch.lengths.tolist() == [6]
    assert batch.position_ids is not None and torch.equal(batch.position_ids, positions)


def test_batch_without_a_mask_stays() -> None:
    assert drop_row_numbers({"input_ids": torch.ones(1, 2)}).keys() == {"input_ids"}
