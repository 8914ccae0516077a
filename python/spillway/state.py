"""What the trainer itself carries from step to step, and across a resume: checkpoint-N/spillway/run.json."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.dataset import Dataset
from spillway.directory import RUN_STATE
from spillway.errors import InputError
from spillway.records import write_json

FORMAT = 1
FIXED = (  # keys that a resumed run cannot change and still be the same run
    "seed",
    "data_seed",
    "max_length",
    "packing",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "compute_dtype",
    "state_format",
    "optim",
    "method",
)


@dataclass
class RunState:
    """Position and running sums. The order of rows follows from the step and the seeds, so no generator is kept."""

    step: int = 0  # steps done
    epoch: float = 0.0
    tokens_seen: int = 0
    losses: list[float] = field(default_factory=list)  # of the steps since the last logged row
    fixed: dict[str, Any] = field(default_factory=dict)  # values of FIXED, and the model's and the data's identity

    def save(self, checkpoint: Path) -> None:
        path = checkpoint / RUN_STATE
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, checkpoint: Path) -> RunState:
        path = checkpoint / RUN_STATE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = content.pop("format")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"resume_from_checkpoint: {path} cannot be read: {error!r}") from None
        if found != FORMAT:
            raise InputError(f"resume_from_checkpoint: {path} has format {found}, this release reads {FORMAT}")
        return cls(**content)


def fixed_keys(config: Config) -> dict[str, Any]:
    """What can be compared before any data is read."""
    return {name: getattr(config, name) for name in FIXED} | {
        "model": config.model,
        "model_config": model_config(config),
        "dataset": config.dataset,
    }


def model_config(config: Config) -> str:
    """Identity of the model's config.json; empty for a hub id."""
    path = Path(config.model, "config.json")
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def check_keys(saved: dict[str, Any], config: Config) -> None:
    """Raises InputError naming the first key that is not as it was. A model or file that only moved is the same."""
    now = fixed_keys(config)
    for name in FIXED:
        if saved[name] != now[name]:
            raise InputError(
                f"{name}: the run was started with {saved[name]}, a resume cannot change it to {now[name]}"
            )
    if saved["model_config"] != now["model_config"] or (not now["model_config"] and saved["model"] != now["model"]):
        raise InputError(changed("model", saved["model"], now["model"], "its config.json"))


def check_data(saved: dict[str, Any], config: Config, dataset: Dataset) -> None:
    if saved["data"] != dataset.fingerprint():
        raise InputError(changed("dataset", saved["dataset"], config.dataset, "its rows, or the tokenizer,"))


def changed(name: str, before: str, now: str, part: str) -> str:
    if before != now:
        return f"{name}: the run was started with {before}, a resume cannot change it to {now}"
    return f"{name}: {part} of {now} changed since the run was started; a resume needs what it was started with"
