"""Times the same step in plain PyTorch, with weights, gradients and states on the GPU.

    gpu_plain.py --shape 1.5b --sequence 2048 --batch 4 --micro-batches 4 [--device cuda:0] [--steps N] [--layers N]
                 [--no-checkpointing] [--liger] [--compile] [--offload torchao]

Prints one JSON line; exit code 3 where it does not fit. `--device cpu` is for a dry run. Weights are bf16, and AdamW's
states (`fused=True`) of their type: less work than the engine's update of fp32 masters, so it is a ceiling. Layers are
computed again in backward unless it says `--no-checkpointing`. `--liger`: its fused norms, rotary embedding, SwiGLU and
loss. `--offload torchao`: states in host memory, by its CPUOffloadOptimizer.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from shapes import SHAPES, config_of, device_peak, random_tokens, refuses, settle, use_liger
from transformers import AutoModelForCausalLM


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), required=True)
    for name in ("sequence", "batch", "micro-batches"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--liger", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--offload", choices=("torchao",))
    return parser


def optimizer_of(model: torch.nn.Module, offload: str | None) -> Any:
    if offload == "torchao":
        from torchao.optim import CPUOffloadOptimizer

        return CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-5, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def main() -> None:
    arguments = parser().parse_args()
    device = torch.device(arguments.device)
    if arguments.liger:
        use_liger()
    config = config_of(arguments.shape, arguments.layers)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if not arguments.no_checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    forward = torch.compile(model) if arguments.compile else model
    optimizer = optimizer_of(model, arguments.offload)
    seconds, count = [], arguments.micro_batches
    for step in range(arguments.steps):
        settle(device)
        began = time.perf_counter()
        for number in range(count):
            ids = random_tokens(arguments.shape, arguments.sequence * arguments.batch, step * count + number)
            ids = ids.view(arguments.batch, -1).to(device)
            (forward(input_ids=ids, labels=ids).loss / count).backward()
        if arguments.offload is None:  # torchao's has sent gradients away by then
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        settle(device)
        seconds.append(time.perf_counter() - began)
    tokens = arguments.sequence * arguments.batch * count
    print(json.dumps({"seconds": seconds, "device_peak": device_peak(device), "tokens": tokens}))


if __name__ == "__main__":
    with refuses():
        main()
