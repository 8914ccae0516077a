"""The keys of replayed steps."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import choice, whole

REPLAYS = [
    Key(
        "replay_steps",
        whole(1),
        None,
        "every N-th step is computed twice from the same state. All weights, activations, gradients, losses and the "
        "norm are compared bit by bit before the update. This detects silent errors of a CPU, a GPU or memory",
        "none",
    ),
    Key(
        "replay_action",
        choice("stop", "continue"),
        "stop",
        "reaction to a difference. `stop`: the run ends with exit code 1 and the state of the step before. "
        "`continue`: the step is computed a third time, and the run goes on if the result equals one of the two",
    ),
]
