"""The keys of runs of several processes."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, choice, whole

PROCESSES = [
    Key(
        "virtual_ranks",
        whole(1),
        None,
        "groups whose gradients are summed separately, and then as a tree. Micro-batch i of a step is in group i "
        "modulo `virtual_ranks`. Any number of processes up to this gives the same bits. If the key is given, "
        "`gradient_accumulation_steps` counts all processes together. A resume keeps the value",
        "the number of processes",
    ),
    Key(
        "ddp_backend",
        choice("gloo", "nccl"),
        "gloo",
        "transport of the model's bytes between processes. `gloo`: from host memory to host memory. `nccl`: "
        "through the GPU of each process, with `device: cuda`. The result does not depend on it",
    ),
    Key(
        "shard_frozen",
        FLAG,
        False,
        "each frozen weight is kept by one process, which sends it to the others for every pass, instead of by all "
        "of them. The base of an adapter then takes its bytes once, and not once for each process. The result does "
        "not depend on it. A resume keeps the value",
    ),
]
