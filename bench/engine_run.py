"""A few steps of the engine on a model of a real shape; prints one JSON line. Exit code 3: it does not fit.

engine_run.py --shape 0.5b --sequence 1024 --steps 4 [--layers N]
              [--placement path --storage DIR --dram-budget BYTES] [--method lsp] [--profile FILE] [--durability none]
              [--device cuda:0 --gpu-memory BYTES] [--batch N] [--micro-batches N] [--compute-dtype fp32]
              [--learning-rate R] [--timelines DIR] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from shapes import config_of, peak_watch, random_tokens

from spillway.cli.arguments import parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--placement", default="dram")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--dram-budget")
    for name in ("method", "device", "gpu-memory", "profile", "durability", "compute-dtype"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--set", action="append", default=[], help="any other key, as KEY=VALUE")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--timelines", type=Path, help="where every step's goes, as STEP.json.gz")
    parser.add_argument("--batch", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=1)
    arguments = parser.parse_args()
    from spillway.errors import DoesNotFit

    try:
        with tempfile.TemporaryDirectory() as directory, peak_watch() as watch:
            found = run(arguments, Path(directory))
    except DoesNotFit as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.exit_code)
    print(json.dumps(found | {"peak_bytes": watch.bytes}))


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    from spillway.model.batch import Batch, WorkShape
    from spillway.run.protocol import StartPoint
    from spillway.run.session import EngineSession

    config_of(arguments.shape, arguments.layers).save_pretrained(directory)
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", arguments.placement, "--learning_rate", str(arguments.learning_rate),
             "--overwrite"]  # fmt: skip
    if arguments.storage:
        words += ["--storage", str(arguments.storage)]
    if arguments.dram_budget:
        words += ["--dram_budget", arguments.dram_budget]
    for name in ("method", "device", "gpu_memory", "profile", "durability", "compute_dtype"):
        if value := getattr(arguments, name):
            words += [f"--{name}", value]
    for each in arguments.set:
        name, _, value = each.partition("=")
        words += [f"--{name}", value]
    shape = WorkShape(arguments.micro_batches, arguments.batch, arguments.sequence, 0, 0)
    session = EngineSession(parse(words).config(), shape)
    session.start(StartPoint())
    seconds, losses, norms, stalls = [], [], [], []
    count = arguments.batch * arguments.sequence
    for step in range(arguments.steps):
        batches = []
        for number in range(arguments.micro_batches):
            ids = random_tokens(arguments.shape, count, step * arguments.micro_batches + number)
            batches.append(Batch(*[ids.view(arguments.batch, -1)] * 2, None, count))
        before = stalled(session)
        result = session.step(batches, arguments.learning_rate)
        seconds.append(result.seconds)
        if arguments.timelines and step > 0:  # of the newest step that has wholly ended
            session.write_timeline(arguments.timelines / f"{step}.json.gz")
        losses.append(result.loss_sum / result.label_tokens)
        norms.append(result.grad_norm)
        stalls.append({cause: value - before.get(cause, 0.0) for cause, value in stalled(session).items()})
    measured = session.measured()
    session.close()
    return {
        "seconds": seconds,
        "loss": losses[-1],
        "losses": losses,
        "grad_norms": norms,
        "stalls": stalls,
        "link_bytes": result.link_bytes,
        "tokens": count * arguments.micro_batches,
        "plan": session.plan,
        "measured": measured,
    }


def stalled(session: Any) -> dict[str, float]:
    """Seconds that compute has waited so far, by cause."""
    return dict(session.measured()["stall_seconds"])


if __name__ == "__main__":
    main()
