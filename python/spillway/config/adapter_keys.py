"""The keys of the adapters of `method: lora`: their rank, factor and layers."""

from __future__ import annotations

from spillway.config.key import BETA, Key
from spillway.config.values import FACTORS, FLAG, RANKS, TEXT, TEXTS, whole

ADAPTERS = [
    Key("lora_r", whole(1), None, "rank of the adapters", "16"),
    Key("lora_alpha", whole(1), None, "factor of the adapters' product: `lora_alpha` / `lora_r`", "32"),
    Key("lora_dropout", BETA, None, "dropout of the adapters' input", "0.05; 0 with `lora_target_parameters`"),
    Key(
        "use_rslora",
        FLAG,
        False,
        "rsLoRA: the factor of the adapters' product is `lora_alpha` divided by the square root of the rank",
    ),
    Key("use_dora", FLAG, False, "DoRA: each row of an adapted layer's weight also has a trained length"),
    Key(
        "lora_rank_pattern",
        RANKS,
        None,
        "ranks of some layers and experts in place of `lora_r`, as PEFT's `rank_pattern`: `{mlp.experts.down_proj: 8}`",
        "none",
    ),
    Key(
        "lora_alpha_pattern",
        FACTORS,
        None,
        "factors of some layers and experts in place of `lora_alpha`, as PEFT's `alpha_pattern`",
        "none",
    ),
    Key(
        "lora_target_modules",
        TEXTS,
        [],
        "names, or ends of names, of the linear layers that get an adapter, or `all-linear`",
        "PEFT's own for the model type",
    ),
    Key(
        "lora_target_parameters",
        TEXTS,
        [],
        "names, or ends of names, of parameters with the experts of a layer. Each expert gets an adapter",
        "none",
    ),
    Key(
        "lora_adapter",
        TEXT,
        None,
        "directory of adapters of the same rank, factor and targets, which a new run begins with",
        "PEFT's first values",
    ),
]
