"""What `compute_dtype: auto` is worth on a CPU: steps over bf16 weights in bf16, in fp32, and by PyTorch.

    compute_dtype.py [--shape 0.5b] [--layers 2] [--sequence 128] [--rounds 3] [--steps 3] [--storage DIR]
                     [--processors N] [--sides fp32 plain] [--together]

In every round each side runs in a process of its own, in turn: `bf16` and `fp32` by the engine (weights, states and
gradients on a path with --storage), `plain` PyTorch in fp32 with gradient checkpointing. The figure of a side is the
median over its steps but the first; what is said of two sides is the median over rounds of their ratio, so that a busy
machine is in both; on a busy one --processors 1 keeps threads from waiting for each other, and --together runs the
sides of a round at once, each on one CPU, so that both have the same neighbours. Beside the time that passed
stands what a step takes of CPUs, which neighbours change little. Shapes are those of shapes.py, and `11m`: 320 /
896 wide, 8 layers, 4096 tokens. Results go to bench/results/compute-dtype.json, where those of other shapes stay.
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
    from spillway.model.batches.batch import Batch, WorkShape
    from spillway.run.protocol import StartPoint
    from spillway.run.session import EngineSession

    config = model_config(arguments.shape, arguments.layers)
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        keys: dict[str, Any] = {
            "model": directory, "init": "random", "output_dir": f"{directory}/run", "weight_dtype": "bf16",
            "compute_dtype": arguments.side, "durability": "none", "placement": "dram",
        }  # fmt: skip
        if arguments.storage:
            keys |= {"storage": [str(arguments.storage)], "placement": "weight=path,state=path,grad=path"}
        session = EngineSession(resolve({}, keys), WorkShape(1, 1, arguments.sequence, 0, 0))
        session.start(StartPoint())
        results, used = [], []
        for step in range(arguments.steps):
            ids = ids_of(config, arguments.sequence, step)
            before = time.process_time()
            results.append(session.step([Batch(ids, ids, None, ids.numel())], 1e-5))
            used.append(time.process_time() - before)
        peak = session.measured()["process_peak"]
        found = {
            "seconds": [it.seconds for it in results], "processor_seconds": used,
            "loss": results[-1].loss_sum / results[-1].label_tokens,
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
    seconds, used = [], []
    for step in range(arguments.steps):
        ids = ids_of(config, arguments.sequence, step)
        began, before = time.perf_counter(), time.process_time()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        used.append(time.process_time() - before)
    return {"seconds": seconds, "processor_seconds": used}


def started(side: str, processor: int | None) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, *sys.argv[1:], "--side", side]
    pinned = [] if processor is None else ["taskset", "--cpu-list", str(processor)]
    return subprocess.Popen([*pinned, *words], stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    shown, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(shown.strip().splitlines()[-1])
    of_processors = statistics.median(found["processor_seconds"][1:])
    medians = {"median": statistics.median(found["seconds"][1:]), "processor_median": of_processors}
    return found | medians | {"load": os.getloadavg()[0]}


def one_round(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.together:
        return {side: ended(started(side, None)) for side in arguments.sides}
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < len(arguments.sides):
        raise SystemExit(f"--together takes a CPU for each side; there are {len(processors)}")
    at_once = {side: started(side, number) for side, number in zip(arguments.sides, processors, strict=False)}
    return {side: ended(process) for side, process in at_once.items()}


def ratios_of(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Of the time that passed, and of what was taken of CPUs."""
    pairs = [(over, under) for over, under in (("bf16", "fp32"), ("fp32", "plain")) if {over, under} <= set(rounds[0])]
    found = {}
    for over, under in pairs:
        for words, key in (("", "median"), (", of CPUs", "processor_median")):
            found[f"{over} over {under}{words}"] = statistics.median(it[over][key] / it[under][key] for it in rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--processors", type=int, help="that each side may use; default: all")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--together", action="store_true", help="the sides of a round at once, a CPU each")
    parser.add_argument("--side", choices=SIDES, help="of one process; for the program itself")
    arguments = parser.parse_args()
    if arguments.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.processors])
    if arguments.side:
        print(json.dumps(plain(arguments) if arguments.side == "plain" else engine(arguments)))
        return
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append(one_round(arguments))
        print(" ".join(f"{side} {rounds[-1][side]['median']:.2f} s" for side in arguments.sides), flush=True)
    ratios = ratios_of(rounds)
    print(ratios)
    place = "path" if arguments.storage else "dram"
    name = f"{arguments.shape}, {arguments.layers or 'all'} layers, sequence {arguments.sequence}, {place}"
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cores = 1 if arguments.together else len(os.sched_getaffinity(0))
    facts = {"machine": processor(), "processors": cores, "together": arguments.together}
    known[name] = facts | {"ratios": ratios, "rounds": rounds}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
