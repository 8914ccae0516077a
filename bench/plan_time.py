"""How long `spillway plan` takes for models of real shapes: seconds, and CPU seconds, from a fresh process each.

    python bench/plan_time.py --place DIR --out bench/results/plan-time.json

DIR: on a file system with the room that a run would take (150 GB for 8b), since a plan is refused without. The models
have no weights (`init: random`), rows of 1,024 tokens, eight micro-batches of one row, everything else as it comes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import figures
import shapes

SHAPES = {"1.5b": 20, "8b": 40}  # seconds that it is meant to take
BUDGET = "8GiB"


def configuration(shape: str) -> Any:
    if shape in shapes.SHAPES:
        return shapes.config_of(shape)
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, tie_word_embeddings=False, max_position_embeddings=131072,
    )  # fmt: skip


def save_tokenizer(directory: Path) -> None:
    """A token for each byte."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters["<end>"] = len(letters)
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(str(directory))


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(shape: str, place: Path, folder: Path) -> dict[str, Any]:
    model = folder / shape
    configuration(shape).save_pretrained(model)
    save_tokenizer(model)
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": "word " * 256}) + "\n" for _ in range(16)))
    with tempfile.TemporaryDirectory(dir=place) as there:
        (Path(there) / "paths").mkdir()
        keys = {
            "model": model, "init": "random", "dataset": rows, "output_dir": f"{there}/run",
            "storage": f"{there}/paths", "max_length": 1024, "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8, "dram_budget": BUDGET,
        }  # fmt: skip
        words = [word for key, value in keys.items() for word in (f"--{key}", str(value))]
        load, began, before = os.getloadavg()[0], time.monotonic(), processor_seconds()
        done = subprocess.run(
            [sys.executable, "-m", "spillway", "plan", *words, "--json"], capture_output=True, text=True
        )
        seconds, used = time.monotonic() - began, processor_seconds() - before
    found = {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "load_before": round(load, 1)}
    if done.returncode:
        return found | {"refused": done.stderr.strip()}
    plan = json.loads(done.stdout)
    working_set = sum(each["bytes"] for each in plan["bytes"] if each["class"] == "working set")
    return found | {
        "meant_seconds": SHAPES.get(shape),
        "predicted_step_seconds": plan["predicted_step_seconds"],
        "tokens_per_second": plan["tokens_per_second"],
        "working_set_bytes": working_set,
        "compute_dtype": plan["compute_dtype"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out: dict[str, Any] = {"machine": figures.processor() | figures.machine(), "dram_budget": BUDGET, "shapes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for shape in options.shapes:
                found = measure(shape, options.place, Path(folder))
                print(shape, json.dumps(found), flush=True)
                out["shapes"].setdefault(shape, []).append(found)
    if options.out:
        options.out.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
