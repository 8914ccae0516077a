"""The table of objectives: what the configuration, the data and the loop need to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ObjectiveEntry:
    """One objective, by TRL's names. Its loss is the entry of the same name in `model.row_losses.ROW_LOSSES`."""

    name: str
    help: str
    learning_rate: float
    defaults: Mapping[str, Any] = field(default_factory=dict)  # TRL's, of the keys that are its own
    losses: tuple[str, ...] = ()  # of `loss_type`
    smoothed: tuple[str, ...] = ()  # those that `label_smoothing` is for
    columns: tuple[str, ...] = ()  # of its rows; none: those that are found in the first one
    answers: tuple[str, ...] = ()  # columns that cannot be empty
    rows: int = 0  # rows of each example, whose mean the loss is; 0: the loss is a mean over label tokens
    has_reference: bool = False  # a first pass computes the log-probabilities of a reference model
    is_framed: bool = False  # rows begin with the tokenizer's first token and end with its end token, if it has them
    labels_prompt: bool = False  # the prompt of a chosen row carries loss, too
    is_sequential: bool = False  # steps take the rows in file order, as TRL's trainer does
    labels: int = 0  # of the head, which stands in place of the vocabulary's; 0: the model predicts tokens
    is_mismatched: bool = False  # each prompt also gets another row's completion, by which the divergence is estimated
    is_sampled: bool = False  # rows are groups of completions that a policy sampled, with its log-probabilities

    @property
    def compares(self) -> bool:
        """Whether the loss is of the log-probabilities of whole rows."""
        return self.rows > 0


PAIR = ("prompt", "chosen", "rejected")
JUDGED = ("prompt", "completion", "label")
ANSWERS = ("chosen", "rejected")
GROUP = ("prompt", "completions", "rewards", "old_logprobs")

OBJECTIVES = {
    each.name: each
    for each in (
        ObjectiveEntry(
            "sft",
            "the next token of text, completions or answers",
            2e-5,
        ),
        ObjectiveEntry(
            "dpo",
            "direct preference optimisation of pairs, the columns `prompt`, `chosen` and `rejected`, against the model "
            "as it is before the first step, whose log-probabilities a first pass computes",
            1e-6,
            {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "disable_dropout": True},
            losses=("sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down"),
            smoothed=("robust",),
            columns=PAIR,
            rows=2,
            has_reference=True,
        ),
        ObjectiveEntry(
            "orpo",
            "the likelihood of prompt and chosen answer, and the odds ratio of chosen and rejected answers, of the "
            "same columns and without a reference",
            1e-6,
            {"beta": 0.1, "disable_dropout": True},
            columns=PAIR,
            answers=ANSWERS,
            rows=2,
            is_framed=True,
            labels_prompt=True,
        ),
        ObjectiveEntry(
            "cpo",
            "contrastive preference optimisation of the same columns, without a reference; `loss_type: simpo` is SimPO",
            1e-6,
            {
                "beta": 0.1,
                "loss_type": "sigmoid",
                "label_smoothing": 0.0,
                "cpo_alpha": 1.0,
                "simpo_gamma": 0.5,
                "disable_dropout": True,
            },
            losses=("sigmoid", "hinge", "ipo", "simpo"),
            smoothed=("sigmoid", "simpo"),
            columns=PAIR,
            answers=ANSWERS,
            rows=2,
            is_framed=True,
        ),
        ObjectiveEntry(
            "kto",
            "Kahneman-Tversky optimisation of single answers, the columns `prompt`, `completion` and `label` (true or "
            "false), against a reference as with `dpo`",
            1e-6,
            {
                "beta": 0.1,
                "loss_type": "kto",
                "desirable_weight": 1.0,
                "undesirable_weight": 1.0,
                "disable_dropout": True,
            },
            losses=("kto",),
            columns=JUDGED,
            answers=("completion",),
            rows=2,
            has_reference=True,
            is_sequential=True,
            is_mismatched=True,
        ),
        ObjectiveEntry(
            "reward",
            "a reward model of pairs, the columns `chosen` and `rejected`, and `prompt` and `margin` where rows have "
            "them; a head of one label stands in place of the vocabulary's",
            1e-4,
            {"center_rewards_coefficient": None, "disable_dropout": True},
            columns=ANSWERS,
            rows=2,
            labels=1,
        ),
        ObjectiveEntry(
            "grpo",
            "group relative policy optimisation of recorded completions, the columns `prompt`, `completions`, "
            "`rewards` and `old_logprobs`; `beta` above 0 adds a reference as with `dpo`",
            1e-6,
            {
                "beta": 0.0,
                "loss_type": "dapo",
                "epsilon": 0.2,
                "epsilon_high": None,
                "scale_rewards": "group",
                "num_iterations": 1,
                "importance_sampling_level": "token",
                "use_bias_correction_kl": True,
                "mask_truncated_completions": False,
                "max_completion_length": 256,
                "disable_dropout": False,
            },
            losses=("dapo", "grpo", "bnpo", "dr_grpo"),
            columns=GROUP,
            rows=1,
            is_sequential=True,
            is_sampled=True,
        ),
    )
}


def list_owners(key: str) -> list[str]:
    """The objectives that have this key."""
    return [each.name for each in OBJECTIVES.values() if key in each.defaults]


OWN_KEYS = tuple(dict.fromkeys(key for each in OBJECTIVES.values() for key in each.defaults))
LOSS_TYPES = tuple(dict.fromkeys(name for each in OBJECTIVES.values() for name in each.losses))
