"""Does training through the engine compute what a plain PyTorch loop computes?

    python bench/equality.py MODEL TEXT.jsonl {fp32|bf16} [--first-row N] [--rows N] [--steps N] [--out DIR] ...

fp32: the engine beside an in-memory loop with torch.optim.AdamW, with tied and with untied embeddings; the largest
relative difference of a step's loss stands against 1e-6. bf16: no two correct programs are bit-identical, so five
plain runs (bf16 weights and gradients, fp32 masters) start from weights moved by one bf16 ulp here and there, and the
engine's curve stands beside their spread. A sixth run of the same kind would leave the range of the other five at one
step in three (it is as likely as any to be the highest or the lowest); so the count of the engine is printed beside
that of each plain run. The largest distances from the mean of the five plain runs stand beside each other.

Each part goes into equality.json beside the other of the same settings; with both there, equality.png is drawn. Both
sides see the same rows, order, rates and threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from equality_plain import Steps, train_bf16, train_fp32, untied
from equality_plot import plot

from spillway import _engine
from spillway.config import Config, resolve
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession
from spillway.run.train import Work, load_work

LIMIT = 1e-6  # of the relative difference of fp32 losses
PLAIN_RUNS = 5
DECAY, MAX_NORM = 0.1, 1.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="directory with config.json and safetensors, embeddings tied")
    parser.add_argument("text", type=Path, help="JSONL rows")
    parser.add_argument("part", choices=("fp32", "bf16"))
    parser.add_argument("--first-row", type=int, default=0)
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--length", type=int, default=256, help="most tokens in a row")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--share", type=float, default=0.01, help="of the weights, moved by one bf16 ulp")
    parser.add_argument("--path-share", type=int, default=50, help="percent of every field group on a storage path")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def configuration(args: argparse.Namespace, model: Path, work: Path, dtype: str) -> Config:
    """The run's keys, its data cut to the rows asked for."""
    rows = args.text.read_text(encoding="utf-8").splitlines()[args.first_row : args.first_row + args.rows]
    data = work / "rows.jsonl"
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    in_dram = f"{100 - args.path_share}%"
    values = {
        "model": str(model), "tokenizer": str(args.model), "dataset": str(data), "output_dir": str(work / "run"),
        "overwrite": True, "compute_dtype": dtype, "max_length": args.length, "max_steps": args.steps,
        "completion_only_loss": False,
        "per_device_train_batch_size": args.batch, "gradient_accumulation_steps": args.accumulation,
        "learning_rate": args.rate, "lr_scheduler_type": "linear", "weight_decay": DECAY, "max_grad_norm": MAX_NORM,
        "profile": str(work / "profile.json"),
        "placement": ",".join(f"{group}={in_dram}" for group in ("weight", "state", "grad", "activation")),
    }  # fmt: skip
    if args.path_share:
        values["storage"] = [f"{work},capacity=2GiB"]
    return resolve(values, {})


def steps_of(work: Work) -> Steps:
    """What both sides are fed."""
    return [([work.train.batch(part) for part in work.order.step(i)], work.rate(i)) for i in range(work.steps)]


def train_engine(config: Config, work: Work, steps: Steps) -> list[float]:
    session = EngineSession(config, work.shape)
    try:
        session.start(StartPoint())
        results = [session.step(batches, rate) for batches, rate in steps]
    finally:
        session.close()
    print(f"engine, {config.compute_dtype}: {sum(result.seconds for result in results):.0f} s", flush=True)
    return [result.loss_sum / result.label_tokens for result in results]


def compare_fp32(args: argparse.Namespace, model: Path, directory: Path) -> dict[str, Any]:
    config = configuration(args, model, directory, "fp32")
    work = load_work(config, print)
    steps = steps_of(work)
    engine = train_engine(config, work, steps)
    plain = train_fp32(model, steps, DECAY, MAX_NORM)
    exact = train_fp32(model, steps, DECAY, MAX_NORM, exact=True)
    relative = differences(engine, plain)
    return {
        "engine": engine, "plain": plain, "relative": relative, "largest": max(relative),
        "plain_exact_norm": exact, "largest_exact_norm": max(differences(engine, exact)),
        "plain_against_plain_exact_norm": max(differences(plain, exact)),
    }  # fmt: skip


