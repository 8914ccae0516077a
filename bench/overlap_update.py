"""What the update adds to a step: measured where the same cores compute it, simulated where it has cores of its own.

    overlap_update.py measure [--shape 0.5b] [--sequence 1024] [--rounds 2] [--steps 9] [--no-early]
    overlap_update.py simulate [--rate 3.2e11] [--update-rate 8e8]

`measure`: everything in DRAM, no clipping. Every other step gets a gradient that is not finite, so that it is skipped
and the step after it has no update behind it: steps with and without alternate in one process. Then the same with
updates during backward, in a process of its own. The goal is at most 5 %.

`simulate`: the plan's own simulation for the 0.5B and 1.5B shapes, on a device as fast as this machine's cores and on
faster ones, with the update on none, 4 and 16 cores of its own; deferred, during backward, and as the planner chooses.
Printed is what a step takes beyond the longer of compute and update. Results go to bench/results/overlap-update-*.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes import config_of, random_tokens

from spillway._engine import BlockSpec, Description
from spillway.cli.arguments import parse

if TYPE_CHECKING:
    from spillway._engine import EngineSettings, PassSeconds

HERE = Path(__file__).parent
GOAL = 0.05
SHAPES = ("0.5b", "1.5b")
FASTER = (1, 30, 300)  # than this machine's cores
UPDATE_CORES = (0, 4, 16)
SCHEDULES = ("deferred", "early", "auto")


def spoiling(spoiled: list[bool]) -> Any:
    """The engine; while `spoiled` ends with true, every gradient of a step's first pass is not a number."""
    from spillway._engine import Engine

    class Spoiling(Engine):
        def gradient(self, tensor: int, values: Any, micro_batch: int) -> None:
            if spoiled[-1]:
                values.fill_(float("nan"))
                spoiled[-1] = False
            super().gradient(tensor, values, micro_batch)

    return Spoiling


def child(arguments: argparse.Namespace) -> None:
    """Steps of one schedule; prints one JSON line."""
    from spillway.model.batches.batch import Batch, WorkShape
    from spillway.run.protocol import StartPoint
    from spillway.run.session import EngineSession

    spoiled = [False]
    with tempfile.TemporaryDirectory() as directory:
        config_of(arguments.shape, arguments.layers).save_pretrained(directory)
        words = ["--model", directory, "--init", "random", "--dataset", "none", "--output_dir", f"{directory}/run",
                 "--placement", "dram", "--max_grad_norm", "0", "--update_schedule", arguments.child]  # fmt: skip
        shape = WorkShape(1, 1, arguments.sequence, 0, 0)
        session = EngineSession(parse(words).config(), shape, spoiling(spoiled))
        session.start(StartPoint())
        seconds: dict[str, list[float]] = {"with": [], "without": []}
        pending, early = False, arguments.child == "early"
        for step in range(arguments.steps):
            ids = random_tokens(arguments.shape, arguments.sequence, step)
            spoiled[-1] = not early and step % 2 == 0
            result = session.step([Batch(ids, ids, None, arguments.sequence)], 1e-5)
            if step > 0:  # the first one touches memory for the first time
                seconds["with" if pending or early else "without"].append(result.seconds)
            pending = not result.skipped
        measured = session.measured()
        session.close()
    print(json.dumps({"seconds": seconds, "plan": session.plan, "measured": measured}))


def run(arguments: argparse.Namespace, schedule: str) -> dict[str, Any]:
    words = ["measure", "--child", schedule, "--shape", arguments.shape, "--sequence", str(arguments.sequence),
             "--steps", str(arguments.steps)]  # fmt: skip
    words += ["--layers", str(arguments.layers)] if arguments.layers else []
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rounds = []
    for _ in range(arguments.rounds):
        deferred = run(arguments, "deferred")
        without = statistics.median(deferred["seconds"]["without"])
        found = {"without": without, "deferred": statistics.median(deferred["seconds"]["with"]), "runs": [deferred]}
        if arguments.early:
            early = run(arguments, "early")
            found |= {"early": statistics.median(early["seconds"]["with"]), "runs": [deferred, early]}
        for schedule in ("deferred", "early"):
            if schedule in found:
                found[f"{schedule}_adds"] = found[schedule] / without - 1
                say(schedule, found[schedule], found[f"{schedule}_adds"], without)
        rounds.append(found)
    median = statistics.median(it["deferred_adds"] for it in rounds)
    reached = "reached" if median <= GOAL else "missed"
    goal = f"goal: at most {100 * GOAL:.0f} %, {reached}"
    print(f"deferred, median of {len(rounds)} rounds: {100 * median:+.1f} % ({goal})")
    return rounds


