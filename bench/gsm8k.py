"""A pretrained model learns school mathematics: the same curve and the same score, wherever the state lies.

    gsm8k.py MODEL --train TRAIN.jsonl --test TEST.jsonl --out DIR [--sides NAME ...] [--steps 60]
    gsm8k.py --show

MODEL is an instruction-tuned model's directory; the rows are GSM8K's, {"question": ..., "answer": "... #### number"},
and are put as chat: the model's own template, loss on the answer's tokens. Every side sees the same rows in the same
order, in fp32, from the same weights:

    base       the model as it is
    plain      PyTorch in memory, torch.optim.AdamW
    disk       `spillway train`: weights, states, gradients and activations on the path, every step durable
    lora, lsp  `spillway train` with these methods, the rest of their keys as they come
    trainer, sft        transformers' Trainer and TRL's SFTTrainer through Spillway, everything on the path, and
    trainer-plain, ...  the same without: FEW steps each, whose losses are compared

A score is what the first --questions test rows give: the mean loss of an answer's token, and how many of the answers
written greedily end in the right number. Nothing here is a time. A side that is in bench/results/gsm8k.json is not run
again; gsm8k.png is drawn from that file.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from equality_plain import run
from figures import RESULTS, machine, save
from transformers import AutoModelForCausalLM, AutoTokenizer

from spillway.config import resolve
from spillway.run.train import load_work

FILE = RESULTS / "gsm8k.json"
LENGTH, ROWS, SEED = 384, 4, 7  # tokens of a row, rows of a step
FEW = 10
ANSWER = 256  # tokens that are written at most
BATCH = 20  # questions answered at once
DECAY, MAX_NORM = 0.0, 1.0
RATES = {"lora": 5e-4}  # ten times that of the weights themselves
RATE = 5e-5
TRAINED = {
    "disk": ["--placement", "path", "--durability", "step", "--dram_budget", "2GiB"],
    "lora": ["--method", "lora", "--lora_target_modules", "all-linear"],
    "lsp": ["--method", "lsp"],
}
HANDED = ("trainer", "sft")  # to somebody else's loop
SIDES = ("base", "plain", *TRAINED, *(name + end for name in HANDED for end in ("-plain", "")))


def rows_of(file: Path, tokenizer: Any) -> Iterator[dict[str, str]]:
    """Prompt and completion as the model's chat template writes them, but for the end of the turn."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        question = [{"role": "user", "content": row["question"]}]
        prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
        yield {"prompt": prompt, "completion": row["answer"]}


