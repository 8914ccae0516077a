"""The keys of checkpoints: how often there is one, what it holds, and how many stay."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, INTERVAL, whole

SAVES = [
    Key(
        "save_steps",
        INTERVAL,
        None,
        "steps between checkpoints. Below 1: a share of all steps",
        "only the last step is saved",
    ),
    Key(
        "save_whole_steps",
        INTERVAL,
        None,
        "steps between checkpoints that stand alone, with the state on storage paths. Below 1: a share of all steps",
        "none",
    ),
    Key(
        "save_total_limit",
        whole(1),
        None,
        "number of newest checkpoints to keep, beside the newest of `save_whole_steps`",
        "all are kept",
    ),
    Key("save_only_model", FLAG, False, "checkpoints hold only the model, and cannot be resumed from"),
]
