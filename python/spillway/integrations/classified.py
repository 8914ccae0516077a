"""transformers' Trainer over a streamed model with a head of labels: rows or tokens that are classified, or given
numbers.

The library's loss is a mean over the rows, or label tokens, of each micro-batch. Its Trainer divides that by the
micro-batches of a step only for models whose forward pass takes no further arguments; of all others it takes the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from spillway.data.batches import batch_of, whole
from spillway.errors import InputError
from spillway.integrations.without_reference import WithoutReference
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED, Work
from spillway.model.head.scores import Classification, Scored
from spillway.model.meta.score_head import find_scored
from spillway.model.source.source import classifies_tokens, is_classifier

SINGLE = "single_label_classification"


def is_for(kind: type, model: Any) -> bool:
    """True if a trainer of this kind classifies rows. InputError for a model with labels in one of TRL's."""
    if not is_classifier(getattr(model, "config", None)):
        return False
    if any(base.__module__.startswith("trl.") for base in kind.__mro__):
        raise InputError("model: num_labels is for Trainer and RewardTrainer; load the model without it")
    return True


def find_problem(config: Any, labels: torch.Tensor) -> str:
    """The library's rule for a configuration that does not say the problem."""
    if config.problem_type is not None:
        return str(config.problem_type)
    if config.num_labels == 1:
        return "regression"
    whole_numbers = labels.dtype in (torch.int64, torch.int32)
    return SINGLE if whole_numbers else "multi_label_classification"


@dataclass
class Classified(WithoutReference):
    """State that a streamed Trainer of a classifier keeps beside the session."""

    config: Any = None  # the model's
    sums: bool = False  # over a step's micro-batches
    last: Scored | None = None  # of the last step or evaluation

    def keys(self, args: Any) -> dict[str, Any]:
        return {}

    def fit(self, trainer: Any) -> None:
        """Reads what transformers' constructor has chosen."""
        self.config, self.sums = trainer.model.config, bool(trainer.model_accepts_loss_kwargs)

    def choose(self, work: Work, training: bool) -> Scored:
        """The objective."""
        problem = SINGLE if classifies_tokens(self.config) else str(self.config.problem_type)
        self.last = Scored(Classification(problem), work, training, self.sums)
        return self.last

    def batch(self, inputs: Mapping[str, Any]) -> Batch:
        ids, labels = whole(inputs, "input_ids"), inputs.get("labels")
        if not isinstance(labels, torch.Tensor) or len(labels) != len(ids):
            raise InputError(f"batch: labels are missing, one for each of {len(ids)} rows; found {', '.join(inputs)}")
        labels = labels.detach().cpu()
        if classifies_tokens(self.config):
            return self._tokens_of(inputs, ids, labels)
        self.config.problem_type = find_problem(self.config, labels)
        self._check(labels, len(ids))
        pad = self.config.get_text_config().pad_token_id
        if pad is None and len(ids) > 1:
            raise InputError("pad_token_id: the model finds the end of a row by it; set model.config.pad_token_id")
        batch = batch_of({**inputs, "labels": torch.full_like(ids, IGNORED)}, packing=False)
        return replace(batch, rows_each=1, scored=find_scored(ids, pad), targets=labels)

    def _tokens_of(self, inputs: Mapping[str, Any], ids: torch.Tensor, labels: torch.Tensor) -> Batch:
        """A micro-batch with a label, or IGNORED, for each token."""
        if labels.shape != ids.shape:
            shapes = f"labels are {list(labels.shape)}, input_ids {list(ids.shape)}"
            raise InputError(f"batch: {shapes}; both are one a token")
        batch = batch_of({**inputs, "labels": torch.full_like(ids, IGNORED)}, packing=False)
        scored = (labels != IGNORED).flatten().nonzero().view(-1)
        targets = labels.flatten()[scored]
        if not len(scored) or bool(((targets < 0) | (targets >= self.config.num_labels)).any()):
            raise InputError(
                f"batch: labels are not whole numbers from 0 to {self.config.num_labels - 1} with {IGNORED} for tokens "
                "without one, at least one of each micro-batch"
            )
        return replace(batch, rows_each=1, scored=scored, targets=targets)

    def _check(self, labels: torch.Tensor, rows: int) -> None:
        """InputError for labels that the head has not."""
        count = self.config.num_labels
        if self.config.problem_type == SINGLE:
            if labels.numel() != rows or bool(((labels < 0) | (labels >= count)).any()):
                raise InputError(f"batch: labels are not whole numbers from 0 to {count - 1}, one for each row")
        elif labels.numel() != rows * count:
            raise InputError(f"batch: labels are {list(labels.shape)}; expects {count} for each of {rows} rows")

    def take_scores(self, own: int, batch: Batch) -> torch.Tensor:
        """[rows, labels] of micro-batch number `own` of the last evaluation, which is `batch`; for tokens
        [rows, length, labels], zeros where there is no label."""
        if self.last is None or own not in self.last.scores:
            raise InputError("compute_metrics: of several processes none has the scores of its own rows; leave it out")
        scores = self.last.scores[own].detach().cpu()
        if not classifies_tokens(self.config):
            return scores
        assert batch.scored is not None
        rows, length = batch.input_ids.shape
        whole_scores = scores.new_zeros(rows * length, scores.shape[1])
        return whole_scores.index_copy_(0, batch.scored, scores).view(rows, length, -1)
