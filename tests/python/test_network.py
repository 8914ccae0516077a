"""The engine's transfers, served by torch.distributed between processes."""

from __future__ import annotations

import pytest

from test_ranks import started

SIZE = 3
RANK = """
import os, sys, torch
import torch.distributed as dist
from spillway._engine import Network
from spillway.run.network import Service
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
network = Network(rank, size)
service = Service(network)
for turn in range(5):
    sent = [torch.full((1000 + turn,), 10 * rank + turn, dtype=torch.uint8) for _ in range(size)]
    found = [torch.zeros(1000 + turn, dtype=torch.uint8) for _ in range(size)]
    others = [peer for peer in range(size) if peer != rank]
    network.exchange([(p, True, sent[p].numpy()) for p in others] + [(p, False, found[p].numpy()) for p in others])
    assert all(bool((found[p] == 10 * p + turn).all()) for p in others), turn
dist.barrier()
if rank == 0:
    os._exit(7)  # without a word
try:
    network.exchange([(0, False, torch.zeros(8, dtype=torch.uint8).numpy())])
except OSError as error:
    print("told:", error)
service.close()
os._exit(0)
"""


@pytest.mark.nightly
def test_bytes_arrive_and_a_rank_that_goes_is_told() -> None:
    ranks = started(SIZE, ["-c", RANK])
    ends = [(*process.communicate(timeout=120), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [7, 0, 0], ends
    for out, _, _ in ends[1:]:
        assert "told:" in out and "rank 0 cannot be reached" in out
