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


BY_DEVICE = """
import os, torch
import torch.distributed as dist
from spillway.run import carriers
carriers.STAGED = 4 * 2 * 2048  # of each way and set 2,048 bytes
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
carrier = carriers.DeviceBytes(dist.new_group(), carriers.HostBytes(), torch.device("cpu"), size)
peer, waited = 1 - rank, set()
def wait(peers, call):
    waited.update(peers)
    call()
def content(of, number, length):
    return ((torch.arange(length) * 7 + 31 * of + 5 * number) % 251).to(torch.uint8)
for lengths in ([1], [2048], [2049, 3, 4093], [1] * 9 + [10001]):
    mine, theirs = lengths, [2 * length + 1 for length in lengths]
    if rank == 1:
        mine, theirs = theirs, mine  # one way has more parts than the other
    sent = [content(rank, number, length) for number, length in enumerate(mine)]
    found = [torch.full((length,), 255, dtype=torch.uint8) for length in theirs]
    messages = [(peer, True, each.numpy()) for each in sent] + [(peer, False, each.numpy()) for each in found]
    carrier.move(messages, wait)
    for number, each in enumerate(found):
        assert torch.equal(each, content(peer, number, len(each))), (lengths, number)
    assert all(torch.equal(each, content(rank, number, len(each))) for number, each in enumerate(sent))
assert waited == {peer}
dist.barrier()
"""


def test_bytes_go_by_way_of_a_device_in_parts() -> None:
    """Which is the CPU here, so that gloo takes its memory; with a GPU and NCCL see test_gpu.py."""
    ranks = started(2, ["-c", BY_DEVICE])
    ends = [(*process.communicate(timeout=120), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends


@pytest.mark.nightly
def test_bytes_arrive_and_a_rank_that_goes_is_told() -> None:
    ranks = started(SIZE, ["-c", RANK])
    ends = [(*process.communicate(timeout=120), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [7, 0, 0], ends
    for out, _, _ in ends[1:]:
        assert "told:" in out and "rank 0 cannot be reached" in out
