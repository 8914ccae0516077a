"""The completions that several consecutive steps of a GRPOTrainer train on.

The first of these steps computes the log-probabilities that the later ones compare with, and those of the reference.
OUTPUT_DIR/spillway/rollouts.json holds both before that step is durable, and so does each checkpoint. So a killed run
resumes between these steps with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from spillway.base.documents import read_json
from spillway.base.files import flush, write_json
from spillway.errors import InputError
from spillway.model.batches.batch import Batch, Sampled
from spillway.model.head.policy import Tokens
from spillway.output import identity

FORMAT = 1


@dataclass(frozen=True)
class ReusedCompletions:
    """The micro-batches of one step, for the steps after it."""

    step: int  # the steps before the first one that trained on them
    batches: list[Batch]

    def serves(self, step: int, iterations: int) -> bool:
        """True if the step after so many steps trains on them, and is not the first one that does."""
        return self.step == step - step % iterations < step

    def write(self, path: Path) -> None:
        """Is durable when the call returns."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        batches = [describe(batch) for batch in self.batches]
        write_json(path, {"format": FORMAT, "step": self.step, "batches": batches}, mode=0o600)
        flush(path.parent)


def collect(step: int, batches: Sequence[Batch], tokens: Sequence[Tokens]) -> ReusedCompletions:
    """`tokens`: of each micro-batch, as the first step has computed them."""
    return ReusedCompletions(step, [add_values(*each) for each in zip(batches, tokens, strict=True)])


def add_values(batch: Batch, tokens: Tokens) -> Batch:
    assert batch.sampled is not None
    sampled = replace(batch.sampled, old=tokens.log_probabilities.clone(), sampling=None)
    return replace(batch, sampled=sampled, reference=None if tokens.reference is None else tokens.reference.clone())


def find_stored(places: Sequence[Path], step: int, iterations: int) -> ReusedCompletions:
    """The completions for the step after `step`, of one of the directories. InputError if none holds them."""
    for place in places:
        stored = read(place / identity.ROLLOUTS)
        if stored is not None and stored.serves(step, iterations):
            return stored
    raise InputError(
        f"num_iterations: step {step + 1} trains on the completions of step {step - step % iterations + 1}, and "
        f"{places[0] / identity.ROLLOUTS} does not hold them; put the file back, or resume from a checkpoint of step "
        f"{step - step % iterations}"
    )


def read(path: Path) -> ReusedCompletions | None:
    """None: there is no such file, or it is damaged."""
    try:
        content = read_json(path)
        if content["format"] != FORMAT:
            return None
        return ReusedCompletions(int(content["step"]), [load_batch(each) for each in content["batches"]])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RuntimeError):  # the last one is PyTorch's
        return None


def describe(batch: Batch) -> dict[str, Any]:
    assert batch.sampled is not None
    tensors = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "lengths": batch.lengths,
        "reference": batch.reference,
        "old": batch.sampled.old,
        "advantages": batch.sampled.advantages,
    }
    return {"tokens": batch.tokens, **{name: None if it is None else it.tolist() for name, it in tensors.items()}}


def load_batch(content: dict[str, Any]) -> Batch:
    def numbers(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        return None if content[name] is None else torch.tensor(content[name], dtype=dtype)

    ids, labels = (torch.tensor(content[name], dtype=torch.int64) for name in ("input_ids", "labels"))
    advantages = torch.tensor(content["advantages"], dtype=torch.float64)
    return Batch(
        ids,
        labels,
        None,
        int(content["tokens"]),
        numbers("lengths", torch.int64),
        reference=numbers("reference", torch.float64),
        rows_each=1,
        sampled=Sampled(numbers("old", torch.float64), advantages, {}),
    )


@contextmanager
def sample_for_one_step(trainer: Any) -> Iterator[None]:
    """TRL takes completions to be of the step that trains on them while this is open, and computes nothing of them."""
    iterations, trainer.num_iterations = trainer.num_iterations, 1
    try:
        yield
    finally:
        trainer.num_iterations = iterations
