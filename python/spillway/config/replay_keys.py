"""The keys of replayed steps."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import choice, whole

REPLAYS = [
    Key(
        "replay_steps",
        whole(1),
        None,
        "every N-th step is computed twice from the same state, and all weights, activations, gradients, losses and "
        "the norm are compared bit by bit before its update: errors that a CPU, a GPU or memory makes in silence are "
        "found",
        "none",
    ),
    Key(
        "replay_action",
        choice("stop", "continue"),
        "stop",
        "where the two computations differ: `stop`: the run ends with exit code 1 and the state of the step before; "
        "`continue`: a third computation decides, and the run goes on where it equals one of the two",
    ),
]
