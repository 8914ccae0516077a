"""Does a plan for a profile that describes this machine say what a plan here says? In 20 settings.

    described.py [--profile FILE] [--settings N[,N...]] [--sweeps N] [--samples FILE] [--out FILE]

--profile: this machine's, by `spillway probe --storage DIR`; without it the machine is probed first. Here a layer is
run and measured; for the described machine its times and PyTorch's working set follow from the profile's rates and the
model's shapes. Everything else, rates of updates and paths among it, is the same profile's in both. A setting is a
model's shape, a step, budgets, and what computes.

A machine that others use, too, drifts within a minute: of what is bound by memory, by half. So a sample is the CPUs'
rates, a plan here, and the rates again, each measured in a process of its own, as by command; what is compared are the
step's time of that plan and of one for the described machine whose rates are the means of those two. Measured are the
products and attention that tell of the setting's; other rates are the profile's. A setting's error is the median of its
samples'. Compared are, too, of each field group the share of bytes that lies outside of DRAM, and the share of layers
that keep what autograd saves. GOAL: within 5 %. Beside them stands how many of the plans here, two by two of a setting,
are as near to each other.
--samples: what was measured is kept there, and added to. --out: bench/results/described.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shapes

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "described.json"
GOAL = 0.05
ALONE = "--alone"  # of a process that makes one call
CAPACITY = 200 * 2**30  # bytes of the path, in both
GIB = 2**30
NEAR = 0.2  # logarithm of a size: what products of such sizes take tells of those of a model

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
        return outcome(session.plan | {"settings": json.loads(session.settings.to_json())})
    finally:
        session.close()


def there(config: Any, profile: dict[str, Any], found: Any, trace: Any) -> dict[str, Any]:
    from spillway._engine import Profile
    from spillway.base.documents import make_document
    from spillway.run.machines import ask_plan

    asked = ask_plan(config, Profile.parse(json.dumps(profile)), found, trace, False)
    return {**make_document(asked.engine().plan()), "settings": json.loads(asked.described().settings.to_json())}


def rates_of_now(dtype: str, hidden: str, row: str, tokens: str) -> dict[str, Any]:
    """Of a profile's rates those that tell of a model of that hidden size, of rows of that many tokens, and of so many
    tokens in all."""
    from spillway._engine import Profile
    from spillway.machine import compute_rates as known
    from spillway.machine import process_memory

    process_memory.settle()
    near = [shape for shape in known.SHAPES if any(abs(math.log(size / int(hidden))) < NEAR for size in shape)]
    several, rows = around(int(tokens), known.TOKENS), around(int(row), known.ROWS)
    measured = Profile(compute=[known.rates(dtype, known.TYPES[dtype], near, several, rows)])
    return dict(json.loads(measured.to_json())["compute"][0])


def around(value: int, known: Sequence[int]) -> list[int]:
    """The value, or the known ones below and above it."""
    return sorted({max(it for it in known if it <= value), min(it for it in known if it >= value)})


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


def mean(samples: list[Any]) -> Any:
    """The mean of each number that they all have."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: mean([each[key] for each in samples]) for key in first}
    if isinstance(first, list):
        named = list(map(by_name, samples))
        return [mean([each[name] for each in named]) for name in named[0] if all(name in each for each in named)]
    return statistics.fmean(samples) if isinstance(first, float) else first


def by_name(entries: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What a list has, found by all that is no rate."""
    return {tuple(value for key, value in it.items() if not key.endswith("per_second")): it for it in entries}


def with_rates(machine: dict[str, Any], dtype: str, rates: dict[str, Any]) -> dict[str, Any]:
    """The machine's profile with these rates in place of its own; it keeps those that they lack."""
    old = next(it for it in machine["compute"] if it["dtype"] == dtype)
    products = list((by_name(old["products"]) | by_name(rates["products"])).values())
    others = [it for it in machine["compute"] if it is not old]
    return machine | {"compute": [*others, old | rates | {"products": products}]}


def sample(given: tuple[Any, ...]) -> dict[str, Any]:
    config = configuration(*given)
    hidden, row = shapes.SHAPES[SETTINGS[given[0]][0]][0], config.max_length
    asked = config.compute_dtype, hidden, row, config.per_device_train_batch_size * row
    before = apart(rates_of_now, *asked)
    plan = apart(here, *given)
    return {"here": plan, "rates": mean([before, apart(rates_of_now, *asked)])}


def compared(given: tuple[Any, ...], samples: list[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Any]:
    """How far placements are apart is the median of the samples', too; the plans are those of the middle error."""
    from spillway.machine import auto
    from spillway.model.spec import model_spec, verified
    from spillway.run.described_work import traced

    config = auto.settled(configuration(*given))
    found = verified(model_spec(config, only_plan=True))
    trace = traced(config, found, print)

    def described(one: dict[str, Any]) -> dict[str, Any]:
        profile = with_rates(machine, config.compute_dtype, one["rates"])
        return outcome(there(config, profile, found, trace))

    pairs = [(one["here"], described(one)) for one in samples]
    pairs.sort(key=error_of)
    one, other = pairs[(len(pairs) - 1) // 2]
    shares_apart = {
        name: statistics.median(its["outside"][name] - own["outside"][name] for own, its in pairs)
        for name in one["outside"]
    }
    seconds = sorted(seconds_of(each["here"]) for each in samples)
    return {
        "number": given[0],
        "setting": SETTINGS[given[0]],
        "here_seconds": statistics.median(seconds),
        "here_each": [seconds_of(each["here"]) for each in samples],
        "here_spread": (seconds[-1] - seconds[0]) / statistics.median(seconds),
        "described_seconds": statistics.median(seconds_of(each) for _, each in pairs),
        "error": statistics.median(map(error_of, pairs)),
        "errors": list(map(error_of, pairs)),
        "placement_apart": max(map(abs, shares_apart.values())),
        "apart": {name: value for name, value in shares_apart.items() if value},
        "here": one,
        "described": other,
    }


def error_of(pair: tuple[dict[str, Any], dict[str, Any]]) -> float:
    here, described = map(seconds_of, pair)
    return described / here - 1


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

        settings = [
            (number, directory, arguments.storage, profile) for number in map(int, arguments.settings.split(","))
        ]
        for _ in range(arguments.sweeps):
            for given in settings:
                samples.setdefault(str(given[0]), []).append(sample(given))
                file.write_text(json.dumps(samples))
        rows = [compared(given, samples[str(given[0])], machine) for given in settings]
    print(*map(told, rows), json.dumps(summary(rows)), sep="\n")
    found = summary(rows) | {"profile": machine, "rows": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [ALONE]:
        print(json.dumps(globals()[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
