"""What is a method's own: which keys, what they are by default, what they cannot be, and what the engine is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway._engine import RefitRule
from spillway.config.keys import KEYS
from spillway.config.optimizers import OPTIMIZERS
from spillway.errors import InputError

if TYPE_CHECKING:
    from spillway.config.resolve import Config

DEFAULTS: dict[str, dict[str, Any]] = {
    "lora": {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05},  # TRL's
    "lsp": {
        "lsp_nonzeros": 4,
        "lsp_projectors": "fitted",
        "lsp_check_every": 100,
        "lsp_threshold": 0.9,
        "lsp_residual": "rotating",
        "lsp_master": "exact",
    },
}
ROTATION = 20  # updates
# Values in runs that left a key out before it had its present default.
MEANT = {"lsp_residual": "none", "lsp_master": "exact", "lsp_projectors": "fitted"}
OWN = {name: method for name in KEYS if (method := name.partition("_")[0]) in DEFAULTS}  # keys of one method alone
OWN |= dict.fromkeys(("use_rslora", "use_dora"), "lora")


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with what their method makes of its own keys that are not given."""
    out = dict(values)
    if out["lora_target_parameters"] and out["lora_dropout"] is None:
        out["lora_dropout"] = 0.0  # an adapter of a parameter has no input of its own that could be dropped
    if out["lsp_projectors"] == "published" and out["lsp_residual"] is None:
        out["lsp_residual"] = "none"
    for name, default in DEFAULTS.get(values["method"], {}).items():
        out[name] = default if out[name] is None else out[name]
    if out["lsp_residual"] == "rotating" and out["lsp_rotate_every"] is None:
        out["lsp_rotate_every"] = ROTATION
    return out


def check(config: Config) -> None:
    """Raises InputError naming the first key that is another method's, or cannot be as it is."""
    for name, method in OWN.items():
        if config.method != method and getattr(config, name) != KEYS[name].default:
            raise InputError(f"{name}: it is for method {method}, and the method is {config.method}")


def check_reduced(config: Config) -> None:
    """Checks the keys of a method that reduces gradients, and what else it asks for."""
    if config.method != "lsp":
        return
    optimizer = OPTIMIZERS[config.optim]
    if optimizer.scope == "matrix":
        raise InputError(
            f"optim: {config.optim} updates whole matrices, which have no gradient of their own with method lsp; use "
            f"optim {optimizer.others}, or another method"
        )
    if config.weight_decay > 0 and not optimizer.decoupled_decay:
        decoupled = " or ".join(it.name for it in OPTIMIZERS.values() if it.decoupled_decay and it.scope == "element")
        raise InputError(
            f"weight_decay: with method lsp and optim {config.optim}, which adds the decay to the gradient, it has no "
            f"place: there is no gradient of the whole matrix; use optim {decoupled}, or weight_decay 0"
        )
    if config.lsp_master == "bf16" and config.weight_dtype not in (None, "bf16"):
        raise InputError(
            f"lsp_master: bf16 is for weights in bf16, and weight_dtype is {config.weight_dtype}; leave one of them out"
        )
    if config.lsp_projectors == "published" and config.lsp_residual == "rotating":
        raise InputError(
            "lsp_residual: rotating refits projectors on a schedule, and published ones are learned again only beyond "
            "lsp_threshold; leave lsp_residual out, or use lsp_projectors fitted"
        )
    if config.lsp_rotate_every is not None and config.lsp_residual != "rotating":
        raise InputError(
            f"lsp_rotate_every: it is for lsp_residual rotating, and that is {config.lsp_residual or 'none'}"
        )
    if config.lsp_rank is not None and config.lsp_rank % config.lsp_nonzeros:
        raise InputError(
            f"lsp_rank: {config.lsp_rank} is no multiple of lsp_nonzeros {config.lsp_nonzeros}; use "
            f"{max(1, config.lsp_rank // config.lsp_nonzeros) * config.lsp_nonzeros}"
        )


def rotation(config: Config) -> int:
    """Updates after which each matrix has a refit whatever is missed; 0: never."""
    return int(config.lsp_rotate_every) if config.lsp_residual == "rotating" else 0


def refits(config: Config) -> RefitRule:
    """When there is a background refit. It does not matter where nothing is reduced."""
    if config.method != "lsp":
        return RefitRule()
    return RefitRule(check_every=config.lsp_check_every, threshold=config.lsp_threshold, rotate_every=rotation(config))
