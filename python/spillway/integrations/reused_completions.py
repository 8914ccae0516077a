"""The completions of one generation, which several consecutive steps of a GRPOTrainer train on.

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
from spillway.integrations.trl_ways import behind
from spillway.model.batches.batch import Batch, Sampled
from spillway.model.head.policy import Tokens
from spillway.output import identity

FORMAT = 1


@dataclass(frozen=True)
class Reuse:
    """The steps that train on the completions of one generation: each part of these once, and then all parts again."""

    micro_batches: int  # of a step, and so of a part
    parts: int
    iterations: int  # steps that train on the same part

    @classmethod
    def from_arguments(cls, args: Any) -> Reuse:
        """`args`: of GRPOConfig."""
        micro_batches = int(args.gradient_accumulation_steps)
        return cls(micro_batches, int(args.steps_per_generation) // micro_batches, int(args.num_iterations))

    @property
    def steps(self) -> int:
        return self.parts * self.iterations

    def share(self, trainer: Any) -> float:
        """The share of a generation's tokens that TRL's trainer divides the loss of a step by, where it divides by
        tokens. The first releases divide by all of them, whatever number of parts there is."""
        names = behind(type(trainer), "_compute_loss").__code__.co_names
        return 1 / self.parts if "steps_per_generation" in names else 1.0


@dataclass(frozen=True)
class ReusedCompletions:
    """The micro-batches of one generation."""

    step: int  # the steps before the first one that trained on them
    batches: list[Batch]

    def serves(self, step: int, reuse: Reuse) -> bool:
        """True if the step after so many steps trains on them, and is not the first one that does."""
        whole = len(self.batches) == reuse.parts * reuse.micro_batches
        return whole and self.step == step - step % reuse.steps < step

    def write(self, path: Path) -> None:
        """Is durable when the call returns."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        batches = [describe(batch) for batch in self.batches]
        write_json(path, {"format": FORMAT, "step": self.step, "batches": batches}, mode=0o600)
        flush(path.parent)


def collect(step: int, batches: Sequence[Batch], tokens: Sequence[Tokens], later: Sequence[Batch]) -> ReusedCompletions:
    """`tokens`: of each micro-batch of the first step, as that step has computed them. `later`: those of the other
    parts, which have their log-probabilities."""
    return ReusedCompletions(step, [*(add_values(*each) for each in zip(batches, tokens, strict=True)), *later])


def add_values(batch: Batch, tokens: Tokens) -> Batch:
    assert batch.sampled is not None
    sampled = replace(batch.sampled, old=tokens.log_probabilities.clone(), sampling=None)
    return replace(batch, sampled=sampled, reference=None if tokens.reference is None else tokens.reference.clone())


def find_stored(places: Sequence[Path], step: int, reuse: Reuse) -> ReusedCompletions:
    """The completions for the step after `step`, of one of the directories. InputError if none holds them."""
    for place in places:
        stored = read(place / identity.ROLLOUTS)
        if stored is not None and stored.serves(step, reuse):
            return stored
    name, first = "num_iterations" if reuse.parts == 1 else "steps_per_generation", step - step % reuse.steps
    raise InputError(
        f"{name}: step {step + 1} trains on the completions of step {first + 1}, and "
        f"{places[0] / identity.ROLLOUTS} does not hold them; put the file back, or resume from a checkpoint of step "
        f"{first}"
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
    numbers = {"tokens": batch.tokens, "step_tokens": batch.sampled.step_tokens}
    return {**numbers, **{name: None if it is None else it.tolist() for name, it in tensors.items()}}


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
        sampled=Sampled(numbers("old", torch.float64), advantages, {}, step_tokens=content.get("step_tokens")),
    )


@contextmanager
def sample_for_one_step(trainer: Any) -> Iterator[None]:
    """TRL takes completions to be of the step that trains on them while this is open, and computes nothing of them."""
    args = trainer.args
    iterations, trainer.num_iterations = trainer.num_iterations, 1
    micro_batches, args.gradient_accumulation_steps = args.gradient_accumulation_steps, args.steps_per_generation
    try:
        yield
    finally:
        trainer.num_iterations, args.gradient_accumulation_steps = iterations, micro_batches