def differences(losses: list[float], others: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True)]


def compare_bf16(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    config = configuration(args, args.model, directory, "bf16")
    work = load_work(config, print)
    steps = steps_of(work)
    engine = train_engine(config, work, steps)
    plain = [train_bf16(args.model, steps, DECAY, MAX_NORM, seed, args.share) for seed in range(PLAIN_RUNS)]
    return {"engine": engine, "plain": plain, **standing(engine, plain)}


def standing(engine: list[float], plain: list[list[float]]) -> dict[str, Any]:
    """Steps of each curve outside the range of the other five, and distances from the mean of the plain runs alone."""
    curves = [engine, *plain]
    means = [statistics.fmean(losses) for losses in zip(*plain, strict=True)]
    outside, distance = [], []
    for one, curve in enumerate(curves):
        others = zip(*(rest for other, rest in enumerate(curves) if other != one), strict=True)
        outside.append(sum(not min(rest) <= loss <= max(rest) for loss, rest in zip(curve, others, strict=True)))
        distance.append(max(differences(curve, means)))
    return {
        "steps_outside": {"engine": outside[0], "plain": outside[1:], "expected": len(engine) / len(curves) * 2},
        "largest_distance": {"engine": distance[0], "plain": distance[1:]},
    }


def report(found: dict[str, Any]) -> None:
    for name, case in found.get("fp32", {}).items():
        print(f"fp32, {name}: largest relative difference of a loss {case['largest']:.2e} (limit {LIMIT:.0e});")
        print(f"      against plain with the norm summed in fp64: {case['largest_exact_norm']:.2e};",
              f"plain against itself so: {case['plain_against_plain_exact_norm']:.2e}")  # fmt: skip
    if "bf16" not in found:
        return
    bf16 = found["bf16"]
    outside, distance = bf16["steps_outside"], bf16["largest_distance"]
    print(f"bf16: {outside['engine']} of {len(bf16['engine'])} steps outside the range of the {PLAIN_RUNS} plain runs;")
    print(f"      each plain run among the others: {outside['plain']}, expected of equals {outside['expected']:.1f}")
    print(f"      largest distance from the mean of the plain runs: {distance['engine']:.2e}, each plain run:",
          ", ".join(f"{value:.2e}" for value in distance["plain"]))  # fmt: skip


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    names = ("first_row", "rows", "steps", "length", "batch", "accumulation", "rate", "share", "path_share")
    own = {name: getattr(args, name) for name in names}
    return {"model": args.model.name, "text": args.text.name, "torch": torch.__version__} | own


def compare(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """One part, measured afresh."""
    profile = _engine.measure([str(directory)])  # once for all sessions
    profile.save(str(directory / "profile.json"))
    if args.part == "bf16":
        return compare_bf16(args, directory)
    return {
        "tied": compare_fp32(args, args.model, directory),
        "untied": compare_fp32(args, untied(args.model, directory / "untied"), directory),
    }


def main() -> None:
    args = arguments()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        part = compare(args, Path(scratch))
    found = {"settings": settings_of(args), "seconds": {}}
    file = args.out / "equality.json"
    if file.exists() and (kept := json.loads(file.read_text(encoding="utf-8")))["settings"] == found["settings"]:
        found = kept
    found[args.part] = part
    found["seconds"][args.part] = round(time.perf_counter() - began)
    args.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if "fp32" in found and "bf16" in found:
        plot(found, LIMIT, args.out / "equality.png")
    report(found)
    if any(case["largest"] >= LIMIT for case in found.get("fp32", {}).values()):
        raise SystemExit("the fp32 losses differ by more than the limit")


if __name__ == "__main__":
    main()
