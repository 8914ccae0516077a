"""Rows of preferences in each form that TRL's datasets have, and TRL's DPOTrainer in memory over the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import tiny
from needs import package
from spillway.data.order import Order

TOLD = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
    "logits/chosen",
    "logits/rejected",
    "mean_token_accuracy",
    "entropy",
)
END = " That is all."
# Seven epochs are 21 steps. With a smaller epsilon AdamW makes steps of the rounding where a gradient is next to zero.
LONG = {"num_train_epochs": 7, "adam_epsilon": 1e-6}


def texts(count: int) -> list[dict[str, Any]]:
    """Of different lengths, each different."""
    sentences = tiny.SENTENCES
    return [
        {
            "prompt": f"{number}: {sentences[number % 8]}",
            "chosen": " " + " ".join(sentences[(number + 1) % 8 :][: number % 3 + 1]),
            "rejected": " " + " ".join(sentences[(number + 4) % 8 :][: number % 2 + 1]) + END * (number % 3),
        }
        for number in range(count)
    ]


def messages(count: int) -> list[dict[str, Any]]:
    """The same as conversations."""

    def said(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    return [
        {
            "prompt": said("user", row["prompt"]),
            "chosen": said("assistant", row["chosen"]),
            "rejected": said("assistant", row["rejected"]),
        }
        for row in texts(count)
    ]


def implicit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without a prompt of their own."""
    return [{"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in rows]


def answers(count: int) -> list[dict[str, Any]]:
    """Good and bad ones, each with its label; the second micro-batch of two has good ones alone."""
    good = [number in (2, 3) or number % 3 == 0 for number in range(count)]
    return [
        {"prompt": row["prompt"], "completion": row["chosen" if label else "rejected"], "label": label}
        for row, label in zip(texts(count), good, strict=True)
    ]


def options(keys: Mapping[str, Any]) -> list[str]:
    """Keys of a configuration as words of a command line."""
    return [f"--{name}={value}" for name, value in keys.items()]


class SameOrder(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """The rows of each epoch as `spillway train` takes them."""

    def __init__(self, order: Order) -> None:
        self._order, self._epoch = order, 0

    def __len__(self) -> int:
        return self._order.rows

    def __iter__(self) -> Iterator[int]:
        yield from self._order.permutation(self._epoch).tolist()
        self._epoch += 1


def trainer_of(objective: str) -> tuple[Any, Any]:
    """TRL's trainer of an objective, and the class of its arguments."""
    trl = package("trl", "TRL is not installed")
    name = "Reward" if objective == "reward" else objective.upper()
    if not hasattr(trl, f"{name}Trainer"):
        trl = package(f"trl.experimental.{objective}", "TRL has them since 0.26")
    return getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")


def in_memory(
    given: Path,
    out: Path,
    rows: list[dict[str, Any]],
    order: Order,
    model: Any = None,
    objective: str = "dpo",
    **more: Any,
) -> Any:
    """TRL's, trained and saved in `out`."""
    datasets = package("datasets", "TRL needs datasets")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Plain(trainer_of(objective)[0]):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return SameOrder(order)

    trainer = Plain(
        model=model or AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32"),
        args=arguments(out, objective, **more),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
        **({"eval_dataset": datasets.Dataset.from_list(rows[:3])} if "eval_strategy" in more else {}),
    )
    trainer.train()
    trainer.save_model()
    return trainer


def arguments(out: Path, objective: str = "dpo", **more: Any) -> Any:
    return trainer_of(objective)[1](
        **{
            "output_dir": str(out), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
            "num_train_epochs": 2, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no",
            "report_to": "none", "max_length": 64, "use_cpu": True, "bf16": False, "disable_tqdm": True,
            "gradient_checkpointing": False, "data_seed": 42, **more,
        }
    )  # fmt: skip


def logged(trainer: Any) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if "loss" in row]
