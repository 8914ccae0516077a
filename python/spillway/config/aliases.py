"""Other names that people bring from transformers and TRL, and what each means here."""

from __future__ import annotations

from typing import Any

from spillway.config.foreign import describe_foreign_value
from spillway.config.keys import KEYS
from spillway.config.values import Kind, parse_flag, parse_number
from spillway.errors import InputError

RECOMPUTES = ("gradient_checkpointing", "activation_checkpointing")
SAME = {"adapter": "lora_adapter", "deterministic": "full_determinism"}  # names whose values mean those of a key
ALIASES = ("bf16", "fp16", "warmup_ratio", *RECOMPUTES, *SAME)


def translate(raw: dict[str, Any], notices: list[str]) -> dict[str, Any]:
    """`raw` with the keys of this file's names replaced by those of the table."""
    known = {name: value for name, value in raw.items() if name not in ALIASES}
    if raw.get("fp16") is not None and flag("fp16", raw["fp16"]):
        known["compute_dtype"] = fp16(raw, known.get("compute_dtype"))
    elif raw.get("bf16") is not None:
        known.setdefault("compute_dtype", bf16(raw["bf16"], known.get("compute_dtype")))
    if raw.get("warmup_ratio") is not None:
        known["warmup_steps"] = warmup_ratio(raw["warmup_ratio"], known.get("warmup_steps"))
    for name in RECOMPUTES:
        if raw.get(name) is not None:
            known["activation_recompute"] = recompute(name, raw[name], known.get("activation_recompute"), notices)
    for name, key in SAME.items():
        if raw.get(name) is not None:
            known[key] = take_value(name, raw[name], key, known.get(key))
    return known


def take_value(name: str, value: Any, key: str, given: Any) -> Any:
    """The value of the key that `name` stands for. `given`: what the key has besides."""
    if words := describe_foreign_value(name, value):
        raise InputError(words)
    kind = KEYS[key].kind
    try:
        meant = kind.parse(value)
    except ValueError:
        raise InputError(f"{name}: got {value!r}, expects {kind.expected}") from None
    if given is not None and not means(kind, given, meant):
        raise InputError(f"{name}: {value} contradicts {key}: {given}; give only one of the two")
    return meant


def means(kind: Kind, given: Any, meant: Any) -> bool:
    """True if a key's value as given parses to `meant`."""
    try:
        return bool(kind.parse(given) == meant)
    except ValueError:
        return False


def recompute(name: str, value: Any, given: Any, notices: list[str]) -> str:
    meant = "all" if flag(name, value) else "none"
    if given is not None and str(given) != meant:
        raise InputError(f"{name}: {value} contradicts activation_recompute: {given}; give only one of the two")
    notices.append(
        f"{name}: {str(value).lower()} means activation_recompute: {meant}; with auto as many layers recompute as is "
        "fastest in the memory there is"
    )
    return meant


def flag(name: str, value: Any) -> bool:
    try:
        return parse_flag(value)
    except ValueError:
        raise InputError(f"{name}: got {value!r}, expects true or false") from None


def bf16(value: Any, compute_dtype: Any) -> str:
    meant = "bf16" if flag("bf16", value) else "fp32"
    if compute_dtype is not None and compute_dtype != meant:
        raise InputError(f"bf16: {value} contradicts compute_dtype: {compute_dtype}; give only one of the two")
    return meant


def fp16(raw: dict[str, Any], compute_dtype: Any) -> str:
    """`fp16: true`; `bf16: false` beside it is what TrainingArguments writes."""
    if raw.get("bf16") is not None and flag("bf16", raw["bf16"]):
        raise InputError("fp16: true contradicts bf16: true; give only one of the two")
    if compute_dtype not in (None, "fp16"):
        raise InputError(f"fp16: true contradicts compute_dtype: {compute_dtype}; give only one of the two")
    return "fp16"


def warmup_ratio(value: Any, warmup_steps: Any) -> float:
    if warmup_steps not in (None, 0):
        raise InputError(f"warmup_ratio: it is the old name of warmup_steps, which is given as {warmup_steps} too")
    try:
        ratio = parse_number(value)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1:
        raise InputError(f"warmup_ratio: got {value!r}, expects a share of all steps, from 0 to below 1")
    return ratio
