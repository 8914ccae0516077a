"""Times one layer, forward and backward: with PyTorch's operations, Liger's, and torch.compile's.

    gpu_layer.py --shape 7b --sequence 2048 --batch 4 [--device cuda:0] [--repeats 20] [--sides eager liger compile]

Prints one JSON line with, for each side, the median and the range of the seconds of a forward and a backward pass after
warm-up, the FLOP/s, and the peak bytes of the GPU. A side says if its package is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from typing import Any

from shapes import SHAPES, config_of, device_peak, refuses, settle, use_liger

WARM_UP = 3  # passes
SIDES = ("eager", "liger", "compile")
PACKAGES = {"liger": ("liger_kernel", "triton")}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="7b")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    return parser


def main() -> None:
    arguments = parser().parse_args()
    sides: dict[str, Any] = {}
    for side in arguments.sides:
        missing = [name for name in PACKAGES.get(side, ()) if importlib.util.find_spec(name) is None]
        if missing:
            sides[side] = {"refused": f"{', '.join(missing)} is not installed"}
            continue
        sides[side] = time_layer(arguments, side)
    print(json.dumps({"sides": sides, "tokens": arguments.sequence * arguments.batch}))


def time_layer(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    import torch
    from transformers.models.qwen2 import modeling_qwen2 as qwen2

    device = torch.device(arguments.device)
    config = config_of(arguments.shape, 1)
    config._attn_implementation = "sdpa"
    classes = {name: getattr(qwen2, name) for name in ("Qwen2RMSNorm", "Qwen2MLP", "apply_rotary_pos_emb")}
    if side == "liger":
        use_liger()
    try:
        with torch.device(device):
            layer = qwen2.Qwen2DecoderLayer(config, 0).to(torch.bfloat16)
            rotary = qwen2.Qwen2RotaryEmbedding(config)
            hidden = torch.randn(arguments.batch, arguments.sequence, config.hidden_size, dtype=torch.bfloat16)
            positions = torch.arange(arguments.sequence).expand(arguments.batch, -1)
        call = torch.compile(layer) if side == "compile" else layer
        hidden.requires_grad_()
        seconds = []
        for _ in range(WARM_UP + arguments.repeats):
            settle(device)
            began = time.perf_counter()
            out = call(hidden, position_embeddings=rotary(hidden, positions), attention_mask=None)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
            settle(device)
            seconds.append(time.perf_counter() - began)
            layer.zero_grad(set_to_none=True)
    finally:
        for name, value in classes.items():
            setattr(qwen2, name, value)
    timed = seconds[WARM_UP:]
    products = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    tokens = arguments.batch * arguments.sequence
    operations = 6 * products * tokens + 6 * config.hidden_size * arguments.sequence * tokens
    return {
        "median_seconds": statistics.median(timed), "range_seconds": [min(timed), max(timed)],
        "flops_per_second": operations / statistics.median(timed), "device_peak": device_peak(device),
    }  # fmt: skip


if __name__ == "__main__":
    with refuses():
        main()
