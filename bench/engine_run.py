"""A few steps of the engine on a model of a real shape; prints one JSON line.

engine_run.py --shape 0.5b --sequence 1024 --steps 4 [--layers N]
              [--placement path --storage DIR --dram-budget BYTES] [--method lsp] [--device simulated --profile FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from shapes import config_of, peak_watch, random_tokens

from spillway.arguments import parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--placement", default="dram")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--dram-budget")
    for name in ("method", "device", "gpu-memory", "profile", "durability"):
        parser.add_argument(f"--{name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, peak_watch() as watch:
        found = run(arguments, Path(directory))
    print(json.dumps(found | {"peak_bytes": watch.bytes}))


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    from spillway.protocol import Batch, Opening, WorkShape
    from spillway.session import Session

    config_of(arguments.shape, arguments.layers).save_pretrained(directory)
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", arguments.placement, "--learning_rate", "1e-5", "--overwrite"]  # fmt: skip
    if arguments.storage:
        words += ["--storage", str(arguments.storage)]
    if arguments.dram_budget:
        words += ["--dram_budget", arguments.dram_budget]
    for name in ("method", "device", "gpu_memory", "profile", "durability"):
        if value := getattr(arguments, name):
            words += [f"--{name}", value]
    session = Session(parse(words).config(), WorkShape(1, 1, arguments.sequence, 0, 0))
    session.start(Opening())
    seconds, loss = [], 0.0
    for step in range(arguments.steps):
        ids = random_tokens(arguments.shape, arguments.sequence, step)
        result = session.step([Batch(ids, ids, None, arguments.sequence)], 1e-5)
        seconds.append(result.seconds)
        loss = result.loss_sum / result.label_tokens
    measured = session.measured()
    session.close()
    return {"seconds": seconds, "loss": loss, "plan": session.plan, "measured": measured}


if __name__ == "__main__":
    main()
