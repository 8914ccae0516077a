"""The keys of the adapters of `method: lora`: their rank, factor and layers."""

from __future__ import annotations

from spillway.config.key import BETA, Key
from spillway.config.values import FACTORS, FLAG, RANKS, TEXT, TEXTS, whole

ADAPTERS = [
    Key("lora_r", whole(1), None, "rank of the adapters", "16"),
    Key("lora_alpha", whole(1), None, "factor of the adapters' product: `lora_alpha` / `lora_r`", "32"),
    Key("lora_dropout", BETA, None, "dropout of the adapters' input", "0.05"),
    Key(
        "use_rslora",
        FLAG,
        False,
        "rsLoRA (arXiv 2312.03732): the factor of the adapters' product is `lora_alpha` divided by the square root of "
        "the rank",
    ),
    Key(
        "use_dora",
        FLAG,
        False,
        "DoRA (arXiv 2402.09353): each row of an adapted layer's weight has a trained length beside its adapter. "
        "Experts of `lora_target_parameters` have none",
    ),
    Key(
        "lora_rank_pattern",
        RANKS,
        None,
        "ranks of some adapters in place of `lora_r`: a mapping from names, or ends of names, of layers and experts, "
        "such as `{mlp.experts.down_proj: 8}`. A name may be a regular expression, as in PEFT's `rank_pattern`",
        "none",
    ),
    Key(
        "lora_alpha_pattern",
        FACTORS,
        None,
        "the same for `lora_alpha`, as PEFT's `alpha_pattern`",
        "none",
    ),
    Key(
        "lora_target_modules",
        TEXTS,
        [],
        "names, or ends of names, of the linear layers that get an adapter, or `all-linear`. Several may be given",
        "PEFT's own for the model type",
    ),
    Key(
        "lora_target_parameters",
        TEXTS,
        [],
        "names, or ends of names, of the parameters with the experts of a layer, such as `mlp.experts.down_proj`. "
        "Each expert gets an adapter; may be given several times. Without `lora_target_modules` these train alone",
        "none",
    ),
    Key(
        "lora_adapter",
        TEXT,
        None,
        "directory of adapters of a run or PEFT, of the same rank, factor and targets, that a new run begins with",
        "PEFT's first values",
    ),
]
