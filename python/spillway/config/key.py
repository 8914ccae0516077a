"""What one key of the configuration is, and what the table of keys (`keys`) is made with: kinds, names, helpers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spillway.config.optimizers import OPTIMIZERS, Hyperparameter
from spillway.config.values import (
    Kind,
    choice,
    number,
    synonym,
)


@dataclass(frozen=True)
class Key:
    """One key. `default` None means "not given"; `default_text` says what happens then."""

    name: str
    kind: Kind
    default: Any
    help: str
    default_text: str = ""  # shown instead of the default
    required: bool = False
    absent: Callable[[Any], str] | None = None  # the reason why this release lacks a value; "" for a supported one


def unknown_device(value: Any) -> str:
    known = value in ("auto", "cpu", "simulated", "cuda") or re.fullmatch(r"cuda:[0-9]+", str(value))
    return "" if known else f"{value!r} is not available in this release; there are auto, cpu, cuda, cuda:N, simulated"


def describe_other_codes(value: Any) -> str:
    return "" if value == "nf4" else f"{value} is not available in this release; there is nf4"


NOT_NEGATIVE = number("a number, 0 or more", lambda value: value >= 0)
BETA = number("a number from 0 up to, but not including, 1", lambda value: 0 <= value < 1)
SHARE = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
POSITIVE = number("a number above 0", lambda value: value > 0)
STRATEGY = choice("no", "steps", "epoch")
ALSO = {  # transformers' names of optimizers, beside the engine's own
    "adamw": ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla",
              "adamw_torch_npu_fused", "paged_adamw", "paged_adamw_32bit"),
    "lion": ("lion_32bit", "paged_lion", "paged_lion_32bit"),
}  # fmt: skip
NAMES = {alias: name for name in OPTIMIZERS for alias in (name, *ALSO.get(name, ()))}
EIGHT_BITS = "moments of 8 bits are `state_format: int8` with `optim: {}`"
LOW_RANK = "`method: lsp` trains matrices through a small projection of their gradients"
WITHOUT = {  # names of transformers' other optimizers, and the reason or the replacement for each
    "adafactor": "its factored second moment is a sum over whole rows and columns, so that no range of elements can be "
    "updated by itself",
    "adamw_anyprecision": "moments of 16 bits are `state_format: bf16` with `optim: adamw`",
    "adamw_torch_4bit": "the narrowest moments are of 8 bits, `state_format: int8` with `optim: adamw`",
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit"),
                    EIGHT_BITS.format("adamw")),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), EIGHT_BITS.format("lion")),
    **dict.fromkeys(("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise",
                     "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "apollo_adamw",
                     "apollo_adamw_layerwise"), LOW_RANK),
}  # fmt: skip
OPTIMIZER = synonym(NAMES, WITHOUT)


def describe_other_optimizer(value: Any) -> str:
    """The sentence that refuses an optimizer of transformers; empty for a supported one."""
    if value not in WITHOUT:
        return ""
    return f"{value} is not taken: {WITHOUT[value]}; there are {', '.join(f'`{name}`' for name in OPTIMIZERS)}"


SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)


def optimizer_keys() -> list[Key]:
    """The keys of hyperparameters that have keys of their own; several optimizers may share one."""
    sharing: dict[str, list[Hyperparameter]] = {}
    for optimizer in OPTIMIZERS.values():
        for each in optimizer.hyperparameters:
            if each.words and each not in sharing.setdefault(each.key, []):
                sharing[each.key].append(each)
    return [hyperparameter_key(name, of) for name, of in sharing.items()]


def hyperparameter_key(name: str, of: list[Hyperparameter]) -> Key:
    words, one = "; ".join(dict.fromkeys(each.words for each in of)), of[0]
    if one.name == "learning_rate":
        return Key(name, NOT_NEGATIVE, None, words, "the same as `learning_rate`")
    if one.choices:
        return Key(name, choice(*one.choices), one.choices[int(one.default)], words)
    return Key(name, BETA if one.below == 1 else POSITIVE if one.above else NOT_NEGATIVE, one.default, words)
