"""The keys of the passes of layers: their tokens and their kernels."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import PASS_TOKENS, TILE, choice

PASSES = [
    Key(
        "pass_tokens",
        PASS_TOKENS,
        "auto",
        "tokens of a layer's pass: consecutive micro-batches share their passes, padded to one length, as long as "
        "they have no more together. `auto`: 32768 on a GPU, which a pass of one short row leaves waiting for the "
        "host; 0, no sharing, on CPUs. The loss is the same; the last bits of gradients differ. A run keeps the "
        "value it began with. Micro-batches stay apart with the objectives that compare rows, `method: lsp`, several "
        "`virtual_ranks`, and where routers add a loss",
    ),
    Key(
        "fused_kernels",
        choice("auto", "never"),
        "auto",
        "whether Spillway's kernels stand for parts of a layer on a GPU: RMSNorm, SwiGLU and rotary embedding. "
        "Each takes one pass over memory where PyTorch takes several. `auto`: wherever a part is found to compute "
        "just that, whatever its class; a line at the start lists them. They round as the model's code does and "
        "add in another order, so losses agree within rounding; no placement changes a bit. `never`: the model's "
        "own code. A run keeps the value it began with. Nothing changes on CPUs",
    ),
    Key(
        "token_tile",
        TILE,
        "auto",
        "tokens that MLPs, experts, norms and the head's logits are computed for at once, forward and backward: "
        "fewer of them take less memory. `auto`: twice the hidden size, at least 1024; on a GPU eight times, at "
        "least 32768. `all`: a whole micro-batch. "
        "One of no more tokens is computed as with `all`, bit for bit; the gradients of several tiles are summed "
        "as those of micro-batches are. A run keeps the value it began with. With several `virtual_ranks` and with "
        "`method: lsp` layers run whole",
    ),
]
