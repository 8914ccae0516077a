"""Weights of a frozen base that `load_in_4bit` and `load_in_8bit` leave unquantised: bytes, by reason.

Everything here follows from the engine's description of the model (`describe`), which a run keeps in its directory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from spillway._engine import BlockRole, BlockSpec, Description, Form, TensorSpec, Training
from spillway.base.sizes import size

KEYS = {"nf4": "load_in_4bit", "nf4_nested": "load_in_4bit", "int8": "load_in_8bit"}  # by form
REASONS = {  # by group of tensors
    "embedding": "the embedding",
    "head": "the head",
    "fp32": "what the model's class keeps in fp32",
    "norms": "norms and biases",
    "routers": "routers",
    "others": "other parameters, such as convolutions",
}
ROUTERS = re.compile(r"(^|\.)(\w*router\w*|gate|gating|wg)(\.|$)", re.IGNORECASE)
FP32 = 4  # bytes of an element


def frozen_tensors(description: Description) -> Iterator[tuple[BlockSpec, TensorSpec]]:
    """Each tensor of the base, with its block."""
    for block in description.blocks:
        yield from ((block, tensor) for tensor in block.tensors if tensor.training is Training.frozen)


def count_unpacked(description: Description) -> Counter[str]:
    """Bytes of frozen tensors that are not packed, by group of `REASONS`. Empty where no tensor is packed."""
    bytes_of: Counter[str] = Counter()
    if not packed_forms(description):
        return bytes_of
    narrow = FP32 if description.weight_dtype == "fp32" else 2
    for block, tensor in frozen_tensors(description):
        if not tensor.form.is_packed:
            width = FP32 if tensor.form is Form.fp32 else narrow
            bytes_of[group_of(block, tensor)] += math.prod(tensor.shape) * width
    return bytes_of


def packed_forms(description: Description) -> set[str]:
    return {tensor.form.name for _, tensor in frozen_tensors(description) if tensor.form.is_packed}


def group_of(block: BlockSpec, tensor: TensorSpec) -> str:
    if block.role is not BlockRole.layer:
        return block.role.name
    if tensor.form is Form.fp32:
        return "fp32"
    dimensions = len(tensor.shape)
    if dimensions < 2 or tensor.name.endswith("bias"):
        return "norms"
    return "routers" if dimensions == 2 and names_router(tensor.name) else "others"


def names_router(name: str) -> bool:
    """True if a parameter's name is that of a router's matrix, in classes of transformers."""
    return ROUTERS.search(name) is not None


def compute_unpacked_share(description: Description) -> float:
    """The part of the base's parameters that is not packed."""
    counts = {True: 0, False: 0}
    for _, tensor in frozen_tensors(description):
        counts[tensor.form.is_packed] += math.prod(tensor.shape)
    return counts[False] / max(1, sum(counts.values()))


def summarise_unpacked(description: Description) -> dict[str, Any]:
    """The entry of plan.json under `unquantised`: bytes, their share of the parameters, bytes by group of `REASONS`.
    Empty where nothing is quantised."""
    bytes_of = count_unpacked(description)
    if not bytes_of:
        return {}
    share = compute_unpacked_share(description)
    return {"unquantised": {"bytes": bytes_of.total(), "share": share, "reasons": dict(bytes_of.most_common())}}


def unpacked_notice(description: Description) -> list[str]:
    """A notice of how much of a frozen base stays unquantised; none where nothing is quantised."""
    bytes_of = count_unpacked(description)
    if not bytes_of:
        return []
    key = " and ".join(KEYS.get(form, form) for form in sorted(packed_forms(description)))
    parts = "; ".join(f"{size(bytes)} in {REASONS[group]}" for group, bytes in bytes_of.most_common())
    return [
        f"{key}: {compute_unpacked_share(description):.1%} of the base's parameters stay unquantised, "
        f"{size(bytes_of.total())}: {parts}"
    ]
