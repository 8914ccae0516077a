"""Seconds of a step of each objective: TRL's trainers over a streamed model beside the same trainers in memory.

    objectives.py [--shape 135m] [--objectives sft dpo ...] [--tokens 512] [--rows 2] [--steps 6] [--rounds 1]
                  [--storage DIR] [--threads 2] [--json FILE]

Each measurement is a process of its own, and the sides take turns. Weights are random, of SmolLM2-135M's shape, kept
and multiplied in bf16. In memory the optimizer's states are bf16, too; streamed they are exact. Both sides have the
same TRL trainer, rows and batches; a row has --tokens tokens, half of them prompt, and a step --rows rows (or pairs).

`memory` loads the model with transformers. `dram` streams from DRAM, `disk` from --storage. TRL's DPOTrainer and
KTOTrainer compute their reference in each step, and a streamed one in a first pass over all rows. `before_seconds` has
that pass and the opening of the engine.
transformers' Trainer trains heads of labels for rows (`classify-rows`) and for tokens (`classify-tokens`), and rows
with an image each (`images`). They have SmolVLM's class and the frozen tower of SmolVLM-256M, and the image's 64 tokens
are among --tokens.
`grpo` samples --completion tokens four times for each prompt inside its step. `distill` has no trainer in TRL: beside
`spillway.train` (`dram`) is a plain loop over both models in memory. The streamed teacher's pass precedes the steps.

Prints the median of the steps after the first, and adds each process to --json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shapes import peak_watch

# hidden, feed-forward, layers, heads, key-value heads, vocabulary: those of SmolLM2-135M, and a small one for a trial
SHAPES = {"135m": (576, 1536, 30, 9, 3, 49152), "tiny": (64, 128, 2, 4, 2, 1024)}
OBJECTIVES = ("sft", "dpo", "kto", "orpo", "cpo", "simpo", "reward", "grpo", "distill",
              "classify-rows", "classify-tokens", "images")  # fmt: skip
BY_TRANSFORMERS = ("classify-rows", "classify-tokens", "images")
SIDES = ("memory", "dram", "disk")
WORDS = 900  # of the tokenizer, one token each
GENERATIONS = 4
LABELS = 8
# hidden, feed-forward, layers, heads, pixels of a side: those of SmolVLM-256M, and a small tower for a trial
TOWERS = {"135m": (768, 3072, 12, 12, 512), "tiny": (32, 64, 2, 2, 64)}
PATCH, JOINED = 16, 4  # pixels of a patch's side, and patches of a token's


def make_config(shape: str, **more: Any) -> Any:
    """The language model of a shape."""
    from transformers import LlamaConfig

    hidden, inner, layers, heads, keys, vocabulary = SHAPES[shape]
    return LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, vocab_size=vocabulary, tie_word_embeddings=True, max_position_embeddings=8192,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip


def find_auto(objective: str) -> Any:
    """The class of transformers that makes and loads the objective's model."""
    import transformers

    heads = {"reward": "SequenceClassification", "classify-rows": "SequenceClassification",
             "classify-tokens": "TokenClassification", "images": "ImageTextToText"}  # fmt: skip
    return getattr(transformers, f"AutoModelFor{heads.get(objective, 'CausalLM')}")


def save_model(place: Path, config: Any, objective: str = "sft", seed: int = 0) -> Path:
    """A model with random weights, and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(seed)
    find_auto(objective).from_config(config, dtype=torch.bfloat16).save_pretrained(place)
    names = ["<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(WORDS))]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<pad>"
    )
    tokenizer.save_pretrained(place)
    return place


def choose_config(objective: str, shape: str) -> Any:
    """The language model with the head of the objective, or below a vision tower. No dropout precedes a head."""
    from transformers import AutoConfig

    if objective == "reward":
        return make_config(shape, num_labels=1)
    if objective in ("classify-rows", "classify-tokens"):
        return make_config(shape, num_labels=LABELS, classifier_dropout=0.0)
    if objective != "images":
        return make_config(shape)
    hidden, inner, layers, heads, side = TOWERS[shape]
    return AutoConfig.for_model(
        "smolvlm", text_config=make_config(shape).to_dict(), scale_factor=JOINED, image_token_id=WORDS + 3,
        pad_token_id=0, tie_word_embeddings=True, vision_config={
            "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "image_size": side, "patch_size": PATCH,
        },
    )  # fmt: skip


def text(number: int, count: int) -> str:
    return " ".join(f"w{(number * 31 + place * 7) % WORDS}" for place in range(count))


def make_rows(objective: str, tokens: int, count: int) -> list[dict[str, Any]]:
    half = tokens // 2
    rows: list[dict[str, Any]] = []
    for number in range(count):
        prompt, answer, other = (text(3 * number + kind, half) for kind in range(3))
        if objective in ("sft", "distill"):
            rows.append({"prompt": prompt, "completion": " " + answer})
        elif objective == "kto":
            rows.append({"prompt": prompt, "completion": " " + answer, "label": number % 2 == 0})
        elif objective == "grpo":
            rows.append({"prompt": prompt})
        elif objective == "reward":
            rows.append({"chosen": f"{prompt} {answer}", "rejected": f"{prompt} {other}"})
        else:
            rows.append({"prompt": prompt, "chosen": " " + answer, "rejected": " " + other})
    return rows


def name_classes(objective: str) -> tuple[str, str]:
    """TRL's trainer and its arguments."""
    kind = {"simpo": "CPO", "reward": "Reward"}.get(objective, objective.upper())
    return f"{kind}Trainer", f"{kind}Config"


