"""Trainers with durable steps: one that fails in a step and goes on ends with the bits of one that does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from test_trainer_durable import OF_A_PROCESS, Fails

PLACEMENT = "weight=50%,state=path,grad=path,activation=dram"
SAVES = {"save_strategy": "steps", "save_steps": 4}
Open = Callable[[Path, dict[str, Any]], Any]  # a trainer, by its output_dir and the keys of its model


def expect_resumed_bits(
    place: Path, open_trainer: Open, step: int = 5, files: Sequence[str] = ("model.safetensors",)
) -> None:
    """`step`: at whose end the one fails. `files`: that both leave with the same bytes."""
    whole = train(place / "whole", open_trainer)
    train(place / "cut", open_trainer, resume="auto", fails_at=step)
    resumed = train(place / "cut", open_trainer, resume=True)
    histories = [
        [{name: value for name, value in row.items() if name not in OF_A_PROCESS} for row in each.state.log_history]
        for each in (whole, resumed)
    ]
    assert histories[0][:-1] == histories[1][:-1]  # the last row has seconds
    for name in files:
        assert (place / "whole/out" / name).read_bytes() == (place / "cut/out" / name).read_bytes(), name


def train(place: Path, open_trainer: Open, resume: Any = None, fails_at: int | None = None) -> Any:
    storage = place / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    keys = {"durability": "step", "placement": PLACEMENT, "storage": f"{storage},capacity=256MiB", "dtype": "bfloat16"}
    trainer = open_trainer(place / "out", keys)
    if fails_at is None:
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model()
    else:
        trainer.add_callback(Fails("on_step_end", fails_at))
        with pytest.raises(RuntimeError, match="as a test asked"):
            trainer.train(resume_from_checkpoint=resume)
    trainer.close()
    return trainer
