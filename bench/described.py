"""Does a plan for a profile that describes this machine say what a plan here says? In 20 settings.

    described.py [--profile FILE] [--settings N[,N...]] [--sweeps N] [--samples FILE] [--out FILE]

--profile: this machine's, by `spillway probe --storage DIR`; without it the machine is probed first. Here a layer is
run and measured; for the described machine its times and PyTorch's working set follow from the profile's rates and the
model's shapes. Everything else, rates of updates and paths among it, is the same profile's in both. A setting is a
model's shape, a step, budgets, and what computes.

A machine that others use, too, drifts within a minute: of what is bound by memory, by half. So both sides are measured
again and again, each time in a process of its own, as by command, with the rates of the CPUs every EVERY settings of a
sweep; in the described machine's profile each rate is the median of all sweeps. Compared are the step's time with the
median of the plans here; of each field group the share of bytes that lies outside of DRAM, and the share of layers that
keep what autograd saves. GOAL: within 5 %. Beside them stands how many of the plans here, two by two of a setting, are
as near to each other. --samples: what was measured is kept there, and added to. --out: bench/results/described.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shapes

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "described.json"
GOAL = 0.05
EVERY = 7
ALONE = "--alone"  # of a process that makes one call
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
    ("0.5b", 12, 1, 512, 1, {"method": "lsp", "lsp_rank": 128}),
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


def here(number: str, *places: str) -> dict[str, Any]:
    """What a plan of `configuration` says in this process."""
    config = configuration(int(number), *map(Path, places))
    from spillway.run.protocol import WorkShape
    from spillway.run.session import EngineSession

    shape = WorkShape(config.gradient_accumulation_steps, config.per_device_train_batch_size, config.max_length, 0, 0)
    session = EngineSession(config, shape, only_plan=True)
    try:
        return outcome(session.plan | {"settings": session.settings})
    finally:
        session.close()


def there(config: Any, text: str) -> dict[str, Any]:
    from spillway.machine import auto
    from spillway.model.spec import model_spec, verified
    from spillway.run.machines import asked_of, traced

    config = auto.settled(config)
    found = verified(model_spec(config, only_plan=True))
    asked = asked_of(config, json.loads(text), found, traced(config, found, print), False)
    return {**json.loads(asked.engine().plan()), "settings": json.loads(asked.text())}


def rates_of_now(dtype: str) -> dict[str, Any]:
    from spillway.machine import compute_rates, process_memory

    process_memory.settle()
    return compute_rates.rates(dtype, compute_rates.TYPES[dtype])


def apart(call: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What the call returns in a process of its own, as a command is: in one that multiprocessing begins layers take up
    to a tenth longer."""
    words = [sys.executable, __file__, ALONE, call.__name__, *map(str, given)]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


def outside(plan: dict[str, Any]) -> dict[str, float]:
    """Of each field group the share of its bytes that is on the device, and on the path; of the layers those that keep
    what autograd saves."""
    from spillway.run.machines import shares

    found = shares(plan)
    lies = {f"{group} on {tier}": found[tier][group] for tier in ("device", "path") for group in found[tier]}
    keeping = len(plan.get("saved_activations", {}).get("blocks", []))
    return lies | {"layers that keep": keeping / max(1, plan["settings"]["saved_activations"]["layers"])}


def outcome(plan: dict[str, Any]) -> dict[str, Any]:
    return {
        "step_seconds": plan["predicted_step_seconds"],
        "outside": outside(plan),
        "bottleneck": plan["bottleneck"],
        "work_bytes": plan["settings"]["work_bytes"],
        "token_bytes": plan["settings"]["saved_activations"].get("token_bytes", 0),
        "compute_seconds": plan["seconds"]["compute"],
        "passes": plan["settings"]["seconds"],
    }