def find_class(name: str) -> Any:
    """The class of TRL, or of its experiments."""
    import importlib

    import trl

    if hasattr(trl, name):
        return getattr(trl, name)
    folder = name.removesuffix("Trainer").removesuffix("Config").lower()
    return getattr(importlib.import_module(f"trl.experimental.{folder}"), name)


def make_arguments(options: argparse.Namespace, out: Path) -> Any:
    objective = options.objective
    more: dict[str, Any] = {"max_length": options.tokens + 8}
    rows = options.rows
    if objective == "simpo":
        more |= {"loss_type": "simpo", "cpo_alpha": 0.0}
    if objective == "grpo":
        rows = max(GENERATIONS, options.rows)
        more = {"num_generations": GENERATIONS, "max_completion_length": options.completion, "temperature": 1.0}
    return find_class(name_classes(objective)[1])(
        output_dir=str(out), per_device_train_batch_size=rows, gradient_accumulation_steps=1, max_steps=options.steps,
        learning_rate=1e-6, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, **more,
    )  # fmt: skip


def measure_trainer(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """One process: a trainer, its seconds by step, and those before the first one."""
    import datasets
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(options.threads)
    config = choose_config(options.objective, options.shape)
    model_place = save_model(place / "model", config, options.objective)
    rows = make_rows(options.objective, options.tokens, options.rows * options.steps)
    model, kind = load_model(options, place, model_place)
    given: dict[str, Any] = {"reward_funcs": count_letters} if options.objective == "grpo" else {}
    trainer = kind(
        model=model, args=make_arguments(options, place / "out"), train_dataset=datasets.Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_place), **given,
    )  # fmt: skip
    return time_steps(trainer)


def time_steps(trainer: Any) -> dict[str, Any]:
    """The seconds of each step, and those before the first."""
    import transformers

    ends: list[float] = []

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not ends:
                ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    trainer.add_callback(Watch())
    begin = time.perf_counter()
    trainer.train()
    return {
        "seconds": [after - before for before, after in zip(ends, ends[1:], strict=False)],
        "before_seconds": ends[0] - begin,
    }


def measure_transformers(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """One process: transformers' Trainer, its seconds by step, and those before the first one."""
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    images = options.objective == "images"
    model_place = save_model(place / "model", choose_config(options.objective, options.shape), options.objective)
    keys: dict[str, Any] = {"images": True} if images else {"num_labels": LABELS}
    if options.objective == "classify-tokens":
        keys["task"] = "token-classification"
    if options.side == "memory":
        model, kind = load_in_memory(model_place, options.objective), transformers.Trainer
    else:
        model, kind = stream_model(options, place, model_place, keys), find_spillway_class("Trainer")
    model.config.pad_token_id = 0
    arguments = transformers.TrainingArguments(
        output_dir=str(place / "out"), per_device_train_batch_size=options.rows, max_steps=options.steps,
        learning_rate=1e-6, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    rows = make_id_rows(options)
    return time_steps(kind(model=model, args=arguments, train_dataset=rows, data_collator=Collator(options)))


def load_in_memory(model: Path, objective: str) -> Any:
    """The model in memory. A vision tower is frozen, as it is where a model streams."""
    model_in_memory = find_auto(objective).from_pretrained(model, dtype="bfloat16")
    if objective == "images":
        model_in_memory.model.vision_model.requires_grad_(False)
        model_in_memory.model.connector.requires_grad_(False)
    return model_in_memory


def make_id_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of --tokens ids. With an image its tokens come first, and have no label."""
    side = TOWERS[options.shape][4] // PATCH // JOINED
    image = side * side if options.objective == "images" else 0
    rows = []
    for number in range(options.rows * options.steps):
        ids = [3 + (number * 31 + place * 7) % WORDS for place in range(options.tokens)]
        labels: Any = [each % LABELS for each in ids]
        if options.objective == "classify-rows":
            labels = number % LABELS
        if image:
            ids[:image] = [WORDS + 3] * image
            labels = [-100] * image + ids[image:]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


class Collator:
    """Tensors of rows that have one length. Each has an image of its own, where rows have images."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.side = TOWERS[options.shape][4] if options.objective == "images" else 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        out = {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")}
        out["attention_mask"] = torch.ones_like(out["input_ids"])
        if self.side:
            generator = torch.Generator().manual_seed(rows[0]["input_ids"][-1])
            shape = (len(rows), 1, 3, self.side, self.side)
            out["pixel_values"] = torch.randn(shape, generator=generator).to(torch.bfloat16)
            out["pixel_attention_mask"] = torch.ones(len(rows), 1, self.side, self.side, dtype=torch.int64)
        return out


