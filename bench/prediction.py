"""Does a step take what the plan says? Settings drawn at random, each planned, trained for a few steps and compared.

    prediction.py [--count 20] [--first 0] [--seconds 40] [--back /var/tmp] [--compute-dtype bf16] [--alone COMMAND]
                  [--timelines DIR]

A setting is a model of 0.1 to 1.5 billion parameters, a sequence of 32 to 512 tokens, a share of each field group in
DRAM and none to three storage paths of 100 to 500 MB/s (loop devices in --back with a limit on bytes per second; needs
root). Setting N is always the same. One of more work than a step of half a billion parameters and 512 tokens is drawn
again, since it says no more and takes long; so is one for whose paths --back has no room.
As many steps are made as fit --seconds, 5 to 12, and more until three of them, the first two apart, were undisturbed:
others had at most 6 % of the CPUs, the host of a virtual machine included. The dry run before is made again
where that was more than 3 %. The step's figure is the median over those steps; memory's is the largest resident set.
COMMAND holds whatever else runs here while a program that is put behind its words runs (the words of a file lock, say);
it is used while rates are measured and while steps are, not while volumes are made. DIR keeps each setting's last step,
measured and predicted, as N.json.gz. Results go to bench/results/prediction.json, where those of earlier calls stay.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes import peak_watch
from throttled import Throttled, throttled

from spillway.cli.arguments import parse

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.run.session import EngineSession

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "prediction.json"
GOAL_MEDIAN, GOAL_WORST, GOAL_PEAK = 0.05, 0.10, 0.02
MEASURED = ("number", "predicted", "measured", "error", "planned_peak", "peak", "peak_error", "steps")
HEADS = 64  # elements of one
MOST_PER_PARAMETER = 54  # bytes on paths: an image, what waits for a flush, two gradients, records; some to spare
MOST_WORK = 0.5e9 * 512  # parameters times tokens of a step
LEAST_STEPS, MOST_STEPS, MOST_TRIED = 5, 12, 24
MOST_OTHERS, LEAST_UNDISTURBED = 0.06, 3
MOST_MEASURED, MOST_WHILE_PLANNED = 2, 0.03
MOST_TIMES = 6  # --seconds, for steps in all


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
    sequence = round(2 ** chance.uniform(5, 9))
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
    from spillway._engine import Engine, Recovery

    class Unhurried(Engine):
        def start(self, *words: Any) -> Recovery:
            paths.release()
            try:
                return super().start(*words)
            finally:
                paths.restore()

    return Unhurried


@contextlib.contextmanager
def alone(command: str) -> Iterator[None]:
    """While `command` runs a program that waits for us."""
    if not command:
        yield
        return
    words = [*shlex.split(command), "sh", "-c", "echo; exec cat"]
    held = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert held.stdin is not None and held.stdout is not None
    held.stdout.readline()
    try:
        yield
    finally:
        held.stdin.close()
        held.wait()


def child(setting: dict[str, Any], seconds: float, command: str, paths: Throttled, timeline: str) -> dict[str, Any]:
    from transformers import Qwen2Config

    from spillway.errors import DoesNotFit
    from spillway.machine import process_memory
    from spillway.run.protocol import StartPoint

    with tempfile.TemporaryDirectory() as name, peak_watch() as watch:
        directory, sequence = Path(name), setting["sequence"]
        Qwen2Config(use_cache=False, max_position_embeddings=32768, architectures=["Qwen2ForCausalLM"],
                    **setting["model"]).save_pretrained(directory)  # fmt: skip
        try:
            config = parse(words_of(setting, directory, [str(path) for path in paths.directories])).config()
            with alone(command):
                session, others = undisturbed_session(config, sequence, paths)
        except DoesNotFit as refusal:
            return {"does_not_fit": str(refusal)}
        plan, peaks = session.plan, {"planning": watch.bytes}
        if "candidates" in setting:
            return contest(setting, Planner(session))
        session.start(StartPoint())
        peaks |= {"loading": watch.bytes, "loaded": process_memory.resident()}
        steps = max(LEAST_STEPS, min(MOST_STEPS, round(seconds / plan["predicted_step_seconds"])))
        taken: list[tuple[float, float]] = []
        with alone(command):
            while len(taken) < steps or (len(undisturbed(taken)) < LEAST_UNDISTURBED and may_try(taken, seconds)):
                taken.append(one_step(session, setting, len(taken)))
        pieces = pieces_of(session, Path(timeline) if timeline else directory / "timeline.json.gz")
        told = json.loads(session.settings.to_json())
        settings = {key: told[key] for key in ("process_bytes", "work_bytes", "seconds", "profile")}
        session.close()
    kept = ("predicted_step_seconds", "bottleneck", "seconds", "tiers", "parameters", "path_bytes_per_step", "dram")
    measured = statistics.median(undisturbed(taken) or [seconds for seconds, _ in taken[2:]])
    return {"steps": taken, "measured": measured, "others_while_planned": others, "pieces": pieces,
            "settings": settings, "peaks": peaks, "peak_bytes": watch.bytes,
            "plan": {key: plan[key] for key in kept if key in plan}}  # fmt: skip


class Planner:
    """Plans again and again with what one session has profiled and measured."""

    def __init__(self, session: EngineSession) -> None:
        self._description = session.description
        self._settings = session.settings

    def plan(self, placement: str, budget: int | None = None) -> dict[str, Any] | None:
        """None: it does not fit."""
        from spillway._engine import Engine
        from spillway.base.calls import translated
        from spillway.base.documents import make_document
        from spillway.errors import DoesNotFit
        from spillway.run.settings import placement_shares

        settings = copy.copy(self._settings)
        settings.placement = placement_shares(placement)
        settings.dram_budget = budget or settings.dram_budget
        try:
            with translated():
                engine = Engine(self._description, settings)
        except DoesNotFit:
            return None
        return make_document(engine.plan())


def contest(setting: dict[str, Any], planner: Planner) -> dict[str, Any]:
    """A budget between everything on the paths and everything in DRAM, by the setting's `share`, and as many of the
    `candidates` as `others` that fit it and are predicted to take at most twice as long as the planner's own."""
    least, most = (peak_of(planner.plan(placement)) for placement in ("path", "dram"))
    budget = int(least + setting["share"] * (most - least))
    own = planner.plan("auto", budget)
    if own is None:
        raise SystemExit(f"nothing fits {budget} bytes")
    found: list[str] = []
    for placement in setting["candidates"]:
        plan = planner.plan(placement, budget) if placement not in found else None
        if plan is not None and plan["predicted_step_seconds"] <= 2 * own["predicted_step_seconds"]:
            found.append(placement)
        if len(found) == setting["others"]:
            break
    return {"budget": budget, "others": found}


