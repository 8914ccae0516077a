"""The keys of a run's objective and its loss."""

from __future__ import annotations

from typing import Any

from spillway.config.key import BETA, NOT_NEGATIVE, POSITIVE, SHARE, Key
from spillway.config.objectives import LATER, LOSS_TYPES, OBJECTIVES, list_owners
from spillway.config.values import FLAG, TEXT, choice, synonym, whole


def refuse_objective(value: Any) -> str:
    """The sentence that refuses an objective; empty for a supported one."""
    return f"{value} is not available in this release; there are {join(OBJECTIVES)}" if value in LATER else ""


def join(names: Any) -> str:
    """The names as a list in a sentence."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def quote(names: Any) -> str:
    return join([f"`{name}`" for name in names])


def list_losses(kind: str = "losses") -> str:
    """The loss types of each objective, a sentence for each. `kind`: "losses" or "smoothed"."""
    lists = {each.name: getattr(each, kind) for each in OBJECTIVES.values()}
    return ". ".join(f"`{name}`: {quote(losses)}" for name, losses in lists.items() if losses)


OBJECTIVE = [
    Key(
        "objective",
        synonym({name: name for name in OBJECTIVES}, LATER),
        "sft",
        ". ".join(f"`{each.name}`: {each.help}" for each in OBJECTIVES.values()),
        absent=refuse_objective,
    ),
    Key(
        "beta",
        POSITIVE,
        None,
        "strength of the objective. Higher means closer to the reference model (`dpo`, `kto`), more weight of the "
        "odds ratio (`orpo`), or a steeper loss (`cpo`)",
        "0.1",
    ),
    Key(
        "loss_type",
        choice(*LOSS_TYPES, single=True),
        None,
        f"TRL's name of the loss. {list_losses()}",
        "the first of them",
    ),
    Key(
        "label_smoothing",
        BETA,
        None,
        f"share of pairs whose answers are swapped, with these losses. {list_losses('smoothed')}",
        "0",
    ),
    Key(
        "cpo_alpha",
        NOT_NEGATIVE,
        None,
        "with `cpo`: weight of the negative log-likelihood of chosen answers. 0 with `loss_type: simpo` is SimPO as "
        "published",
        "1",
    ),
    Key(
        "simpo_gamma",
        NOT_NEGATIVE,
        None,
        "with `loss_type: simpo`: margin between the rewards of a chosen and a rejected answer",
        "0.5",
    ),
    Key(
        "desirable_weight",
        NOT_NEGATIVE,
        None,
        "with `kto`: weight of the losses of answers with a true label",
        "1",
    ),
    Key(
        "undesirable_weight",
        NOT_NEGATIVE,
        None,
        "with `kto`: weight of the losses of answers with a false label",
        "1",
    ),
    Key(
        "center_rewards_coefficient",
        NOT_NEGATIVE,
        None,
        "with `reward`: weight of a penalty that holds the mean reward at zero, the square of the sum of a pair's "
        "rewards",
        "none",
    ),
    Key(
        "teacher",
        TEXT,
        None,
        "with `distill`: the directory of the teacher, a model with the same vocabulary",
        "none",
    ),
    Key(
        "teacher_top_k",
        whole(1),
        None,
        "with `distill`: logits of the teacher that are stored for each label token, the largest ones",
        "64",
    ),
    Key(
        "temperature",
        POSITIVE,
        None,
        "with `distill`: the logits of teacher and model are divided by it",
        "1",
    ),
    Key(
        "distill_alpha",
        SHARE,
        None,
        "with `distill`: the weight of the divergence; the loss also has cross-entropy with the rest of 1",
        "1",
    ),
    Key(
        "disable_dropout",
        FLAG,
        None,
        f"with {quote(list_owners('disable_dropout'))}: disables dropout, including in adapters",
        "true",
    ),
]
