"""The keys of the passes of layers: their tokens and their kernels."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import PASS_TOKENS, TILE, choice

PASSES = [
    Key(
        "pass_tokens",
        PASS_TOKENS,
        "auto",
        "most tokens in one pass of a layer. Consecutive micro-batches share a pass up to this size. 0: no sharing",
    ),
    Key(
        "fused_kernels",
        choice("auto", "never"),
        "auto",
        "Spillway's kernels for RMSNorm, SwiGLU and rotary embedding on a GPU",
    ),
    Key(
        "token_tile",
        TILE,
        "auto",
        "tokens that MLPs, experts, norms and logits compute at once. Fewer take less memory. `all`: a micro-batch",
    ),
]
