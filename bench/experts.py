"""Steps of a mixture of experts with fewer layers: adapters over NF4, or with `--full` every weight with int8 states.

    experts.py [--shape 30b-a3b|olmoe] [--full] [--device cuda:0] [--layers 4] [--tokens 512 2048]
               [--micro-batches 1] [--steps 4] [--storage DIR] [--dram-budget BYTES] [--gpu-memory BYTES]
               [--draw-all] [--expert-loading on_demand]

Rows that the results lack:

    experts.py --layers 4 --tokens 2048 --storage DIR
    experts.py --layers 4 --tokens 64 --storage DIR --dram-budget 4GiB --steps 40 --expert-loading on_demand
    experts.py --shape olmoe --full --layers 2 --tokens 512 --storage DIR --dram-budget 4GiB

The shapes are those of Qwen3-30B-A3B and OLMoE-1B-7B. A row has the seconds of each step, the losses, the planned
bytes and the peak of the process, and names the machine. The base lies in DRAM, or with `--storage` on that path. The
weights are random, and the values of one layer are those of all. With `--draw-all` each layer has its own, and the
process holds no copy of one: its peak is that of a run. `--dram-budget` draws all layers, too, since the plan has no
room for that copy, and puts the run into a cgroup that allows 2 % more, where one can be made. A row replaces an
earlier one of the same machine and options in bench/results/experts.json.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import budget
from figures import RESULTS, processor, save

from spillway.config.values import parse_size
from spillway.demo.memory_limit import MemoryLimit, Unavailable

NAME = "experts"
ADAPTERS = {"method": "lora", "lora_r": "16", "lora_target_modules": "all-linear", "load_in_4bit": "true"}
FULL = {"state_format": "int8"}
HERE = Path(__file__).parent


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("30b-a3b", "olmoe"), default="30b-a3b")
    parser.add_argument("--full", action="store_true", help="train every weight")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048], help="of a micro-batch, which is one row")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--draw-all", action="store_true")
    for name in ("dram-budget", "gpu-memory", "profile", "expert-loading"):
        parser.add_argument(f"--{name}")
    return parser


def command(arguments: argparse.Namespace, tokens: int, micro_batches: int) -> list[str]:
    options = {"shape": arguments.shape, "layers": arguments.layers, "sequence": tokens, "steps": arguments.steps,
               "micro-batches": micro_batches, "device": arguments.device}  # fmt: skip
    options |= {name: getattr(arguments, name.replace("-", "_")) for name in ("dram-budget", "gpu-memory", "profile")}
    if arguments.storage:
        options |= {"placement": "path", "storage": arguments.storage, "durability": "none"}
    words = [word for name, value in options.items() if value for word in (f"--{name}", str(value))]
    loading = {"expert_loading": arguments.expert_loading} if arguments.expert_loading else {}
    keys = (FULL if arguments.full else ADAPTERS) | loading
    words += [word for name, value in keys.items() for word in ("--set", f"{name}={value}")]
    words += [] if arguments.draw_all or arguments.dram_budget else ["--repeat-layers"]
    return [sys.executable, str(HERE / "engine_run.py"), *words]


def device_name(device: str) -> str:
    """The name of a GPU; of others the word."""
    if not device.startswith("cuda"):
        return device
    import torch

    return torch.cuda.get_device_name(device)


@contextlib.contextmanager
def limited(dram_budget: str | None, group_bytes: dict[str, int]) -> Iterator[Callable[[], None] | None]:
    """Puts a process into a cgroup, when called in it; None: there is none. Afterwards `group_bytes` has the limit, and
    the most that the group held."""
    if dram_budget is None:
        yield None
        return
    limit = int(parse_size(dram_budget) * budget.OVER)
    try:
        group = MemoryLimit(limit)
    except Unavailable as reason:
        print(f"without a memory limit: {reason}", file=sys.stderr)
        yield None
        return
    try:
        with budget.Watch(group.group) as watch:
            yield group.enter
        group_bytes |= {"limit": limit, "anonymous": watch.anonymous, "kernel": watch.kernel, "killed": group.killed()}
    finally:
        group.close()


def measure(arguments: argparse.Namespace, tokens: int, micro_batches: int) -> dict[str, Any]:
    group_bytes: dict[str, int] = {}
    with limited(arguments.dram_budget, group_bytes) as enter:
        ran = subprocess.run(
            command(arguments, tokens, micro_batches), capture_output=True, text=True, check=False, preexec_fn=enter
        )
    group = {"group": group_bytes} if group_bytes else {}
    if ran.returncode:
        return {"exit": ran.returncode, "told": ran.stderr[-500:]} | group
    measured = json.loads(ran.stdout.splitlines()[-1])
    plan = measured["plan"]
    return group | {
        "exit": 0,
        "seconds": measured["seconds"],
        "losses": measured["losses"],
        "peak_bytes": measured["peak_bytes"],
        "experts_met": measured["measured"].get("experts_met"),
        "link_bytes": measured["link_bytes"],
        "path_bytes": measured["path_bytes"],
        "predicted_seconds": plan["predicted_step_seconds"],
        "tiers": {tier["name"]: tier["planned_peak"] for tier in plan["tiers"]},
        "bytes": [row for row in plan["bytes"] if row["bytes"]],
        "path_bytes_per_step": plan.get("path_bytes_per_step", {}),
    }


def main() -> None:
    arguments = parser().parse_args()
    file = RESULTS / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []
    for tokens, micro_batches in itertools.product(arguments.tokens, arguments.micro_batches):
        key = {
            "machine": processor() | {"device": device_name(arguments.device)},
            "shape": arguments.shape,
            "keys": FULL if arguments.full else ADAPTERS,
            "layers": arguments.layers,
            "tokens": tokens,
            "micro_batches": micro_batches,
            "base": "path" if arguments.storage else "dram",
            "dram_budget": arguments.dram_budget,
            "expert_loading": arguments.expert_loading,
        }
        row = key | measure(arguments, tokens, micro_batches)
        print(json.dumps(row), flush=True)
        rows = [each for each in rows if {name: each.get(name) for name in key} != key] + [row]
        save(NAME, {"runs": rows})


if __name__ == "__main__":
    main()
