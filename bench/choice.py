"""Is the planner's placement the best there is? Beside ten others under the same budget, each trained for a few steps.

    choice.py [--count 2] [--first 0] [--others 10] [--seconds 8] [--back /var/tmp] [--alone COMMAND]

A setting is a model of 0.1 to 0.3 billion parameters, a sequence, one or two storage paths of 400 to 1200 MB/s (loop
devices in --back with a limit on bytes per second; needs root), and a `dram_budget` with room for a quarter to three
quarters of what would lie in DRAM. The others are drawn from the shares of each field group in DRAM; what does not fit,
or is predicted to take more than twice as long, is drawn again, all by plans with the rates of one dry run. Setting N
is always the same. Rounds would take too long: each placement's figure is prediction.py's, from as many steps as fit
--seconds. COMMAND is prediction.py's, too.
Results go to bench/results/choice.json, where those of earlier calls stay.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from prediction import draw, parameters, run

RESULTS = Path(__file__).parent / "results" / "choice.json"
GOAL = 0.03
MOST_PARAMETERS = 0.3e9
SHARES = [0, 25, 50, 75, 100]
MOST_DRAWN = 400
GROUPS = ("weight", "state", "grad", "activation")


def setting_of(number: int) -> dict[str, Any]:
    chance = random.Random(f"choice {number}")
    attempt = 0
    while parameters((found := draw(1000 + number, attempt))["model"]) > MOST_PARAMETERS:
        attempt += 1
    found["paths"] = [round(chance.uniform(400, 1200)) for _ in range(chance.randint(1, 2))]
    found["sequence"] = round(2 ** chance.uniform(6, 9))
    return found | {"dtype": "bf16", "shares": {}, "share": chance.uniform(0.25, 0.75)}


def seconds_of(setting: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    found = run(setting, arguments)
    if "steps" not in found:
        raise SystemExit(f"{setting['placement']} was planned to fit, and does not: {found['does_not_fit']}")
    row = {"placement": setting["placement"], "measured": found["measured"], "steps": found["steps"],
           "predicted": found["plan"]["predicted_step_seconds"], "peak": found["peak_bytes"]}  # fmt: skip
    print(f"  {row['placement']}: predicted {row['predicted']:.2f} s, measured {row['measured']:.2f}", flush=True)
    return row


def measure(number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The planner's own placement is measured first and once more at the end, since machines have their hours: the
    mean of both counts."""
    setting = setting_of(number)
    chance = random.Random(f"others {number}")
    drawn = [",".join(f"{group}={chance.choice(SHARES)}%" for group in GROUPS) for _ in range(MOST_DRAWN)]
    found = run(setting | {"placement": "auto", "candidates": drawn, "others": arguments.others}, arguments)
    setting["budget"] = found["budget"]
    rows = [seconds_of(setting | {"placement": each}, arguments) for each in ["auto", *found["others"], "auto"]]
    own = (rows[0]["measured"] + rows[-1]["measured"]) / 2
    best = min(row["measured"] for row in rows[1:-1])
    return {"number": number, "setting": setting, "rows": rows, "own": own, "best": best, "slower": own / best - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--others", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--alone", default="", metavar="COMMAND")
    parser.set_defaults(timelines=None)
    arguments = parser.parse_args()
    known = {row["number"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for number in range(arguments.first, arguments.first + arguments.count):
        found = known[number] = measure(number, arguments)
        size = parameters(found["setting"]["model"]) / 1e9
        print(f"{number}: {size:.2f} B, {len(found['rows']) - 2} others: the planner's takes "
              f"{found['own']:.2f} s, the best of the others {found['best']:.2f} "
              f"({100 * found['slower']:+.1f} %, goal at most {100 * GOAL:+.0f})", flush=True)  # fmt: skip
        RESULTS.write_text(json.dumps([known[key] for key in sorted(known)], indent=1) + "\n")


if __name__ == "__main__":
    main()
