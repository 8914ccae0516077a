"""The keys of replayed steps."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import choice, whole

REPLAYS = [
    Key(
        "replay_steps",
        whole(1),
        None,
        "every N-th step is computed twice and compared bit by bit, which detects silent errors",
        "none",
    ),
    Key(
        "replay_action",
        choice("stop", "continue"),
        "stop",
        "reaction to a difference: `stop` the run, or `continue` after a third computation",
    ),
]
