"""The keys of checkpoints: how often there is one, what it holds, and how many stay."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, INTERVAL, whole

SAVES = [
    Key("save_steps", INTERVAL, None, "steps between checkpoints. Below 1: a share", "only the last step is saved"),
    Key(
        "save_whole_steps",
        INTERVAL,
        None,
        "steps between checkpoints that stand alone. They also hold the state that lies on storage paths, and a "
        "resume from a copy needs no path. Below 1: a share",
        "none",
    ),
    Key(
        "save_total_limit",
        whole(1),
        None,
        "number of newest checkpoints to keep. The newest one of `save_whole_steps` stays besides",
        "all are kept",
    ),
    Key("save_only_model", FLAG, False, "checkpoints hold only the model, and cannot be resumed from"),
]
