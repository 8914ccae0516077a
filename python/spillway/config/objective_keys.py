"""The keys of a run's objective and its loss."""

from __future__ import annotations

from typing import Any

from spillway.config.key import BETA, POSITIVE, Key
from spillway.config.objectives import LATER, LOSS_TYPES, OBJECTIVES, list_owners
from spillway.config.values import FLAG, choice, synonym


def refuse_objective(value: Any) -> str:
    """The sentence that refuses an objective; empty for a supported one."""
    return f"{value} is not available in this release; there are {join(OBJECTIVES)}" if value in LATER else ""


def join(names: Any) -> str:
    """The names as a list in a sentence."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def quote(names: Any) -> str:
    return join([f"`{name}`" for name in names])


def list_losses() -> str:
    return "; ".join(f"of `{each.name}` {quote(each.losses)}" for each in OBJECTIVES.values() if each.losses)


OBJECTIVE = [
    Key(
        "objective",
        synonym({name: name for name in OBJECTIVES}, LATER),
        "sft",
        "; ".join(f"`{each.name}`: {each.help}" for each in OBJECTIVES.values()),
        absent=refuse_objective,
    ),
    Key(
        "beta",
        POSITIVE,
        None,
        f"with {quote(list_owners('beta'))}: the higher, the closer to the reference model",
        "0.1",
    ),
    Key(
        "loss_type",
        choice(*LOSS_TYPES, single=True),
        None,
        f"the loss, by TRL's names: {list_losses()}",
        "`sigmoid`",
    ),
    Key(
        "label_smoothing",
        BETA,
        None,
        "with `loss_type: robust`: the share of pairs whose answers are swapped",
        "0",
    ),
    Key(
        "disable_dropout",
        FLAG,
        None,
        f"with {quote(list_owners('disable_dropout'))}: disables dropout, including in adapters",
        "true",
    ),
]