def pooled(samples: list[Any]) -> Any:
    """The median of each number. What a list has is found by all that is no rate; what some lack is left out."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: pooled([each[key] for each in samples]) for key in first}
    if not isinstance(first, list):
        return statistics.median(samples) if isinstance(first, float) else first
    named = [{name_of(entry): entry for entry in each} for each in samples]
    return [pooled([each[name] for each in named]) for name in named[0] if all(name in each for each in named)]


def name_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for key, value in entry.items() if not key.endswith("per_second"))


def sweep(settings: list[tuple[Any, ...]], keep: Callable[[str, dict[str, Any]], None]) -> None:
    """Each setting once; `keep` is given what was measured, a plan by the setting's number, rates by their type."""
    for place, given in enumerate(settings):
        dtype = configuration(*given).compute_dtype
        if place % EVERY == 0 or dtype != "fp32":
            keep(dtype, apart(rates_of_now, dtype))
        keep(str(given[0]), apart(here, *given))


def compared(given: tuple[Any, ...], samples: dict[str, list[Any]], machine: dict[str, Any]) -> dict[str, Any]:
    """The placement here is that of the plan whose time is in the middle."""
    config = configuration(*given)
    plans = sorted(samples[str(given[0])], key=seconds_of)
    compute = [old | (pooled(samples[old["dtype"]]) if old["dtype"] in samples else {}) for old in machine["compute"]]
    described = outcome(there(config, json.dumps(machine | {"compute": compute})))
    middle = plans[(len(plans) - 1) // 2]
    apart = {name: described["outside"][name] - share for name, share in middle["outside"].items()}
    seconds = statistics.median(map(seconds_of, plans))
    return {
        "number": given[0],
        "setting": SETTINGS[given[0]],
        "here_seconds": seconds,
        "here_each": [seconds_of(each) for each in samples[str(given[0])]],
        "here_spread": (seconds_of(plans[-1]) - seconds_of(plans[0])) / seconds,
        "described_seconds": seconds_of(described),
        "error": seconds_of(described) / seconds - 1,
        "placement_apart": max(map(abs, apart.values())),
        "apart": {name: value for name, value in apart.items() if value},
        "here": middle,
        "described": described,
    }


def seconds_of(plan: dict[str, Any]) -> float:
    return float(plan["step_seconds"])


def told(row: dict[str, Any]) -> str:
    setting = " ".join(map(str, row["setting"]))
    times = (
        f"here {row['here_seconds']:7.3f} s, described {row['described_seconds']:7.3f} s, {100 * row['error']:+6.1f} %"
    )
    spread = f"{len(row['here_each'])} plans here, {100 * row['here_spread']:.1f} % apart"
    return (
        f"{row['number']:2} {setting[:60]:60} {times}, placement {100 * row['placement_apart']:4.1f} % apart; {spread}"
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    pairs = [pair for row in rows for pair in itertools.combinations(row["here_each"], 2)]
    return {
        "settings": len(rows),
        "within": sum(error <= GOAL for error in errors),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "placements_alike": sum(row["placement_apart"] <= GOAL for row in rows),
        "pairs_within": sum(abs(one / other - 1) <= GOAL for one, other in pairs) / max(1, len(pairs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--settings", default=",".join(map(str, range(len(SETTINGS)))))
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--storage", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        profile = arguments.profile or directory / "profile.json"
        if arguments.profile is None:
            from spillway.machine.probe import probe

            probe(profile, [str(arguments.storage)], print)
        machine = json.loads(profile.read_text()) | {"machine": "this one, described"}
        machine.pop("comment", None)  # names the paths of who measures
        file = arguments.samples or directory / "samples.json"
        samples: dict[str, list[Any]] = json.loads(file.read_text()) if file.exists() else {}

        def keep(name: str, found: dict[str, Any]) -> None:
            samples.setdefault(name, []).append(found)
            file.write_text(json.dumps(samples))

        settings = [
            (number, directory, arguments.storage, profile) for number in map(int, arguments.settings.split(","))
        ]
        for _ in range(arguments.sweeps):
            sweep(settings, keep)
        rows = [compared(given, samples, machine) for given in settings]
    print(*map(told, rows), json.dumps(summary(rows)), sep="\n")
    found = summary(rows) | {"profile": machine, "rows": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [ALONE]:
        print(json.dumps(globals()[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
