"""The logs and counts of TRL's `compute_loss`, which a streamed model does not call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import transformers

from spillway.base.sums import Mean, add_told
from spillway.model.head.objective import CrossEntropy, MicroBatchMeans

if TYPE_CHECKING:
    from spillway.model.head.objective import Choice

TOKENS = "num_tokens"  # seen so far, without padding; of resumed runs those of this process alone, as TRL counts


PENDING = "pending"  # figures of completions that TRL has not logged yet


def generates(trainer: Any) -> bool:
    """True if TRL's trainer generates the completions of each step."""
    return hasattr(trainer, "_buffered_inputs")


def derives_from(kind: type, name: str) -> bool:
    """True for TRL's trainer of that name and classes that derive from it."""
    return any(base.__name__ == name and base.__module__.startswith("trl.trainer.") for base in kind.__mro__)


def is_trl(trainer: Any) -> bool:
    return stores_figures(trainer) or (hasattr(trainer, "_metrics") and hasattr(trainer, "_total_train_tokens"))


def stores_figures(trainer: Any) -> bool:
    """True if the trainer is one of `trl.experimental` that keeps each micro-batch's figures until it logs."""
    of_trl = any(each.__module__.startswith("trl.") for each in type(trainer).__mro__)  # Axolotl has the same attribute
    return of_trl and hasattr(trainer, "_stored_metrics")


def list_watches(trainer: Any) -> tuple[str, ...]:
    """The figures that SFTTrainer logs, where these are of label tokens alone. SFTTrainer's first releases averaged
    `entropy` over the prompt's and the last token as well. Streamed training never computes those logits."""
    if not is_trl(trainer):
        return ()
    names = behind(type(trainer), "compute_loss").__code__.co_varnames
    return ("entropy",) if "entropy_sum" in names else ()


def choose_objective(trainer: Any) -> Choice | None:
    """The objective of a trainer of tokens, where it differs from the configuration's. Models of some classes count no
    label tokens, and transformers, TRL's SFTTrainer too, averages the means of their micro-batches."""
    if trainer._pairs is not None:
        return None
    kind = CrossEntropy if trainer.model_accepts_loss_kwargs else MicroBatchMeans
    watches = list_watches(trainer)
    return functools.partial(kind, watches=watches) if watches or kind is MicroBatchMeans else None


def say_routers(trainer: Any) -> None:
    """The model's configuration says what TRL, by its version and arguments, adds of routers' auxiliary loss."""
    config = trainer.model.config.get_text_config()
    if hasattr(config, "output_router_logits"):
        config.output_router_logits = bool(getattr(trainer, "aux_loss_enabled", False))
        if config.output_router_logits and hasattr(trainer, "router_aux_loss_coef"):
            config.router_aux_loss_coef = trainer.router_aux_loss_coef


def averages_routers(kind: type) -> bool:
    """True if a step over label tokens adds the mean of its micro-batches' router losses. TRL's SFTTrainer does so
    since it computes the loss itself; transformers adds their sum."""
    return "current_gradient_accumulation_steps" in behind(kind, "compute_loss").__code__.co_names


def hands_a_count(kind: type) -> bool:
    """True if transformers counts the labels of an evaluation's batch. TRL's SFTTrainer lets it. Since SFTTrainer makes
    that step for itself, its loss is over the predicted tokens."""
    step = behind(kind, "prediction_step")
    return step is transformers.Trainer.prediction_step or "prediction_step" in step.__code__.co_names


def behind(kind: type, method: str) -> Any:
    """The method of the Trainer that a streamed one is made from."""
    streamed = next(place for place, each in enumerate(kind.__mro__) if each.__name__ == "StreamedSession")
    return next(vars(each)[method] for each in kind.__mro__[streamed + 1 :] if method in vars(each))


class TrlLog:
    """Figures of training and of evaluation, each collected since its last logged row."""

    def __init__(self) -> None:
        self._means: dict[str, dict[str, Mean]] = {"train": {}, "eval": {}}

    def add(self, mode: str, told: list[dict[str, float]]) -> None:
        """`told`: by micro-batch, as StepResult.told."""
        add_told(self._means[mode], told)

    def give(self, trainer: Any, mode: str, logs: Mapping[str, float]) -> None:
        """To the trainer's own `_metrics`, for the row `logs` that it is about to log."""
        means = self._means[mode]
        if stores_figures(trainer):
            mode, prefix = ("train", "") if "loss" in logs else ("eval", "eval_")
            means = self._means[mode]
            trainer._stored_metrics[mode] |= {f"{prefix}{name}": [mean.value()] for name, mean in means.items()}
            means.clear()
            return
        if means:
            trainer._metrics[mode].update({name: [mean.value()] for name, mean in means.items()})
            if not generates(trainer):  # else TRL counts them when it generates
                trainer._metrics[mode][TOKENS] = [trainer._total_train_tokens]
        means.clear()

    def moving(self, trainer: Any) -> dict[str, Any]:
        """The part of training as JSON, which a durable step keeps."""
        means = {name: asdict(mean) for name, mean in self._means["train"].items()}
        kept = trainer._metrics["train"].items() if generates(trainer) else ()
        pending = {PENDING: {name: list(values) for name, values in kept}} if kept else {}
        return {**means, TOKENS: int(trainer._total_train_tokens), **pending}

    def go_on(self, trainer: Any, moving: dict[str, Any]) -> None:
        """`moving`: of earlier releases without the tokens."""
        trainer._total_train_tokens = moving.get(TOKENS, 0)
        if generates(trainer):
            trainer._metrics["train"].update(moving.get(PENDING, {}))
        self._means["train"] = {name: Mean(**mean) for name, mean in moving.items() if name not in (TOKENS, PENDING)}
