"""Learning rates: bit-identical to what an optimizer driven by transformers' scheduler has at each step."""

import pytest
import torch
from transformers import TrainingArguments, get_scheduler

from spillway.config import resolve
from spillway.config.key import SCHEDULES
from spillway.errors import InputError
from spillway.run.rates import schedule, warmup

STEPS = 40
ARGUMENTS = {
    "cosine_with_min_lr": {"min_lr": 1e-5},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 10, "min_lr_ratio": 0.1},
    "polynomial": {"lr_end": 1e-6, "power": 2.0},
    "cosine_with_restarts": {"num_cycles": 3},
}


def driven(name: str, warmup_steps: int) -> list[float]:
    """The rate that the optimizer has at each step of a loop as transformers' Trainer runs it."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    scheduler = get_scheduler(name, optimizer, warmup_steps, STEPS, ARGUMENTS.get(name))
    rates = []
    for _ in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup_steps", [0, 7])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rate_of_every_step(name: str, warmup_steps: int) -> None:
    config = resolve(
        {
            "learning_rate": 3e-4,
            "lr_scheduler_type": name,
            "warmup_steps": warmup_steps,
            "lr_scheduler_kwargs": ARGUMENTS.get(name),
        },
        {},
    )
    rate = schedule(config, STEPS)
    assert [rate(step) for step in range(STEPS)] == driven(name, warmup_steps)


@pytest.mark.parametrize("given", [0, 3, 0.1, 0.33, 1, 2.5])
def test_warmup_is_counted_as_transformers_does(given: float, tmp_path: object) -> None:
    theirs = TrainingArguments(output_dir=str(tmp_path), warmup_steps=given).get_warmup_steps(STEPS)
    assert warmup(resolve({"warmup_steps": given}, {}), STEPS) == theirs


@pytest.mark.parametrize(("name", "arguments"), [("linear", {"bogus": 1}), ("cosine_with_min_lr", None)])
def test_arguments_that_a_schedule_does_not_take(name: str, arguments: dict[str, int] | None) -> None:
    with pytest.raises(InputError, match=f"lr_scheduler_kwargs: {name}"):
        schedule(resolve({"lr_scheduler_type": name, "lr_scheduler_kwargs": arguments}, {}), STEPS)
