"""TRL's ORPOTrainer and CPOTrainer over a streamed model: their arguments and their micro-batches.

They need no reference model, so nothing is computed before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spillway.config.objectives import OBJECTIVES, ObjectiveEntry
from spillway.data.batches import pairs_of
from spillway.errors import InputError
from spillway.integrations.without_reference import WithoutReference
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED

TRAINERS = {"ORPOTrainer": "orpo", "CPOTrainer": "cpo"}
# argument, the value that asks for nothing, and why another is not done
PLAIN = (
    ("alpha", 0.0, "rewards are log-probabilities"),
    ("generate_during_eval", False, "call model.generate in a callback"),
    ("is_encoder_decoder", None, "decoders stream"),
)
SIDES = ("chosen", "rejected")


def find_objective(kind: type) -> str | None:
    """The objective of TRL's trainer that `kind` is; None: it is another one."""
    names = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("trl.")]
    return next((TRAINERS[name] for name in names if name in TRAINERS), None)


def check(objective: str, named: Mapping[str, Any], positional: tuple[Any, ...]) -> None:
    """InputError for the first argument that is not computed."""
    args = named.get("args") or (positional[1] if len(positional) > 1 else None)
    if args is None:
        raise InputError(
            f"args: {objective.upper()}Trainer has no defaults without them; give {objective.upper()}Config"
        )
    for name, plain, why in PLAIN:
        if getattr(args, name, plain) not in (plain, None):
            raise InputError(f"{name}: {getattr(args, name)} is not computed over a streamed model: {why}")
    args.gradient_checkpointing = False  # the plan says which layers recompute


@dataclass(frozen=True)
class Unreferred(WithoutReference):
    """State that a streamed trainer of pairs without a reference keeps beside the session."""

    objective: str

    def keys(self, args: Any) -> dict[str, Any]:
        """The configuration's keys for this trainer."""
        return {"objective": self.objective, **{name: getattr(args, name) for name in self._entry.defaults}}

    @property
    def _entry(self) -> ObjectiveEntry:
        return OBJECTIVES[self.objective]

    def fit(self, trainer: Any) -> None:
        """Changes TRL's trainer when its constructor has returned."""
        trainer._total_train_tokens = 0
        trainer.data_collator = Joined(trainer.data_collator)

    def batch(self, inputs: Mapping[str, Any]) -> Batch:
        return pairs_of(inputs, referred=False, objective=self._entry)


@dataclass(frozen=True)
class Joined:
    """TRL's collator, whose chosen and rejected rows become one micro-batch as `data.batches.pairs_of` takes it."""

    collate: Callable[[list[Any]], dict[str, Any]]

    def __call__(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        batch = self.collate(rows)
        length = max(batch[f"{side}_input_ids"].shape[1] for side in SIDES)
        ids, mask, labels = (
            torch.cat([pad(batch[f"{side}_{name}"], length, value) for side in SIDES])
            for name, value in (("input_ids", 0), ("attention_mask", 0), ("labels", IGNORED))
        )
        return {"input_ids": ids, "attention_mask": mask, "completion_mask": (labels != IGNORED).long()}


def pad(tensor: torch.Tensor, length: int, value: int) -> torch.Tensor:
    """[rows, length]."""
    return torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]), value=value)
