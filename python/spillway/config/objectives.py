"""The table of objectives: what the configuration, the data and the loop need to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ObjectiveEntry:
    """One objective, by TRL's names. Its loss is the entry of the same name in `model.row_losses.ROW_LOSSES`."""

    name: str
    help: str
    learning_rate: float
    defaults: Mapping[str, Any] = field(default_factory=dict)  # TRL's, of the keys that are its own
    losses: tuple[str, ...] = ()  # of `loss_type`
    smoothed: tuple[str, ...] = ()  # those that `label_smoothing` is for
    columns: tuple[str, ...] = ()  # of its rows; none: those that are found in the first one
    rows: int = 0  # rows of each example, whose mean the loss is; 0: the loss is a mean over label tokens
    has_reference: bool = False  # a first pass computes the log-probabilities of a reference model

    @property
    def compares(self) -> bool:
        """Whether the loss is of the log-probabilities of whole rows."""
        return self.rows > 0


PAIR = ("prompt", "chosen", "rejected")

OBJECTIVES = {
    each.name: each
    for each in (
        ObjectiveEntry(
            "sft",
            "the next token of text, completions or answers",
            2e-5,
        ),
        ObjectiveEntry(
            "dpo",
            "direct preference optimisation of pairs, the columns `prompt`, `chosen` and `rejected`, against the model "
            "as it is before the first step, whose log-probabilities a first pass computes",
            1e-6,
            {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "disable_dropout": True},
            losses=("sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down"),
            smoothed=("robust",),
            columns=PAIR,
            rows=2,
            has_reference=True,
        ),
    )
}
LATER = ("kto", "orpo", "reward")  # objectives that are refused by name


def list_owners(key: str) -> list[str]:
    """The objectives that have this key."""
    return [each.name for each in OBJECTIVES.values() if key in each.defaults]


OWN_KEYS = tuple(dict.fromkeys(key for each in OBJECTIVES.values() for key in each.defaults))
LOSS_TYPES = tuple(dict.fromkeys(name for each in OBJECTIVES.values() for name in each.losses))