def say(schedule: str, seconds: float, added: float, without: float) -> None:
    print(f"{schedule:8} {seconds:7.3f} s a step, {without:.3f} s without updates: {100 * added:+.1f} %", flush=True)


def description(shape: str, sequence: int) -> Description:
    import torch

    from spillway.model.meta.building import build
    from spillway.model.meta.describe import WorkSize, describe

    return describe(build(config_of(shape), torch.bfloat16), WorkSize(1, sequence), "bf16")


def pass_seconds(described: Description, sequence: int, rate: float) -> PassSeconds:
    """By floating-point operations: two for every weight and token, twice that for gradients, recomputed layers."""
    layers = [b for b in described.blocks if b.role.name == "layer"][:-1]  # the last is the final norm
    one = sum(rows * columns for rows, columns in matrices(layers[0])) * sequence * 2 / rate
    rows, columns = described.blocks[0].tensors[0].shape
    slices = -(-rows * columns // (4 << 20))
    head = rows * columns * sequence * 2 / rate / slices
    from spillway._engine import PassSeconds

    return PassSeconds(
        forward=one, backward=3 * one, tail_forward=1e-6, tail_backward=1e-6, head_loss=head, head_gradient=3 * head
    )


def matrices(block: BlockSpec) -> list[tuple[int, int]]:
    return [tuple(tensor.shape) for tensor in block.tensors if len(tensor.shape) == 2]  # type: ignore[misc]


def simulate(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from spillway._engine import Engine
    from spillway.base.documents import make_document

    found = []
    for shape in SHAPES:
        described = description(shape, arguments.sequence)
        for faster in FASTER:
            for cores in UPDATE_CORES:
                row: dict[str, Any] = {"shape": shape, "faster": faster, "update_cores": cores}
                for schedule in SCHEDULES:
                    settings = settings_of(arguments, cores, schedule)
                    settings.seconds = pass_seconds(described, arguments.sequence, arguments.rate * faster)
                    plan = make_document(Engine(described, settings).plan())
                    row[schedule] = added(plan, cores)
                found.append(row)
                tell(row)
    return found


def settings_of(arguments: argparse.Namespace, cores: int, schedule: str) -> EngineSettings:
    from spillway._engine import EngineSettings, Profile

    profile = Profile(
        cores=2 + cores, dram_total=1 << 40, dram_available=1 << 40, update_elements_per_second=arguments.update_rate,
        copy_bytes_per_second=1e10,
    )  # fmt: skip
    return EngineSettings(
        dram_budget=1 << 40, profile=profile, update_cores=cores, update_schedule=schedule, clipping=False
    )


def added(plan: dict[str, Any], cores: int) -> dict[str, float]:
    """The step beside the longer of what must be done; on shared cores that is compute."""
    seconds, step = plan["seconds"], plan["predicted_step_seconds"]
    update = seconds["update"] / cores if cores else 0.0
    longest = max(seconds["compute"], update)
    return {"step": step, "compute": seconds["compute"], "update": update, "adds": step / longest - 1,
            "undo_bytes": plan["updates"]["undo_bytes"]}  # fmt: skip


def tell(row: dict[str, Any]) -> None:
    where = f"{row['update_cores']} cores of its own" if row["update_cores"] else "the same cores"
    parts = [f"{name} {row[name]['step']:8.4f} s ({100 * row[name]['adds']:+.1f} %)" for name in SCHEDULES]
    compute, update = row["deferred"]["compute"], row["deferred"]["update"]
    work = f"compute {compute:.3f} s" + (f", update {update:.3f} s" if update else "")
    speed = f"{row['shape']}, {row['faster']:3} times as fast"
    print(f"{speed}, update on {where:20} {work}: {', '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("measure", "simulate"))
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--early", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rate", type=float, default=3.2e11, help="floating-point operations a second")
    parser.add_argument("--update-rate", type=float, default=8e8, help="elements a second and core")
    parser.add_argument("--child", choices=("deferred", "early"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    measuring = arguments.question == "measure"
    found = measure(arguments) if measuring else simulate(arguments)
    name = f"overlap-update-{arguments.shape if measuring else 'simulated'}.json"
    (HERE / "results" / name).write_text(json.dumps(found, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
