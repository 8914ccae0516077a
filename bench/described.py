"""Does a plan for a profile that describes this machine say what a plan here says? In 20 settings, both side by side.

    described.py [--profile FILE] [--settings N[,N...]] [--out bench/results/described.json]

FILE: this machine's, by `spillway probe --storage DIR`; without it the machine is probed first. Here a layer is run and
measured; for the described machine its times and PyTorch's working set are derived from the profile's rates. Everything
else, rates of updates and paths among it, is the same profile's in both. A setting is a model's shape, a step, budgets,
and what computes; of each both plans' step times are compared, and of each field group the share of bytes that lies
outside of DRAM. GOAL: within 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import shapes

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "described.json"
GOAL = 0.05
CAPACITY = 200 * 2**30  # bytes of the path, in both
GIB = 2**30

# (shape, layers, rows, tokens of a row, micro-batches, keys)
EVERYTHING: dict[str, Any] = {}
TIGHT = {"dram_budget": "2.5GiB"}
PATH = {"placement": "path", "durability": "none"}
SETTINGS: list[tuple[str, int, int, int, int, dict[str, Any]]] = [
    ("wide", 8, 1, 256, 1, EVERYTHING),
    ("wide", 8, 1, 1024, 1, EVERYTHING),
    ("wide", 8, 4, 512, 2, EVERYTHING),
    ("wide", 8, 2, 1024, 1, {"compute_dtype": "bf16"}),
    ("wide", 8, 1, 512, 4, {"state_format": "int8"}),
    ("wide", 8, 1, 512, 1, {"optim": "lion", "state_format": "bf16"}),
    ("wide", 8, 1, 256, 1, PATH),
    ("wide", 8, 4, 512, 1, PATH),
    ("wide", 8, 1, 512, 1, {"device": "simulated", "gpu_memory": "400MiB"}),
    ("wide", 8, 2, 512, 2, {"device": "simulated", "gpu_memory": "1GiB"}),
    ("0.5b", 12, 1, 256, 1, TIGHT),
    ("0.5b", 12, 1, 1024, 1, TIGHT),
    ("0.5b", 12, 2, 512, 4, TIGHT),
    ("0.5b", 12, 1, 512, 1, {"placement": "weight=dram,state=path,grad=path,activation=dram"}),
    ("0.5b", 12, 1, 512, 1, {"method": "lsp", "lsp_rank": 256}),
    ("0.5b", 12, 1, 1024, 1, {"trainable": "mlp"}),
    ("0.5b", 12, 1, 512, 1, {"device": "simulated", "gpu_memory": "1GiB", "placement": "dram"}),
    ("0.5b", 12, 1, 512, 2, {"device": "simulated", "gpu_memory": "1GiB", **TIGHT}),
    ("1.5b", 4, 1, 256, 1, EVERYTHING),
    ("1.5b", 4, 1, 512, 2, PATH),
]


def configuration(number: int, directory: Path, storage: Path, profile: Path) -> Any:
    from spillway.cli.arguments import parse

    shape, layers, rows, tokens, micro_batches, keys = SETTINGS[number]
    model = directory / f"{shape}-{layers}"
    shapes.config_of(shape, layers).save_pretrained(model)
    words = {
        "model": model, "init": "random", "dataset": "none", "output_dir": directory / "run", "profile": profile,
        "per_device_train_batch_size": rows, "max_length": tokens, "gradient_accumulation_steps": micro_batches,
        "storage": f"{storage},capacity={CAPACITY}", "dram_budget": "8GiB", "compute_dtype": "fp32",
    }  # fmt: skip
    return parse([word for key, value in (words | keys).items() for word in (f"--{key}", str(value))]).config()


def here(config: Any) -> dict[str, Any]:
    from spillway.run.protocol import WorkShape
    from spillway.run.session import Session

    shape = WorkShape(config.gradient_accumulation_steps, config.per_device_train_batch_size, config.max_length, 0, 0)
    session = Session(config, shape, only_plan=True)
    try:
        return session.plan | {"settings": session.settings}
    finally:
        session.close()


def there(config: Any, text: str) -> dict[str, Any]:
    from spillway.run.machines import Asked, describe_model, settings_of

    description, widths = describe_model(config)
    asked = Asked(description, settings_of(config, widths, False), json.loads(text), "profile")
    engine, settings = asked.engine()
    return {**json.loads(engine.plan()), "settings": settings}


def outside(plan: dict[str, Any]) -> dict[str, float]:
    """Of each field group the share of its bytes that is on the device, and on the path."""
    from spillway.run.machines import shares

    found = shares(plan)
    return {f"{group} on {tier}": found[tier][group] for tier in ("device", "path") for group in found[tier]}


def compared(number: int, measured: dict[str, Any], derived: dict[str, Any]) -> dict[str, Any]:
    seconds = [plan["predicted_step_seconds"] for plan in (measured, derived)]
    lies = [outside(plan) for plan in (measured, derived)]
    apart = max(abs(lies[0][name] - lies[1][name]) for name in lies[0])
    passes = [plan["settings"]["seconds"] for plan in (measured, derived)]
    return {
        "number": number,
        "setting": SETTINGS[number],
        "step_seconds": seconds,
        "error": seconds[1] / seconds[0] - 1,
        "placement_apart": apart,
        "bottleneck": [plan["bottleneck"] for plan in (measured, derived)],
        "work_bytes": [plan["settings"]["work_bytes"] for plan in (measured, derived)],
        "compute_seconds": [plan["seconds"]["compute"] for plan in (measured, derived)],
        "passes": passes,
    }


def told(row: dict[str, Any]) -> str:
    ours, theirs = row["step_seconds"]
    setting = " ".join(map(str, row["setting"]))
    apart = f"{100 * row['error']:+6.1f} %, placement {100 * row['placement_apart']:4.1f} % apart"
    return f"{row['number']:2} {setting[:70]:70} here {ours:7.3f} s, described {theirs:7.3f} s, {apart}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--settings", default=",".join(map(str, range(len(SETTINGS)))))
    parser.add_argument("--storage", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        profile = arguments.profile or directory / "profile.json"
        if arguments.profile is None:
            from spillway.machine.probe import probe

            probe(profile, [str(arguments.storage)], print)
        text = json.dumps(json.loads(profile.read_text()) | {"machine": "this one, described"})
        for number in map(int, arguments.settings.split(",")):
            config = configuration(number, directory, arguments.storage, profile)
            rows.append(compared(number, here(config), there(config, text)))
            print(told(rows[-1]), flush=True)
    errors = [abs(row["error"]) for row in rows]
    alike = sum(row["placement_apart"] <= GOAL for row in rows)
    found = {
        "settings": len(rows),
        "within": sum(error <= GOAL for error in errors),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "placements_alike": alike,
    }
    print(json.dumps(found))
    arguments.out.write_text(json.dumps(found | {"profile": json.loads(text), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
