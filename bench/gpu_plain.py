"""The same step of plain PyTorch with weights, gradients and states on the GPU: gpu_plain.py SHAPE SEQUENCE BATCH
MICRO_BATCHES DEVICE. Prints one JSON line; exit code 3 where it does not fit. DEVICE cpu is for a dry run.

Weights bf16, layers recomputed, torch.optim.AdamW(fused=True) with states of the weights' type: less work than the
engine's update of fp32 masters, so it is a ceiling.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from shapes import config_of, random_tokens, refuses
from transformers import AutoModelForCausalLM


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    shape, device = sys.argv[1], torch.device(sys.argv[5])
    sequence, batch, micro_batches = map(int, sys.argv[2:5])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16, attn_implementation="sdpa")
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seconds = []
    for step in range(3):
        settle(device)
        began = time.perf_counter()
        for number in range(micro_batches):
            ids = random_tokens(shape, sequence * batch, step * micro_batches + number).view(batch, -1).to(device)
            (model(input_ids=ids, labels=ids).loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle(device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    print(json.dumps({"seconds": seconds, "device_peak": peak}))


if __name__ == "__main__":
    with refuses():
        main()
