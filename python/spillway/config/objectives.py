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
    has_reference: bool = False  # its loss compares with the log-probabilities of a reference model
    has_teacher: bool = False  # a first pass stores a teacher's distribution of each label token
    is_framed: bool = False  # rows begin with the tokenizer's first token and end with its end token, if it has them
    labels_prompt: bool = False  # the prompt of a chosen row carries loss, too
    is_sequential: bool = False  # steps take the rows in file order, as TRL's trainer does
    labels: int = 0  # of the head, which stands in place of the vocabulary's; 0: the model predicts tokens
    is_labelled: bool = False  # rows have labels; the run or its model says how many labels the head has
    labels_words: bool = False  # a label belongs to a word, and not to its row
    is_mismatched: bool = False  # each prompt also gets another row's completion, by which the divergence is estimated
    is_sampled: bool = False  # rows are groups of completions that a policy sampled, with its log-probabilities

    @property
    def compares(self) -> bool:
        """True if the loss is of the log-probabilities of whole rows."""
        return self.rows > 0

    @property
    def has_head(self) -> bool:
        """True if a head of labels stands in place of the vocabulary's."""
        return self.labels > 0 or self.is_labelled

    @property
    def tells(self) -> bool:
        """True if the objective logs figures of its own beside the loss."""
        return self.compares or self.has_teacher or self.is_labelled


PAIR = ("prompt", "chosen", "rejected")
JUDGED = ("prompt", "completion", "label")
ANSWERS = ("chosen", "rejected")
GROUP = ("prompt", "completions", "rewards", "old_logprobs")
REFERRED = {"precompute_ref_log_probs": None}
SAMPLING = {"reward_funcs": None, "num_generations": None, "top_k": None, "top_p": None}  # of a run that samples
CLASSES = {"num_labels": None, "id2label": None, "label_field": None}

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
            "direct preference optimisation of pairs",
            1e-6,
            {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "disable_dropout": True, **REFERRED},
            losses=("sigmoid", "hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down"),
            smoothed=("robust",),
            columns=PAIR,
            rows=2,
            has_reference=True,
        ),
        ObjectiveEntry(
            "orpo",
            "the likelihood of prompt and chosen answer, and the odds ratio of the two answers",
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
            "contrastive preference optimisation of pairs; SimPO with `loss_type: simpo`",
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
            "Kahneman-Tversky optimisation of single answers",
            1e-6,
            {
                "beta": 0.1,
                "loss_type": "kto",
                "desirable_weight": 1.0,
                "undesirable_weight": 1.0,
                "disable_dropout": True,
                **REFERRED,
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
            "distill",
            "a teacher's distribution of each label token",
            2e-5,
            {
                "teacher": None,
                "teacher_top_k": 64,
                "loss_type": "forward_kl",
                "temperature": 1.0,
                "distill_alpha": 1.0,
            },
            losses=("forward_kl", "reverse_kl"),
            has_teacher=True,
        ),
        ObjectiveEntry(
            "reward",
            "a score of each row, from pairs; its head replaces the vocabulary's",
            1e-4,
            {"center_rewards_coefficient": None, "disable_dropout": True},
            columns=ANSWERS,
            rows=2,
            labels=1,
        ),
        ObjectiveEntry(
            "text-classification",
            "classes or numbers of whole rows",
            2e-5,
            {**CLASSES, "problem_type": None, "text_pair_field": None},
            is_labelled=True,
        ),
        ObjectiveEntry(
            "token-classification",
            "classes of words",
            2e-5,
            CLASSES,
            is_labelled=True,
            labels_words=True,
        ),
        ObjectiveEntry(
            "grpo",
            "group relative policy optimisation of sampled completions",
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
                "temperature": 1.0,
                "disable_dropout": False,
                **SAMPLING,
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
