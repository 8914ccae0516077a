"""trainer_state.json: the keys of transformers' TrainerState and no others, so that its tools read the checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.output.records import rows
from spillway.output.state import RunState

LOGGED = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss")


def told(row: dict[str, Any]) -> list[str]:
    """What an objective tells besides its loss, by the names of TRL and transformers."""
    return [key for key in row if "/" in key or key.endswith("accuracy")]


def trainer_state(config: Config, steps: int, steps_per_epoch: int, state: RunState, metrics: Path) -> dict[str, Any]:
    """After `state.step` of `steps`; both counts are 0 of a loop of one's own, which has no end that is known."""
    until = (row for row in rows(metrics) if row["step"] <= state.step)
    history = [{key: row[key] for key in (*LOGGED, *told(row)) if key in row} for row in until]
    return {
        "best_global_step": None,
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": state.epoch,
        "eval_steps": config.eval_steps or 500,
        "global_step": state.step,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": config.logging_steps,
        "max_steps": steps,
        "num_input_tokens_seen": state.tokens_seen,
        "num_train_epochs": math.ceil(steps / max(1, steps_per_epoch)),
        "save_steps": config.save_steps or 500,
        "stateful_callbacks": {},
        "total_flos": 0.0,
        "train_batch_size": config.per_device_train_batch_size,
        "trial_name": None,
        "trial_params": None,
    }
