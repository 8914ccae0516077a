"""The model's configuration with the head that a run's objective trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedConfig

from spillway.base.documents import read_json
from spillway.errors import InputError
from spillway.model.source.source import OF_ROWS, OF_TOKENS, load_config

if TYPE_CHECKING:
    from spillway.config import Config

SINGLE, SEVERAL, NUMBERS = "single_label_classification", "multi_label_classification", "regression"


def load_run_config(config: Config, directory: Path) -> PreTrainedConfig:
    """The configuration of the model in `directory`, with the head that the objective trains: the vocabulary's, or one
    with as many labels as the keys say, or as the model's own head has. InputError where neither says it."""
    objective = config.objective_entry
    if not objective.is_labelled:
        return load_config(directory, objective.labels)
    end = OF_TOKENS if objective.labels_words else OF_ROWS
    names = config.id2label
    causal = load_config(directory)
    stored = causal.num_labels if has_head(directory, end) else 0
    count = config.num_labels or (len(names) if names else stored)
    if not count:
        raise InputError(
            f"num_labels: {directory} has no head of labels for objective {objective.name}; say how many labels there "
            "are, or name them with id2label"
        )
    loaded = load_config(directory, count, end)
    if names:
        loaded.id2label = dict(enumerate(names))
        loaded.label2id = {name: number for number, name in enumerate(names)}
    if not objective.labels_words:
        loaded.problem_type = config.problem_type or loaded.problem_type or (NUMBERS if count == 1 else SINGLE)
    return loaded


def has_head(directory: Path, end: str) -> bool:
    """True if the model in `directory` was saved as a class whose name has this end."""
    content = read_json(directory / "config.json")
    names = content.get("architectures") or []
    return any(isinstance(name, str) and name.endswith(end) for name in names)
