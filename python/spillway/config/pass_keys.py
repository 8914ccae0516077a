"""The keys of the passes of layers: their tokens and their kernels."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import PASS_TOKENS, TILE, choice

PASSES = [
    Key(
        "pass_tokens",
        PASS_TOKENS,
        "auto",
        "most tokens in one pass of a layer. Consecutive micro-batches share a pass up to this size, padded to one "
        "length. `auto`: 32768 on a GPU, where a pass of one short row waits for the host; 0 on CPUs, which means no "
        "sharing. The loss is the same, and the last bits of gradients differ. Micro-batches do not share passes "
        "with objectives that compare rows, `method: lsp`, several `virtual_ranks`, or routers that add a loss. A "
        "resume keeps the value",
    ),
    Key(
        "fused_kernels",
        choice("auto", "never"),
        "auto",
        "whether Spillway's kernels replace RMSNorm, SwiGLU and rotary embedding on a GPU. Each takes one pass over "
        "memory, and PyTorch takes several. `auto`: every part of a layer that computes exactly this is replaced, "
        "and a line at the start lists the parts. `never`: the model's own code. The two agree within rounding. "
        "Placement changes no bit. A resume keeps the value. CPUs ignore the key",
    ),
    Key(
        "token_tile",
        TILE,
        "auto",
        "tokens for which MLPs, experts, norms and the head's logits are computed at once, forward and backward. "
        "Fewer take less memory. `auto`: twice the hidden size, at least 1024; on a GPU eight times, at least 32768. "
        "`all`: a whole micro-batch. A micro-batch that fits in one tile gives the bits of `all`. Gradients of "
        "several tiles are summed like those of micro-batches. Layers run whole for several `virtual_ranks`. A "
        "resume keeps the value",
    ),
]
