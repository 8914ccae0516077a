"""The keys of a run's objective and its loss."""

from __future__ import annotations

from typing import Any

from spillway.config.key import BETA, POSITIVE, Key
from spillway.config.values import FLAG, choice, synonym

OBJECTIVES = ("sft", "dpo")
LATER = ("kto", "orpo", "reward")  # objectives that are refused by name
PREFERENCES = ("sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down")


def refuse_objective(value: Any) -> str:
    """The sentence that refuses an objective; empty for a supported one."""
    return f"{value} is not available in this release; there are sft and dpo" if value in LATER else ""


OBJECTIVE = [
    Key(
        "objective",
        synonym({name: name for name in OBJECTIVES}, LATER),
        "sft",
        "`sft`: the next token of text, completions or answers; `dpo`: direct preference optimisation of pairs, "
        "the columns `prompt`, `chosen` and `rejected`, against the model as it is before the first step, whose "
        "log-probabilities a first pass computes",
        absent=refuse_objective,
    ),
    Key("beta", POSITIVE, None, "with `dpo`: the higher, the closer to the reference model", "0.1"),
    Key(
        "loss_type",
        choice(*PREFERENCES, single=True),
        None,
        "the loss of `dpo`, by TRL's names: " + ", ".join(f"`{name}`" for name in PREFERENCES),
        "`sigmoid`",
    ),
    Key(
        "label_smoothing",
        BETA,
        None,
        "with `loss_type: robust`: the share of pairs whose answers are swapped",
        "0",
    ),
    Key("disable_dropout", FLAG, None, "with `dpo`: disables dropout, including in adapters", "true"),
]
