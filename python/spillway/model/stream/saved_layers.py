"""The layers that may keep what autograd saves of them, and why others may not."""

from __future__ import annotations

from spillway.model.layers.saved import Saved, SavedChoice
from spillway.model.meta.meta_model import MetaModel

# Why no layer keeps anything, as the end of a sentence.
NOT_ALONE = "each of its layers runs with what comes before or after them"
SHARING = "its layers hand on to others what gradients flow to"


def able(meta_model: MetaModel) -> list[int]:
    """Places of the stages that are a layer and nothing else. (The last one is timed by itself, and recomputes.)"""
    stages = meta_model.stages[:-1]
    return [p for p, plan in enumerate(stages) if plan.layer is not None and not plan.entry and not plan.tail]


def keep_all(meta_model: MetaModel) -> SavedChoice:
    return SavedChoice(dict.fromkeys(able(meta_model), Saved.KEEP))