def keys(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    return {
        "model": str(arguments.model), "dataset": str(arguments.out / "train.jsonl"),
        "output_dir": str(arguments.out / side), "compute_dtype": "fp32", "max_length": LENGTH,
        "max_steps": arguments.steps, "per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1,
        "learning_rate": RATES.get(side, RATE), "lr_scheduler_type": "cosine", "warmup_steps": 0.1,
        "weight_decay": DECAY, "max_grad_norm": MAX_NORM, "seed": SEED, "logging_steps": 1, "overwrite": True,
        "storage": [str(arguments.out)], "save_only_model": True,
    }  # fmt: skip


def plain(arguments: argparse.Namespace) -> list[float]:
    """The rows, order and rates of the command line, in a loop that a person would write."""
    work = load_work(resolve(keys(arguments, "plain"), {}), print)
    steps = [([work.train.batch(part) for part in work.order.step(at)], work.rate(at)) for at in range(work.steps)]
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model.config.use_cache = False
    losses = list(run(model.train(), dict(model.named_parameters()), steps, DECAY, MAX_NORM))
    model.config.use_cache = True
    model.save_pretrained(arguments.out / "plain")
    AutoTokenizer.from_pretrained(arguments.model).save_pretrained(arguments.out / "plain")
    return losses


def command(arguments: argparse.Namespace, side: str) -> list[float]:
    config = arguments.out / f"{side}.yaml"
    config.write_text(json.dumps(keys(arguments, side)))
    subprocess.run([sys.executable, "-m", "spillway", "train", str(config), *TRAINED[side]], check=True)
    lines = (arguments.out / side / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def handed(arguments: argparse.Namespace, side: str) -> list[float]:
    """The losses that somebody else's loop logs; two lines are other ones where the model streams."""
    name, _, in_memory = side.partition("-")
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    import spillway.hf

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    if in_memory:
        model: Any = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    else:
        model = spillway.hf.load(arguments.model, storage=str(arguments.out), placement="path", dtype="float32")
    common: dict[str, Any] = {
        "output_dir": str(arguments.out / side), "max_steps": FEW, "per_device_train_batch_size": ROWS,
        "learning_rate": RATE, "weight_decay": DECAY, "max_grad_norm": MAX_NORM, "logging_steps": 1, "seed": SEED,
        "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, "bf16": False,
        "gradient_checkpointing": False,
    }  # fmt: skip
    rows = [json.loads(line) for line in (arguments.out / "train.jsonl").read_text().splitlines()[: ROWS * FEW]]
    if name == "sft":
        import trl
        from datasets import Dataset

        made: Any = (trl.SFTTrainer if in_memory else spillway.hf.SFTTrainer)(
            model=model, args=trl.SFTConfig(**common, max_length=LENGTH), train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )  # fmt: skip
    else:
        made = (Trainer if in_memory else spillway.hf.Trainer)(
            model=model, args=TrainingArguments(**common), train_dataset=[encoded(tokenizer, row) for row in rows],
            data_collator=DataCollatorForSeq2Seq(tokenizer), processing_class=tokenizer,
        )  # fmt: skip
    made.train()
    return [row["loss"] for row in made.state.log_history if "loss" in row]


def encoded(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
    prompt = tokenizer(row["prompt"], add_special_tokens=False).input_ids
    whole = tokenizer(row["prompt"] + row["completion"] + tokenizer.eos_token, add_special_tokens=False).input_ids
    labels = [-100] * len(prompt) + whole[len(prompt) :]
    return {"input_ids": whole[:LENGTH], "attention_mask": [1] * len(whole[:LENGTH]), "labels": labels[:LENGTH]}


def load(arguments: argparse.Namespace, side: str) -> Any:
    place = arguments.model if side == "base" else arguments.out / side
    if (place / "adapter_config.json").exists():
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        return PeftModel.from_pretrained(base, place).eval()
    return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()


def number(text: str) -> str | None:
    """What is written after the last ####; else the last number there is."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text.rpartition("####")[2])
    return found[0 if "####" in text else -1].replace(",", "").removesuffix(".00") if found else None


@torch.no_grad()
def score(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    model, tokenizer = load(arguments, side), AutoTokenizer.from_pretrained(arguments.model)
    rows = [json.loads(line) for line in (arguments.out / "test.jsonl").read_text().splitlines()]
    total, tokens, answers = 0.0, 0, []
    for row in rows:
        one = encoded(tokenizer, row)
        labels = torch.tensor([one["labels"]])
        count = int((labels[:, 1:] != -100).sum())
        total += float(model(input_ids=torch.tensor([one["input_ids"]]), labels=labels).loss) * count
        tokens += count
    tokenizer.padding_side = "left"
    for first in range(0, len(rows), BATCH):
        asked = [row["prompt"] for row in rows[first : first + BATCH]]
        given = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False)
        written = model.generate(
            **given, max_new_tokens=ANSWER, do_sample=False, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        answers += tokenizer.batch_decode(written[:, given.input_ids.shape[1] :], skip_special_tokens=True)
    right = sum(
        number(answer) is not None and number(answer) == number(row["completion"])
        for answer, row in zip(answers, rows, strict=True)
    )
    return {"loss": total / tokens, "questions": len(rows), "right": right, "first_answers": answers[:3]}


def measure(arguments: argparse.Namespace, side: str) -> dict[str, Any]:
    if side.partition("-")[0] in HANDED:
        return {"losses": handed(arguments, side)}
    losses = [] if side == "base" else plain(arguments) if side == "plain" else command(arguments, side)
    return {"losses": losses} | score(arguments, side)


def draw(sides: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss of an answer's token", title="GSM8K, fp32")
    for name, style in (("plain", {"linewidth": 5, "alpha": 0.35}), *((name, {}) for name in TRAINED)):
        if name in sides:
            losses = sides[name]["losses"]
            axes.plot(range(1, len(losses) + 1), losses, label=name, **style)
    axes.legend()
    figure.savefig(FILE.with_suffix(".png"), dpi=110)


def show(found: dict[str, Any]) -> None:
    sides = found["sides"]
    print(f"{'':10} {'first step':>10} {'last ten':>9} {'test loss':>9} {'right':>9}")
    for name in SIDES:
        if name in sides and "right" in sides[name]:
            side, losses = sides[name], sides[name]["losses"]
            first, last = (f"{losses[0]:.4f}", f"{fmean(losses[-10:]):.4f}") if losses else ("", "")
            print(f"{name:10} {first:>10} {last:>9} {side['loss']:9.4f} {side['right']:3} of {side['questions']}")
    for name, value in found.get("largest_difference", {}).items():
        print(f"{name}: no loss of a step differs from the same without Spillway by more than {value:.1e} of itself")


def differences(sides: dict[str, Any]) -> dict[str, float]:
    pairs = {"disk": "plain", **{name: f"{name}-plain" for name in HANDED}}
    return {
        name: max(abs(a - b) / b for a, b in zip(sides[name]["losses"], sides[other]["losses"], strict=True))
        for name, other in pairs.items()
        if name in sides and other in sides
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if arguments.show:
        show(found)
        return
    settings = {"model": arguments.model.name, "steps": arguments.steps, "rows": ROWS, "questions": arguments.questions,
                "learning_rate": RATE, "adapters_learning_rate": RATES["lora"], "length": LENGTH}  # fmt: skip
    if found.get("settings") != settings:
        found = {"settings": settings, "sides": {}}
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    for name, file, most in (("train", arguments.train, None), ("test", arguments.test, arguments.questions)):
        lines = [json.dumps(row) for row in rows_of(file, tokenizer)][:most]
        (arguments.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for side in arguments.sides:
        if side in found["sides"]:
            continue
        print(f"== {side}", flush=True)
        found["sides"][side] = measure(arguments, side)
        found |= {"machine": machine(), "largest_difference": differences(found["sides"])}
        save(FILE.stem, found)
    draw(found["sides"])
    show(found)


if __name__ == "__main__":
    main()
