"""TRL's RewardTrainer over a streamed model: its arguments and its micro-batches.

The model that `load(..., num_labels=1)` makes has the head `score`, and the loss is of one token's score in each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from spillway.config.objectives import OBJECTIVES
from spillway.data.batches import batch_of, whole
from spillway.errors import InputError
from spillway.integrations.without_reference import WithoutReference
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED
from spillway.model.meta.score_head import find_scored
from spillway.model.source.source import classifies_tokens, is_classifier

NAME, OBJECTIVE = "RewardTrainer", "reward"


def check(model: Any) -> None:
    """InputError for a model that predicts tokens."""
    if not is_classifier(model.config) or classifies_tokens(model.config):
        raise InputError("model: a reward is the score of one label; make it with load(PATH, num_labels=1)")


@dataclass
class Ranked(WithoutReference):
    """State that a streamed RewardTrainer keeps beside the session."""

    pad: int | None = None  # the token by which the library finds the last one of a row

    def keys(self, args: Any) -> dict[str, Any]:
        """The configuration's keys for this trainer."""
        return {"objective": OBJECTIVE, **{name: getattr(args, name) for name in OBJECTIVES[OBJECTIVE].defaults}}

    def fit(self, trainer: Any) -> None:
        """Reads what TRL's constructor has chosen."""
        self.pad = trainer.model.config.get_text_config().pad_token_id

    def batch(self, inputs: Mapping[str, Any]) -> Batch:
        ids = whole(inputs, "input_ids")
        others = {name: value for name, value in inputs.items() if name != "margin"}
        batch = batch_of({**others, "labels": torch.full_like(ids, IGNORED)}, packing=False)
        margins = inputs.get("margin")
        if len(ids) % 2 or (margins is not None and len(margins) != len(ids) // 2):
            raise InputError(f"batch: input_ids are {list(ids.shape)}; expects as many rejected rows as chosen ones")
        scored = find_scored(ids, self.pad, batch.lengths)
        given = None if margins is None else torch.as_tensor(margins).float().cpu()
        return replace(batch, rows_each=OBJECTIVES[OBJECTIVE].rows, scored=scored, targets=given)
