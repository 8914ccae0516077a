"""Processes that are alive meet in a store that has the keys of those that are not, as torchrun's has them."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from spillway.run import meeting

WORLD = 4


def names(store: dist.Store, ranks: list[int]) -> list[str]:
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(lambda rank: meeting._name(store, rank, WORLD), ranks))


def test_all_have_one_name_and_each_attempt_another() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=60))
    for rank in range(1, WORLD):  # of an attempt whose rank 0 was never there
        store.set(f"spillway/here/{rank}", uuid.uuid4().hex)
    store.set("spillway/answer/of-a-process-that-is-gone", "a name that is gone")
    first, second = names(store, [*range(WORLD)]), names(store, [3, 2, 1, 0])
    assert len(set(first)) == 1 and len(set(second)) == 1 and first[0] != second[0]
