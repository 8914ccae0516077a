"""Whole training steps by method lsp beside method full, in turn: over a path of a known speed, and with a device whose
link has one.

    lsp_steps.py path --back DIR     everything on a path of 400 MB/s each way (throttled.py; needs root)
    lsp_steps.py link                a simulated device with a link of 10, and of 25 GB/s each way: 1 GiB, updates
                                     by the host; and 2 GiB, blocks that live there updated there at its speed
    lsp_steps.py refits              all in memory: each matrix learns every 20 steps, beside none but the first

126 M parameters (hidden 1024, eight layers), sequence 128, bf16, d = n/2, r = 4. A round runs each method once, in a
process of its own; the figure is the median over all its steps but the first, which learns the projectors. Results go
to bench/results/lsp-steps-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))
from throttled import throttled  # noqa: E402

ONCE = ("--set", "lsp_residual=none")  # projectors are learned once
AGAIN = ("--set", "activation_recompute=all")  # so that activations do not cross the link
METHODS = {
    "full": ("--method", "full"),
    "lsp": ("--method", "lsp", *ONCE),
    "lsp, bf16 masters": ("--method", "lsp", *ONCE, "--set", "lsp_master=bf16"),
}
SPEED = 400  # MB/s
LINKS = (10e9, 25e9)  # bytes per second
ROOM = 6 << 10  # MiB of the path
SEQUENCES, NONZEROS, ROTATION = (128,), (4, 16), 20


def run(steps: int, prefix: Sequence[str], *words: str) -> dict[str, Any]:
    command = [*prefix, sys.executable, str(BENCH / "engine_run.py"), "--shape", "wide", "--sequence", "128"]
    done = subprocess.run([*command, "--steps", str(steps), *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    plan = found["plan"]
    return {
        "seconds": found["seconds"],
        "median": statistics.median(found["seconds"][1:]),
        "loss": found["loss"],
        "peak_bytes": found["peak_bytes"],
        "predicted": plan["predicted_step_seconds"],
        "path_bytes": plan.get("path_bytes_per_step"),
        "device_bytes": plan.get("device_bytes_per_step"),
        "link_bytes": found["link_bytes"],  # of the last step, as measured
        "device_blocks": plan.get("device_blocks"),
        "decisions": plan.get("decisions"),
        "subspaces": plan.get("subspaces"),
    }


def over_a_path(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    with throttled([SPEED], mib=ROOM, back=arguments.back) as paths:
        for _ in range(arguments.rounds):
            for method in METHODS:
                where = ("--placement", "path", "--storage", str(paths.directories[0]))
                words = (*METHODS[method], *where)
                found[method].append(run(arguments.steps, paths.prefix, *words, "--durability", "none"))
    return {"megabytes_per_second": SPEED, **found}


def over_a_link(arguments: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for speed in LINKS:
            found: dict[str, list[dict[str, Any]]] = {}
            for _ in range(arguments.rounds):
                for there, memory in ((False, "1GiB"), (True, "2GiB")):
                    profile = Path(directory, "profile.json")
                    profile.write_text(json.dumps(machine(speed, there)), encoding="utf-8")
                    words = ("--device", "simulated", "--profile", str(profile), "--gpu-memory", memory)
                    for method, more in METHODS.items():
                        name = f"{method}, updated there" if there else method
                        measured = run(arguments.steps, (), *more, *AGAIN, *words)
                        found.setdefault(name, []).append(measured)
            out[f"{speed / 1e9:g} GB/s"] = found
    return out


def refits(arguments: argparse.Namespace) -> dict[str, Any]:
    """`share`: of a run's time, that learning projectors takes where each matrix learns anew every ROTATION steps."""
    out: dict[str, Any] = {}
    for sequence in SEQUENCES:
        for nonzeros in arguments.nonzeros:
            words = ("--method", "lsp", "--sequence", str(sequence), "--set", f"lsp_nonzeros={nonzeros}")
            never, rotating = ("--set", "lsp_residual=none"), ("--set", f"lsp_rotate_every={ROTATION}")
            found: dict[str, list[dict[str, Any]]] = {"never": [], "rotating": []}
            for _ in range(arguments.rounds):
                found["never"].append(run(arguments.steps, (), *words, *never))
                found["rotating"].append(run(ROTATION + 1, (), *words, *rotating))
            once, turning = (
                statistics.median(statistics.fmean(it["seconds"][1:]) for it in found[name]) for name in found
            )
            line = {"first": statistics.median(it["seconds"][0] for it in found["never"]), "never": once}
            line |= {"rotating": turning, "share": 1 - once / turning}
            out[f"{sequence} tokens, r = {nonzeros}"] = line
    return out


def machine(speed: float, updates: bool) -> dict[str, Any]:
    """As `spillway doctor --measure` would write it, with a link of this speed, and a GPU that updates as the host."""
    from spillway.machine.profile import profile

    found: dict[str, Any] = json.loads(profile(None).to_json())
    gpu = {"name": "link", "memory": 1 << 31, "flops_per_second": 1e12}
    gpu |= {"to_gpu_bytes_per_second": speed, "from_gpu_bytes_per_second": speed}
    gpu |= {"update_elements_per_second": found["update_elements_per_second_all_cores"]} if updates else {}
    return found | {"gpus": [gpu]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("path", "link", "refits"))
    parser.add_argument("--back", type=Path, help="directory on a disk for the path; memory without it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--nonzeros", type=int, nargs="+", default=NONZEROS, help="of refits")
    arguments = parser.parse_args()
    found = {"path": over_a_path, "link": over_a_link, "refits": refits}[arguments.what](arguments)
    target = BENCH / "results" / f"lsp-steps-{arguments.what}.json"
    if arguments.what == "refits" and target.exists():  # a line for each number of values; others stay
        found = json.loads(target.read_text(encoding="utf-8")) | found
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
