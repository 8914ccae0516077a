"""Does what the process holds grow with the model? The 1.5B shape with 7, 14 and 28 layers, everything on a path.

    layers.py DIRECTORY [--budget 1400MiB] [--sequence 1024] [--steps 3]

Prints planned and measured peak for each, under the same small budget. Results go to bench/results/layers.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LAYERS = (7, 14, 28)
MIB = 1 << 20


def run(arguments: argparse.Namespace, layers: int) -> dict[str, Any]:
    words = ["--shape", "1.5b", "--layers", str(layers), "--sequence", str(arguments.sequence),
             "--steps", str(arguments.steps), "--placement", "path", "--storage", str(arguments.directory),
             "--dram-budget", arguments.budget]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_run.py"), *words], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "layers": layers, "parameters": found["plan"]["parameters"], "measured_peak": found["peak_bytes"],
        "planned_peak": found["plan"]["tiers"][0]["planned_peak"], "loss": found["loss"], "seconds": found["seconds"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--budget", default="1400MiB")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    found = []
    for layers in LAYERS:
        found.append(run(arguments, layers))
        it = found[-1]
        peaks = [it[name] / MIB for name in ("planned_peak", "measured_peak")]
        size = it["parameters"] / 1e9
        print(
            f"{layers:2} layers, {size:.2f} G parameters: planned {peaks[0]:.0f}, measured {peaks[1]:.0f} MiB",
            flush=True,
        )
    (HERE / "results" / "layers.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
