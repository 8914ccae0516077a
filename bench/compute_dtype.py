"""What `compute_dtype: auto` is worth on a processor: steps over bf16 weights in bf16, in fp32, and by PyTorch.

    compute_dtype.py [--shape 0.5b] [--layers 2] [--sequence 128] [--rounds 3] [--steps 3] [--storage DIR]
                     [--processors N]

In every round each side runs in a process of its own, in turn: `bf16` and `fp32` by the engine (weights, states and
gradients on a path with --storage), `plain` PyTorch in fp32 with gradient checkpointing. The figure of a side is the
median over its steps but the first; what is said of two sides is the median over rounds of their ratio, so that a busy
machine is in both; on a busy one --processors 1 keeps threads from waiting for each other. Shapes are those of
shapes.py, and `11m`: 320 / 896 wide, 8 layers, 4096 tokens. Results go to bench/results/compute-dtype.json, where those
of other shapes stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import processor
from shapes import config_of

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "compute-dtype.json"
SIDES = ("bf16", "fp32", "plain")


def model_config(shape: str, layers: int | None) -> Any:
    if shape != "11m":
        return config_of(shape, layers)
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=320, intermediate_size=896, num_hidden_layers=layers or 8, num_attention_heads=5,
        num_key_value_heads=5, vocab_size=4096, tie_word_embeddings=True, use_cache=False,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def ids_of(config: Any, sequence: int, step: int) -> Any:
    import torch

    return torch.randint(0, config.vocab_size, (1, sequence), generator=torch.Generator().manual_seed(step))


def engine(arguments: argparse.Namespace) -> dict[str, Any]:
    from spillway.config import resolve
    from spillway.protocol import Batch, Opening, WorkShape
    from spillway.session import Session

    config = model_config(arguments.shape, arguments.layers)
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        keys: dict[str, Any] = {
            "model": directory, "init": "random", "output_dir": f"{directory}/run", "weight_dtype": "bf16",
            "compute_dtype": arguments.side, "durability": "none", "placement": "dram",
        }  # fmt: skip
        if arguments.storage:
            keys |= {"storage": [str(arguments.storage)], "placement": "weight=path,state=path,grad=path"}
        session = Session(resolve({}, keys), WorkShape(1, 1, arguments.sequence, 0, 0))
        session.start(Opening())
        results = []
        for step in range(arguments.steps):
            ids = ids_of(config, arguments.sequence, step)
            results.append(session.step([Batch(ids, ids, None, ids.numel())], 1e-5))
        peak = session.measured()["process_peak"]
        found = {
            "seconds": [it.seconds for it in results], "loss": results[-1].loss_sum / results[-1].label_tokens,
            "path_bytes": results[-1].path_bytes, "peak_bytes": peak,
            "planned_peak": session.plan["tiers"][0]["planned_peak"],
            "predicted": session.plan["predicted_step_seconds"], "parameters": session.plan["parameters"],
        }  # fmt: skip
        session.close()
    return found


def plain(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    config = model_config(arguments.shape, arguments.layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seconds = []
    for step in range(arguments.steps):
        ids = ids_of(config, arguments.sequence, step)
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds}


def measured(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--side", side], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found | {"median": statistics.median(found["seconds"][1:]), "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--processors", type=int, help="that each side may use; default: all")
    parser.add_argument("--side", choices=SIDES, help="of one process; for the program itself")
    arguments = parser.parse_args()
    if arguments.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.processors])
    if arguments.side:
        print(json.dumps(plain(arguments) if arguments.side == "plain" else engine(arguments)))
        return
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append({side: measured(arguments, side) for side in SIDES})
        print(" ".join(f"{side} {rounds[-1][side]['median']:.2f} s" for side in SIDES), flush=True)
    ratios = {
        f"{over} over {under}": statistics.median(it[over]["median"] / it[under]["median"] for it in rounds)
        for over, under in (("bf16", "fp32"), ("fp32", "plain"))
    }
    print(ratios)
    place = "path" if arguments.storage else "dram"
    name = f"{arguments.shape}, {arguments.layers or 'all'} layers, sequence {arguments.sequence}, {place}"
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    facts = {"machine": processor(), "processors": len(os.sched_getaffinity(0))}
    known[name] = facts | {"ratios": ratios, "rounds": rounds}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
