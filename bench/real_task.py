"""A pretrained model learns a task: JSON of a worked solution's last calculation, scored before and after.

    real_task.py MODEL --out DIR [--steps 20] [--sides NAME ...]
    real_task.py --show

MODEL is the directory of an instruction-tuned model. The rows are those of samples/: a worked solution of GSM8K without
the line of its result is the user's turn, and the answer is JSON of two keys, {"calculation": "24/6", "answer": 4}.
Every side starts from the same weights and sees the same rows in the same order at the same rates, in fp32:

    base      the model as it is
    plain     PyTorch in memory, torch.optim.AdamW
    spillway  `spillway train`: everything on the path, under a budget smaller than weights, gradients and optimizer
              state, every step durable

Each side trains in a process of its own; its seconds are that process's, start and end included, and its memory is the
largest that the kernel counted. A score is the held-out rows whose greedy answer is right, both values being the wanted
ones, and those whose answer has the form: JSON of these two keys and nothing else. A side that
bench/results/real-task.json has is not run again; the machine beside each side says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from equality_plain import run
from figures import RESULTS, machine, processor, save
from transformers import AutoModelForCausalLM, AutoTokenizer

from spillway.config import resolve
from spillway.run.train import load_work

FILE = RESULTS / "real-task.json"
SAMPLES = Path(__file__).parents[1] / "samples"
SIDES = ("base", "plain", "spillway")
ASK = (
    'Reply with JSON alone: {"calculation": "the last calculation between << and =", "answer": the final number}. '
    'Example: {"calculation": "2+3", "answer": 5}'
)
LENGTH, HELDOUT = 192, 256  # most tokens of a training row, of a held-out row
ROWS, SEED = 4, 7  # rows of a step
RATE, DECAY, MAX_NORM = 2e-4, 0.0, 1.0
ANSWER = 32  # tokens that are written at most
BATCH = 20  # rows answered at once
SPILLED = {"placement": "path", "durability": "step", "dram_budget": "1536MiB"}

Row = dict[str, Any]


def make_row(sample: dict[str, str]) -> Row | None:
    """Messages of a sample; None where it shows no calculation, or its result is no plain number."""
    solution, mark, result = sample["answer"].rpartition("\n#### ")
    calculations = re.findall(r"<<([^<>=]+)=[^<>]*>>", solution)
    number = result.strip().replace(",", "")
    if not mark or not calculations or not re.fullmatch(r"-?\d+", number):
        return None
    wanted = json.dumps({"calculation": calculations[-1], "answer": int(number)})
    contents = (("system", ASK), ("user", solution), ("assistant", wanted))
    return {"messages": [{"role": role, "content": content} for role, content in contents]}


def make_rows(file: Path, tokenizer: Any, most: int) -> list[Row]:
    """The rows of a file of samples that have no more than `most` tokens."""
    made = (make_row(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines())
    return [row for row in made if row and count_tokens(row, tokenizer) <= most]


def count_tokens(row: Row, tokenizer: Any) -> int:
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    return len(tokenizer(text, add_special_tokens=False).input_ids)


def read_answer(text: str) -> dict[str, Any] | None:
    """The object that an answer is, or None where it is not JSON of the two keys, whole and alone."""
    try:
        read = json.loads(text)
    except json.JSONDecodeError:
        return None
    return read if isinstance(read, dict) and set(read) == {"calculation", "answer"} else None


def compare(answers: list[str], rows: list[Row]) -> dict[str, Any]:
    """How many answers are exactly right, and how many have the form."""
    read = [read_answer(answer) for answer in answers]
    wanted = [json.loads(row["messages"][-1]["content"]) for row in rows]
    right = sum(one == other for one, other in zip(read, wanted, strict=True))
    formed = sum(one is not None for one in read)
    return {"rows": len(rows), "right": right, "formed": formed, "first_answers": answers[:3]}


def keys(out: Path, model: Path, steps: int, side: str) -> dict[str, Any]:
    return {
        "model": str(model), "dataset": str(out / "train.jsonl"), "output_dir": str(out / side),
        "compute_dtype": "fp32", "max_length": LENGTH, "max_steps": steps, "per_device_train_batch_size": ROWS,
        "learning_rate": RATE, "lr_scheduler_type": "cosine", "warmup_steps": 0.1, "weight_decay": DECAY,
        "max_grad_norm": MAX_NORM, "seed": SEED, "logging_steps": 1, "overwrite": True, "save_only_model": True,
        "storage": [str(out / "storage")],
    }  # fmt: skip


def train_plain(config: Path) -> None:
    """The rows, order and rates of the command line, in a loop that a person would write."""
    asked = json.loads(config.read_text())
    work = load_work(resolve(asked, {}), print)
    steps = [([work.train.batch(part) for part in work.order.step(at)], work.rate(at)) for at in range(work.steps)]
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32)
    model.config.use_cache = False
    losses = list(run(model.train(), dict(model.named_parameters()), steps, DECAY, MAX_NORM))
    model.config.use_cache = True
    made = Path(asked["output_dir"])
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(asked["model"]).save_pretrained(made)
    (made / "metrics.jsonl").write_text("".join(json.dumps({"loss": loss}) + "\n" for loss in losses))


def train(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    """Trains in a process of its own; its losses, seconds and memory."""
    config = arguments.out / f"{side}.yaml"
    asked = keys(arguments.out, arguments.model, arguments.steps, side) | (SPILLED if side == "spillway" else {})
    config.write_text(json.dumps(asked, indent=1))
    words = [__file__, "--plain", str(config)] if side == "plain" else ["-m", "spillway", "train", str(config)]
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *words])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status:
        raise SystemExit(f"{side} ended with {os.waitstatus_to_exitcode(status)}")
    lines = (arguments.out / side / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    ends = {"first_loss": losses[0], "last_loss": losses[-1]}
    return {"losses": losses, **ends, "seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024}


@torch.no_grad()
def write_answers(model: Path, rows: list[Row]) -> list[str]:
    """Answers of the model in a directory, decoded greedily by transformers."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.padding_side = "left"
    answers: list[str] = []
    for first in range(0, len(rows), BATCH):
        asked = [
            tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True, tokenize=False)
            for row in rows[first : first + BATCH]
        ]
        given = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False)
        written = loaded.generate(
            **given, max_new_tokens=ANSWER, do_sample=False, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        answers += tokenizer.batch_decode(written[:, given.input_ids.shape[1] :], skip_special_tokens=True)
    return answers


def measure(arguments: argparse.Namespace, side: str, heldout: list[Row]) -> dict[str, Any]:
    trained = {} if side == "base" else train(arguments, side)
    place = arguments.model if side == "base" else arguments.out / side
    return trained | compare(write_answers(place, heldout), heldout)


def differences(sides: dict[str, Any]) -> dict[str, float]:
    """The largest of the two sides' losses, as it is and as a share of the loss, which comes near zero."""
    pairs = list(zip(sides["spillway"]["losses"], sides["plain"]["losses"], strict=True))
    return {
        "largest_difference": max(abs(one - other) for one, other in pairs),
        "largest_share": max(abs(one - other) / other for one, other in pairs),
    }


def show(found: dict[str, Any]) -> None:
    print(f"{'':10} {'right':>6} {'formed':>6} {'rows':>5} {'first':>8} {'last':>8} {'seconds':>8} {'GiB':>6}")
    for name, side in found["sides"].items():
        print(f"{name:10} {side['right']:6} {side['formed']:6} {side['rows']:5}", end="")
        if "losses" in side:
            first, last, gib = side["first_loss"], side["last_loss"], side["peak_bytes"] / 2**30
            print(f" {first:8.4f} {last:8.4f} {side['seconds']:8.1f} {gib:6.2f}", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    if arguments.plain:
        train_plain(arguments.plain)
        return
    show(json.loads(FILE.read_text()) if arguments.show else measure_all(arguments))


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    training = make_rows(SAMPLES / "gsm8k.train.jsonl", tokenizer, LENGTH)
    heldout = make_rows(SAMPLES / "gsm8k.heldout.jsonl", tokenizer, HELDOUT)
    settings = {"model": arguments.model.name, "steps": arguments.steps, "rows_of_a_step": ROWS, "length": LENGTH,
                "learning_rate": RATE, "training_rows": len(training), "threads": torch.get_num_threads(),
                **SPILLED}  # fmt: skip
    (arguments.out / "storage").mkdir(parents=True, exist_ok=True)
    (arguments.out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in training))
    found = load_results(settings)
    for side in arguments.sides:
        if side in found["sides"]:
            continue
        print(f"== {side}", flush=True)
        measured = measure(arguments, side, heldout) | {"machine": processor() | machine()}
        found = load_results(settings)  # another process may have measured another side meanwhile
        found["sides"][side] = measured
        if {"plain", "spillway"} <= set(found["sides"]):
            found |= differences(found["sides"])
        found["versions"] = {name: version(name) for name in ("torch", "transformers")}
        save(FILE.stem, found)
    return found


def load_results(settings: dict[str, Any]) -> dict[str, Any]:
    """The results of the file, if they have the same settings."""
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found if found.get("settings") == settings else {"settings": settings, "sides": {}}


if __name__ == "__main__":
    main()
