"""The keys of a run's objective and its loss."""

from __future__ import annotations

from typing import Any

from spillway.config.key import BETA, NOT_NEGATIVE, POSITIVE, SHARE, Key, number
from spillway.config.objectives import LOSS_TYPES, OBJECTIVES, list_owners
from spillway.config.values import FLAG, NAMES, TEXT, TEXTS, Kind, choice, parse_whole, whole, within


def parse_scale(value: Any) -> str:
    """What rewards are scaled by. TRL's older flag stands for two of the names."""
    text = str(value).strip().lower()
    if text not in SCALE_NAMES:
        raise ValueError
    return SCALE_NAMES[text]


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


COUNT = Kind("a whole number, 1 or more", within(parse_whole, lambda value: value >= 1))
ABOVE_ZERO = number("a number above 0, at most 1", lambda value: 0 < value <= 1)
SCALE_NAMES = {"group": "group", "batch": "batch", "none": "none", "true": "group", "false": "none"}
SCALES = Kind("one of " + ", ".join(SCALE_NAMES), lambda value: parse_scale(value))
OBJECTIVE = [
    Key("objective", choice(*OBJECTIVES), "sft", "loss that trains the model"),
    Key(
        "beta",
        NOT_NEGATIVE,
        None,
        "closeness to the reference (`dpo`, `kto`, `grpo`), weight of the odds ratio (`orpo`) or steepness (`cpo`)",
        "0.1, with `grpo` 0",
    ),
    Key("loss_type", choice(*LOSS_TYPES, single=True), None, "TRL's name of the loss", "by `objective`"),
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
        "num_labels",
        COUNT,
        None,
        f"with {quote(list_owners('num_labels'))}: labels of the head; 1 for a number of each row",
        "those of `id2label` or of the model",
    ),
    Key(
        "id2label",
        NAMES,
        None,
        f"with {quote(list_owners('id2label'))}: names of the labels in their order",
        "those of the model",
    ),
    Key(
        "problem_type",
        choice("single_label_classification", "multi_label_classification", "regression"),
        None,
        "with `text-classification`: transformers' loss",
        "the model's",
    ),
    Key(
        "label_field",
        TEXT,
        None,
        f"with {quote(list_owners('label_field'))}: column with the labels",
        "found by name",
    ),
    Key(
        "text_pair_field",
        TEXT,
        None,
        "with `text-classification`: column with the second text of each row. `dataset_text_field` names the first",
        "found by name",
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
        "with `distill` and `grpo`: the logits are divided by it. Recorded completions of `grpo` were sampled with it",
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
        "true, with `grpo` false",
    ),
    Key(
        "precompute_ref_log_probs",
        FLAG,
        None,
        f"with {quote(list_owners('precompute_ref_log_probs'))}: a first pass computes the reference. `false`: each "
        "step does, from the base of new adapters",
        "false with new adapters, else true",
    ),
    Key(
        "epsilon",
        NOT_NEGATIVE,
        None,
        "with `grpo`: the loss clips the ratio of new to old probability at 1 - `epsilon` and 1 + `epsilon_high`",
        "0.2",
    ),
    Key("epsilon_high", NOT_NEGATIVE, None, "with `grpo`: clips the ratio at 1 + `epsilon_high`", "`epsilon`"),
    Key(
        "scale_rewards",
        SCALES,
        None,
        "with `grpo`: standard deviation that divides advantages, of the `group` (`true`) or step (`batch`), or "
        "`none` (`false`)",
        "group",
    ),
    Key(
        "num_iterations",
        COUNT,
        None,
        "with `grpo`: consecutive steps that each step's completions are used for",
        "1",
    ),
    Key(
        "importance_sampling_level",
        choice("token", "sequence"),
        None,
        "with `grpo`: one ratio for each `token`, or for each `sequence` from the mean of its log ratios (GSPO)",
        "token",
    ),
    Key(
        "use_bias_correction_kl",
        FLAG,
        None,
        "with `grpo` and `beta`: each token's divergence from the reference weighs by its ratio, since an older policy "
        "sampled it",
        "true",
    ),
    Key(
        "mask_truncated_completions",
        FLAG,
        None,
        "with `grpo`: completions that do not end with the tokenizer's end token carry no loss",
        "false",
    ),
    Key(
        "max_completion_length",
        COUNT,
        None,
        "with `reward_funcs`: most tokens of a completion, and the divisor of its loss with `loss_type: dr_grpo`",
        "256",
    ),
    Key(
        "reward_funcs",
        TEXTS,
        None,
        "with `grpo`: functions such as `rewards.score` that score completions, which the run then samples. Several "
        "add up",
        "none: completions are recorded",
    ),
    Key("num_generations", whole(2), None, "with `reward_funcs`: completions of each prompt", "8"),
    Key("top_k", whole(0), None, "with `reward_funcs`: sample only from the k likeliest tokens. 0: no limit", "0"),
    Key(
        "top_p",
        ABOVE_ZERO,
        None,
        "with `reward_funcs`: sample only from the likeliest tokens whose probabilities add up to this",
        "1",
    ),
]
