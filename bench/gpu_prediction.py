"""Plans of described GPUs beside the steps that were measured on such GPUs; writes bench/results/gpu-prediction.json.

gpu_prediction.py [--profile h200]

The recorded steps are those of bench/results/gpu-nvidia-h200.json, of a tree that computed each micro-batch by itself
in tiles of 2^34 / hidden^2 tokens, and the head for each micro-batch. The plans are made for such a step: without
shared passes, in these tiles, without a joined head.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from typing import Any
from unittest import mock

from figures import RESULTS, processor
from shapes import config_of

from spillway.cli import main as run_command

RECORDED = {"0.5b": "all", "1.5b": "all 1.5b"}  # entries of `steps` of the newest tree there
HIDDEN = {"0.5b": 896, "1.5b": 1536}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200")
    arguments = parser.parse_args()
    recorded = json.loads((RESULTS / "gpu-nvidia-h200.json").read_text())["steps"]
    rows = [compare(shape, recorded[entry], arguments.profile) for shape, entry in RECORDED.items()]
    for row in rows:
        print(f"{row['shape']}: measured {row['measured']:.3f} s, planned {row['planned']:.3f} s ({row['error']:+.1%})")
    content = {"profile": arguments.profile, "planned_on": processor()["processor"], "rows": rows}
    (RESULTS / "gpu-prediction.json").write_text(json.dumps(content, indent=1) + "\n")


def compare(shape: str, recorded: dict[str, Any], profile: str) -> dict[str, Any]:
    plan = plan_recorded(shape, recorded, profile)
    measured = statistics.median(recorded["counted"])
    planned = plan["predicted_step_seconds"]
    return {
        "shape": shape,
        "tokens": recorded["rows"] * recorded["sequence"] * recorded["micro_batches"],
        "measured": measured,
        "least": min(recorded["counted"]),
        "most": max(recorded["counted"]),
        "planned": planned,
        "planned_there": recorded["predicted_seconds"],  # by a dry run of a layer on that machine
        "bottleneck": plan["bottleneck"],
        "error": planned / measured - 1,
    }


def plan_recorded(shape: str, recorded: dict[str, Any], profile: str) -> dict[str, Any]:
    """The plan of a recorded step on the machine that the profile describes."""
    with tempfile.TemporaryDirectory() as directory:
        config_of(shape).save_pretrained(directory)
        words = {
            "model": directory,
            "profile": profile,
            "max_length": recorded["sequence"],
            "per_device_train_batch_size": recorded["rows"],
            "gradient_accumulation_steps": recorded["micro_batches"],
            "gpu_memory": recorded["gpu_memory"],
            "pass_tokens": 0,
            "fused_kernels": "never",
            "token_tile": 2**34 // HIDDEN[shape] ** 2,
        }
        given = [str(word) for key, value in words.items() for word in (f"--{key}", value)]
        shown = io.StringIO()
        with mock.patch("spillway.model.spec.TOKENS_ON_GPU", None), contextlib.redirect_stdout(shown):
            code = run_command(["plan", *given, "--json"])
        if code != 0:
            raise SystemExit(f"the plan of {shape} ends with exit code {code}")
    return dict(json.loads(shown.getvalue()))


if __name__ == "__main__":
    main()
