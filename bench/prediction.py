"""Does a step take what the plan says? Settings drawn at random, each planned, trained for a few steps and compared.

    prediction.py [--count 20] [--first 0] [--steps 5] [--back /var/tmp] [--longest 30]
                  [--compute-dtype bf16]

A setting is a model of 0.1 to 1.5 billion parameters, a sequence, a share of each field group in DRAM and none to three
storage paths of 100 to 500 MB/s (loop devices in --back with a limit on bytes per second; needs root). Setting N is
always the same. One whose predicted step is longer than --longest is drawn again, since it says no more and takes long;
so is one for whose paths --back has no room.
The step's figure is the median over the steps but the first two; memory's is the largest resident set. Results go to
bench/results/prediction.json, where those of earlier calls stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shapes import peak_watch
from throttled import Throttled, throttled

from spillway.arguments import parse

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "prediction.json"
GOAL_MEDIAN, GOAL_WORST, GOAL_PEAK = 0.05, 0.10, 0.02
HEADS = 64  # elements of one
MOST_PER_PARAMETER = 54  # bytes on paths: an image, what waits for a flush, two gradients, records; some to spare


def draw(number: int, attempt: int) -> dict[str, Any]:
    chance = random.Random(f"{number}/{attempt}")
    while True:
        hidden = chance.choice([512, 768, 896, 1024, 1280, 1536, 2048])
        model = {
            "hidden_size": hidden, "num_hidden_layers": chance.randint(6, 28),
            "intermediate_size": 128 * round(hidden * chance.uniform(2.5, 5.8) / 128),
            "num_attention_heads": hidden // HEADS, "num_key_value_heads": hidden // HEADS // chance.choice([1, 2, 4])
            or 1, "vocab_size": chance.choice([32000, 64000, 151936]), "tie_word_embeddings": chance.random() < 0.7,
        }  # fmt: skip
        if model["num_attention_heads"] % model["num_key_value_heads"]:
            continue
        if 0.1e9 <= parameters(model) <= 1.5e9:
            break
    paths = [round(chance.uniform(100, 500)) for _ in range(chance.randint(0, 3))]
    shares = {name: chance.choice([0, 25, 50, 75, 100]) for name in ("weight", "state", "grad", "activation")}
    sequence = round(2 ** chance.uniform(7, 11))
    return {"model": model, "sequence": sequence, "paths": paths, "shares": shares if paths else {}}


def parameters(model: dict[str, Any]) -> int:
    hidden, feed = model["hidden_size"], model["intermediate_size"]
    attention = 2 * hidden * hidden + 2 * hidden * HEADS * model["num_key_value_heads"]
    table = model["vocab_size"] * hidden * (1 if model["tie_word_embeddings"] else 2)
    return int(table + model["num_hidden_layers"] * (attention + 3 * hidden * feed))


def words_of(setting: dict[str, Any], directory: Path, paths: list[str]) -> list[str]:
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run")]
    words += [word for path in paths for word in ("--storage", path)]
    shares = ",".join(f"{name}={share}%" for name, share in setting["shares"].items())
    words += ["--dram_budget", str(setting["budget"])] if "budget" in setting else []
    placement = setting.get("placement", shares or "dram")
    return [*words, "--placement", placement, "--compute_dtype", setting["dtype"]]


def unhurried(paths: Throttled) -> Any:
    """The engine; while it makes its volumes, which takes long and says nothing, the paths are not throttled."""
    from spillway._engine import Engine

    class Unhurried(Engine):
        def start(self, *words: Any) -> str:
            paths.release()
            try:
                return super().start(*words)
            finally:
                paths.restore()

    return Unhurried


def child(setting: dict[str, Any], steps: int, longest: float, paths: Throttled) -> dict[str, Any]:
    import torch
    from transformers import Qwen2Config

    from spillway.errors import DoesNotFit
    from spillway.protocol import Batch, Opening, WorkShape
    from spillway.session import Session

    with tempfile.TemporaryDirectory() as name, peak_watch() as watch:
        directory, sequence = Path(name), setting["sequence"]
        Qwen2Config(use_cache=False, max_position_embeddings=32768, architectures=["Qwen2ForCausalLM"],
                    **setting["model"]).save_pretrained(directory)  # fmt: skip
        try:
            config = parse(words_of(setting, directory, [str(path) for path in paths.directories])).config()
            session = Session(config, WorkShape(1, 1, sequence, 0, 0), unhurried(paths))
        except DoesNotFit as refusal:
            return {"does_not_fit": str(refusal)}
        plan = session.plan
        if setting.get("plan_only") or plan["predicted_step_seconds"] > longest:
            return {"plan": plan}
        session.start(Opening())
        seconds: list[float] = []
        for step in range(steps):
            generator = torch.Generator().manual_seed(step)
            ids = torch.randint(0, setting["model"]["vocab_size"], (1, sequence), generator=generator)
            seconds.append(session.step([Batch(ids, ids, None, sequence)], 1e-5).seconds)
        session.close()
    return {"seconds": seconds, "plan": {key: plan[key] for key in ("predicted_step_seconds", "bottleneck", "seconds",
            "tiers", "parameters", "path_bytes_per_step") if key in plan}, "peak_bytes": watch.bytes}  # fmt: skip


def room_for(setting: dict[str, Any], back: Path) -> bool:
    wanted = MOST_PER_PARAMETER * parameters(setting["model"]) if setting["paths"] else 0
    return wanted + (2 << 30) < shutil.disk_usage(back).free


def run(setting: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    mib = MOST_PER_PARAMETER * parameters(setting["model"]) / (1 << 20)
    with contextlib.ExitStack() as stack:
        paths = Throttled(Path(), [], [])
        if setting["paths"]:
            sizes = [256 + round(mib * rate / sum(setting["paths"])) for rate in setting["paths"]]
            paths = stack.enter_context(throttled(setting["paths"], sizes, arguments.back))
        ask = json.dumps([setting, arguments.steps, arguments.longest, paths.to_words()])
        words = [sys.executable, str(HERE / "prediction.py"), "--child", ask]
        words = [*paths.prefix, *words] if setting["paths"] else words
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    attempt = 0
    while True:
        setting = draw(number, attempt) | {"dtype": arguments.compute_dtype}
        if room_for(setting, arguments.back) and "seconds" in (found := run(setting, arguments)):
            break
        attempt += 1
    predicted, measured = found["plan"]["predicted_step_seconds"], statistics.median(found["seconds"][2:])
    dram = next(tier for tier in found["plan"]["tiers"] if tier["name"] == "dram")
    return {"number": number, "redrawn": attempt, "setting": setting, "predicted": predicted, "measured": measured,
            "error": predicted / measured - 1, "planned_peak": dram["planned_peak"], "peak": found["peak_bytes"],
            "peak_error": dram["planned_peak"] / found["peak_bytes"] - 1, **found}  # fmt: skip


def say(row: dict[str, Any]) -> None:
    setting = row["setting"]
    paths = "+".join(map(str, setting["paths"])) or "none"
    size = row["plan"]["parameters"] / 1e9
    print(f"{row['number']:3}: {size:.2f} B, sequence {setting['sequence']:4}, paths {paths}, "
          f"{row['plan']['bottleneck']}: predicted {row['predicted']:6.2f} s, measured {row['measured']:6.2f} "
          f"({100 * row['error']:+.1f} %); peak {100 * row['peak_error']:+.1f} %", flush=True)  # fmt: skip


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    out = {"settings": len(rows), "median": statistics.median(errors), "worst": max(errors),
           "peak_worst": max(abs(row["peak_error"]) for row in rows)}  # fmt: skip
    print(f"{len(rows)} settings: median error {100 * out['median']:.1f} % (goal {100 * GOAL_MEDIAN:.0f}), worst "
          f"{100 * out['worst']:.1f} % (goal {100 * GOAL_WORST:.0f}), memory at worst {100 * out['peak_worst']:.1f} % "
          f"(goal {100 * GOAL_PEAK:.0f})")  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--longest", type=float, default=30)
    parser.add_argument("--compute-dtype", default="bf16", help="fp32: for processors that only emulate bf16")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        setting, steps, longest, paths = json.loads(arguments.child)
        return print(json.dumps(child(setting, steps, longest, Throttled.from_words(paths))))
    rows = {row["number"]: row for row in json.loads(RESULTS.read_text())["rows"]} if RESULTS.exists() else {}
    for number in range(arguments.first, arguments.first + arguments.count):
        rows[number] = measure(number, arguments)
        say(rows[number])
        ordered = [rows[key] for key in sorted(rows)]
        RESULTS.write_text(json.dumps({"rows": ordered}, indent=1) + "\n")
    ordered = [rows[key] for key in sorted(rows)]
    RESULTS.write_text(json.dumps({"summary": summarise(ordered), "rows": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