def load_model(options: argparse.Namespace, place: Path, model: Path) -> tuple[Any, Any]:
    """The model of a side, and its trainer's class."""

    name = name_classes(options.objective)[0]
    labels = {"num_labels": 1} if options.objective == "reward" else {}
    if options.side == "memory":
        return load_in_memory(model, options.objective), find_class(name)
    return stream_model(options, place, model, labels), find_spillway_class(name)


def stream_model(options: argparse.Namespace, place: Path, model: Path, more: dict[str, Any]) -> Any:
    import spillway.hf

    keys: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", **more}
    if options.side == "disk":
        keys |= {"storage": str(place / "storage"), "placement": "weight=path,state=path,grad=path,activation=dram"}
        (place / "storage").mkdir()
    return spillway.hf.load(model, **keys)


def find_spillway_class(name: str) -> Any:
    import spillway.hf

    return getattr(spillway.hf, name)


def count_letters(completions: list[str], **_: Any) -> list[float]:
    return [len(completion) % 7 / 7 for completion in completions]


def measure_distillation(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    student = save_model(place / "model", make_config(options.shape))
    teacher = save_model(place / "teacher", make_config(options.shape), seed=1)
    rows = make_rows("distill", options.tokens, options.rows * options.steps)
    if options.side == "memory":
        return measure_plain_distillation(options, student, teacher, rows)
    from spillway.run.train import train

    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys: dict[str, Any] = {}
    if options.side == "disk":
        keys |= {"storage": [str(place / "storage")], "placement": "weight=path,state=path,grad=path,activation=dram"}
        (place / "storage").mkdir()
    begin = time.perf_counter()
    train({
        "model": str(student), "teacher": str(teacher), "dataset": str(place / "rows.jsonl"), "objective": "distill",
        "output_dir": str(place / "out"), "max_length": options.tokens + 8, "max_steps": options.steps, "device": "cpu",
        "per_device_train_batch_size": options.rows, "gradient_accumulation_steps": 1, "compute_dtype": "bf16", **keys,
    })  # fmt: skip
    whole = time.perf_counter() - begin
    lines = (place / "out" / "metrics.jsonl").read_text().splitlines()
    seconds = [row["step_seconds"] for row in map(json.loads, lines) if "step_seconds" in row]
    return {"seconds": seconds, "before_seconds": whole - sum(seconds)}


def measure_plain_distillation(
    options: argparse.Namespace, student: Path, teacher: Path, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Forward divergence over the whole vocabulary, of completions alone, with both models in memory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(options.threads)
    model, other = (AutoModelForCausalLM.from_pretrained(each, dtype="bfloat16") for each in (student, teacher))
    tokenizer = AutoTokenizer.from_pretrained(student)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    seconds = []
    for step in range(options.steps):
        begin = time.perf_counter()
        part = rows[step * options.rows :][: options.rows]
        ids = tokenizer([row["prompt"] + row["completion"] for row in part], return_tensors="pt")["input_ids"]
        first = options.tokens // 2 - 1
        with torch.no_grad():
            expected = other(ids).logits[:, first:-1].float().log_softmax(-1)
        given = model(ids).logits[:, first:-1].float().log_softmax(-1)
        torch.nn.functional.kl_div(given, expected, log_target=True, reduction="batchmean").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds, "before_seconds": 0.0}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """This process alone; where it lies is removed."""
    with tempfile.TemporaryDirectory(dir=options.storage) as place, peak_watch() as watch:
        ways = {"distill": measure_distillation, **dict.fromkeys(BY_TRANSFORMERS, measure_transformers)}
        return ways.get(options.objective, measure_trainer)(options, Path(place)) | {"peak_bytes": watch.bytes}


def run(objective: str, side: str, options: argparse.Namespace) -> dict[str, Any]:
    words = [sys.executable, __file__, "--objective", objective, "--side", side, "--shape", options.shape]
    for name in ("tokens", "rows", "steps", "threads", "completion", "storage"):
        words += [f"--{name}", str(getattr(options, name))]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{objective}, {side}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--completion", type=int, default=32, help="tokens that grpo samples")
    parser.add_argument("--storage", default="/var/tmp", metavar="DIR")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--objective", choices=OBJECTIVES, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options)))
        return
    runs = []
    shared = {name: getattr(options, name) for name in ("shape", "tokens", "rows", "steps", "completion", "threads")}
    for number in range(options.rounds):
        for objective in options.objectives:
            for side in options.sides:
                figures = run(objective, side, options)
                settled = statistics.median(figures["seconds"][1:])
                runs.append({"objective": objective, "side": side, "round": number, "settled": settled, **figures})
                print(
                    f"{objective:15} {side:6} {settled:8.2f} s a step, before it {figures['before_seconds']:.1f} s, "
                    f"{figures['peak_bytes'] / 2**30:.2f} GiB",
                    flush=True,
                )
                if options.json:
                    options.json.write_text(json.dumps({**shared, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
