"""Losses of layers that multiply in fp32 over bf16 weights, and in bf16, beside plain PyTorch with fp32 weights.

    compute_dtype_loss.py [--shape tiny] [--layers 2] [--sequence 64] [--steps 30] [--seeds 3] [--rate 1e-3]

Every side begins with the same fp32 weights, drawn from the seed: `plain` has them as they are, with torch.optim.AdamW;
the engine keeps them as bf16 with 16 bits beside it, which is the same fp32 master. The tokens are bytes of this
repository's pages, in order. A side's distance is the mean over the steps of its loss's relative difference from
`plain`. Results are of the seeds, whatever the machine but for rounding; they go to
bench/results/compute-dtype-loss.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from compute_dtype import model_config
from equality_plain import train_fp32
from figures import processor

from spillway.config import resolve
from spillway.model.batches.batch import Batch, WorkShape
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "compute-dtype-loss.json"
SIDES = ("bf16", "fp32")
DECAY, MAX_NORM = 0.1, 1.0
Steps = list[tuple[list[Batch], float]]


def text() -> torch.Tensor:
    pages = sorted((HERE.parent / "docs" / "how-to").glob("*.md"))
    return torch.tensor(list(b"".join(page.read_bytes() for page in pages)), dtype=torch.int64)


def steps_of(arguments: argparse.Namespace, seed: int) -> Steps:
    tokens, length = text(), arguments.sequence
    steps: Steps = []
    for step in range(arguments.steps):
        first = (seed * arguments.steps + step) * length % (tokens.numel() - length)
        ids = tokens[first : first + length].view(1, -1)
        rate = arguments.rate * min((step + 1) / 5, 1 - step / arguments.steps)
        steps.append(([Batch(ids, ids, None, length)], rate))
    return steps


def engine(arguments: argparse.Namespace, model: Path, steps: Steps, computes: str) -> list[float]:
    keys = {
        "model": str(model), "output_dir": f"{model}-run", "weight_dtype": "bf16", "compute_dtype": computes,
        "durability": "none", "placement": "dram", "weight_decay": DECAY, "max_grad_norm": MAX_NORM,
    }  # fmt: skip
    session = EngineSession(resolve({}, keys), WorkShape(1, 1, arguments.sequence, 0, 0))
    try:
        session.start(StartPoint())
        results = [session.step(batches, rate) for batches, rate in steps]
    finally:
        session.close()
    return [result.loss_sum / result.label_tokens for result in results]


def one(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    steps = steps_of(arguments, seed)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        torch.manual_seed(seed)
        config = model_config(arguments.shape, arguments.layers)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(model)
        plain = train_fp32(model, steps, DECAY, MAX_NORM)
        curves = {side: engine(arguments, model, steps, side) for side in SIDES}
    return {"plain": plain} | curves | {"distance": {side: distance(curves[side], plain) for side in SIDES}}


def distance(losses: list[float], plain: list[float]) -> float:
    return sum(abs(ours / theirs - 1) for ours, theirs in zip(losses, plain, strict=True)) / len(plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    found = []
    for seed in range(arguments.seeds):
        found.append(one(arguments, seed))
        print(seed, found[-1]["distance"], f"last loss {found[-1]['plain'][-1]:.3f}", flush=True)
        facts = {"machine": processor(), "load": os.getloadavg()[0], "settings": vars(arguments)}
        RESULTS.write_text(json.dumps(facts | {"seeds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
