"""Steps of `spillway train` in several processes of one machine, each with its own GPU; prints one JSON line.

gpu_ranks.py --shape 1.5b --sequence 2048 --batch 4 --micro-batches 4 --processes 2 [--device cuda:0 | simulated]
             [--steps 8] [--gpu-memory BYTES] [--backend nccl] [--set KEY=VALUE ...]

Weights and tokens are random. `--micro-batches` counts those of all processes. Gradients are summed in
`--virtual-ranks` groups, so that any number of processes up to it has the same bits: `losses` and `grad_norms` of two
processes are equal to those of one. `link_bytes` has what the first process's GPU counted in the last step. With
`--device cuda:0` a process takes the GPU of its rank.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from network import model
from ranks import start_ranks, wait_ranks

HERE = Path(__file__).parent
PORT = 29549


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a step, over all processes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--virtual-ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gpu-memory")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--set", action="append", default=[], help="any other key, as KEY=VALUE")
    return parser


def count_gpus() -> int:
    words = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout)


def choose_words(arguments: argparse.Namespace, folder: Path) -> list[str]:
    device = "cuda" if arguments.device.startswith("cuda") else arguments.device
    words = ["--model", str(folder / "model"), "--tokenizer", str(folder / "tokenizer"), "--init", "random",
             "--dataset", str(folder / "text.txt"), "--packing", "--max_length", str(arguments.sequence),
             "--per_device_train_batch_size", str(arguments.batch), "--max_steps", str(arguments.steps),
             "--gradient_accumulation_steps", str(arguments.micro_batches), "--learning_rate", "1e-5",
             "--virtual_ranks", str(arguments.virtual_ranks), "--output_dir", str(folder / "out"),
             "--placement", "dram", "--save_only_model", "true", "--device", device]  # fmt: skip
    if arguments.gpu_memory:
        words += ["--gpu_memory", arguments.gpu_memory]
    if arguments.backend != "gloo":
        words += ["--ddp_backend", arguments.backend]
    for each in arguments.set:
        name, _, value = each.partition("=")
        words += [f"--{name}", value]
    return words


def read_rows(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "step_seconds" in row]


def summarise(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    rows = read_rows(out)
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    return {
        "seconds": [row["step_seconds"] for row in rows],
        "tokens": arguments.sequence * arguments.batch * arguments.micro_batches,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "link_bytes": rows[-1]["link_bytes"],
        "planned_link_bytes": plan["device_bytes_per_step"],
        "predicted_seconds": plan["predicted_step_seconds"],
        "bottleneck": plan["bottleneck"],
        "device_blocks": plan["device_blocks"],
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model(folder, arguments.shape, arguments.layers)
        words = [sys.executable, "-m", "spillway", "train", *choose_words(arguments, folder)]
        running = stack.enter_context(start_ranks(words, arguments.processes, folder, PORT))
        wait_ranks(running, folder)
        return summarise(arguments, folder / "out")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(words)
    if arguments.device.startswith("cuda") and (there := count_gpus()) < arguments.processes:
        raise SystemExit(f"gpu_ranks: {arguments.processes} processes need as many GPUs, and the machine has {there}")
    print(json.dumps(run(arguments)))


if __name__ == "__main__":
    main()