def peak_of(plan: dict[str, Any] | None) -> int:
    if plan is None:
        raise SystemExit("what is kept on paths alone, or in DRAM alone, does not fit this machine")
    return int(next(tier["planned_peak"] for tier in plan["tiers"] if tier["name"] == "dram"))


def undisturbed_session(config: Config, sequence: int, paths: Throttled) -> tuple[EngineSession, float]:
    """The first whose rates were measured while others had little of the CPUs, or the second; what they had."""
    from spillway.model.batches.batch import WorkShape
    from spillway.run.session import EngineSession

    for _ in range(MOST_MEASURED):
        before, began = taken_by_others(), time.perf_counter()
        session = EngineSession(config, WorkShape(1, 1, sequence, 0, 0), unhurried(paths))
        others = (taken_by_others() - before) / (time.perf_counter() - began) / (os.cpu_count() or 1)
        if others <= MOST_WHILE_PLANNED:
            break
        session.close()
    return session, others


def may_try(steps: Sequence[tuple[float, float]], seconds: float) -> bool:
    """Another one, in the hope that nobody disturbs it."""
    return len(steps) < MOST_TRIED and sum(taken for taken, _ in steps) < MOST_TIMES * seconds


def undisturbed(steps: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds of those that count."""
    return [seconds for seconds, others in steps[2:] if others <= MOST_OTHERS]


def taken_by_others() -> float:
    """CPU seconds so far: what other programs computed, and what the host of a virtual machine took."""
    user, nice, _, _, _, _, _, stolen = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + stolen) / os.sysconf("SC_CLK_TCK") - os.times().user


def one_step(session: Any, setting: dict[str, Any], step: int) -> tuple[float, float]:
    """Seconds, and the share of the CPUs that others had meanwhile."""
    import torch

    from spillway.model.batches.batch import Batch

    generator, sequence = torch.Generator().manual_seed(step), setting["sequence"]
    ids = torch.randint(0, setting["model"]["vocab_size"], (1, sequence), generator=generator)
    before = taken_by_others()
    seconds = float(session.step([Batch(ids, ids, None, sequence)], 1e-5).seconds)
    return seconds, (taken_by_others() - before) / seconds / (os.cpu_count() or 1)


def pieces_of(session: Any, file: Path) -> dict[str, Any]:
    """What the last step's tasks took by kind, measured and predicted: their number, the sum of their seconds, and of
    passes the seconds by which the last one ended after the first began."""
    session.write_timeline(file)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    out: dict[str, Any] = {}
    for process, name in ((1, "measured"), (2, "predicted")):
        tasks = [event for event in events if event["pid"] == process and event["ph"] == "X"]
        sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for event in tasks:
            kind = re.split(r" (?:model|lm_head|[\w.]*\d)", event["name"])[0]
            sums[kind][0] += 1
            sums[kind][1] += event["dur"] / 1e6
        passes = [event for event in tasks if event["tid"] == 1]
        first = min((event["ts"] for event in passes), default=0)
        last = max((event["ts"] + event["dur"] for event in passes), default=0)
        out[name] = dict(sums) | {"span": (last - first) / 1e6}
    return out


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
        timeline = str(arguments.timelines / f"{setting['number']}.json.gz") if arguments.timelines else ""
        ask = json.dumps([setting, arguments.seconds, arguments.alone, paths.to_words(), timeline])
        words = [sys.executable, str(HERE / "prediction.py"), "--child", ask]
        words = [*paths.prefix, *words] if setting["paths"] else words
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    attempt = 0
    while True:
        setting = draw(number, attempt) | {"dtype": arguments.compute_dtype, "number": number}
        small = parameters(setting["model"]) * setting["sequence"] <= MOST_WORK and room_for(setting, arguments.back)
        if small and "steps" in (found := run(setting, arguments)):
            break
        attempt += 1
    predicted, measured = found["plan"]["predicted_step_seconds"], found["measured"]
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


def summarise(rows: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """Over every measurement, those that were repeated later included."""
    every = [*rows, *earlier]
    errors = [abs(row["error"]) for row in every]
    out = {"settings": len(rows), "measurements": len(every), "median": statistics.median(errors), "worst": max(errors),
           "within_5_percent": sum(error <= 0.05 for error in errors),
           "peak_worst": max(abs(row["peak_error"]) for row in every)}  # fmt: skip
    print(f"{len(rows)} settings, measured {len(every)} times: median error {100 * out['median']:.1f} % "
          f"(goal {100 * GOAL_MEDIAN:.0f}), worst "
          f"{100 * out['worst']:.1f} % (goal {100 * GOAL_WORST:.0f}), memory at worst {100 * out['peak_worst']:.1f} % "
          f"(goal {100 * GOAL_PEAK:.0f})")  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--alone", default="", metavar="COMMAND")
    parser.add_argument("--compute-dtype", default="bf16", help="fp32: for CPUs that only emulate bf16")
    parser.add_argument("--timelines", type=Path, metavar="DIR")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        setting, seconds, command, paths, timeline = json.loads(arguments.child)
        return print(json.dumps(child(setting, seconds, command, Throttled.from_words(paths), timeline)))
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    rows = {row["number"]: row for row in held["rows"]}
    earlier = held.get("earlier", [])  # measurements of settings that were measured again: none is dropped
    for number in range(arguments.first, arguments.first + arguments.count):
        if number in rows:
            earlier.append({key: rows[number][key] for key in MEASURED})
        rows[number] = measure(number, arguments)
        say(rows[number])
        keep(rows, earlier)


def keep(rows: dict[int, dict[str, Any]], earlier: list[dict[str, Any]]) -> None:
    ordered = [rows[key] for key in sorted(rows)]
    found = {"summary": summarise(ordered, earlier), "rows": ordered, "earlier": earlier}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
