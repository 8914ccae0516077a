"""The keys of runs of several processes."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, choice, whole

PROCESSES = [
    Key(
        "virtual_ranks",
        whole(1),
        None,
        "groups of micro-batches whose gradients are summed apart. Any number of processes up to this has the same "
        "bits",
        "the number of processes",
    ),
    Key(
        "ddp_backend",
        choice("gloo", "nccl"),
        "gloo",
        "transport between processes: `gloo` by host memory, `nccl` from GPU to GPU",
    ),
    Key("shard_frozen", FLAG, False, "one process keeps each frozen weight and sends it to the others for every pass"),
]
