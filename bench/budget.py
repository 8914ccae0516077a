"""Does a run keep its budget? Real shapes trained for a step inside a cgroup that is 2 % larger than the plan.

    budget.py --tokenizer DIR [options] SHAPE[=BUDGET] ...

SHAPE: 0.5B, 1.5B, 3B, 8B (Qwen2.5's and Llama 3's), with weights drawn at random, `int8` states, everything on a
storage path in --back, which must have room for the state and for the model that is saved (8B: 76 GB). BUDGET: its
dram_budget; without it what `spillway plan` takes when there is no limit. --layers: with so many layers, which changes
no peak: each layer comes and goes alone. --compute: the dtype of weights and arithmetic. --pretrained: what was saved
is trained once more, from its files, under the plan of that. DIR: a tokenizer; the text is nothing but English words.
The group's peaks are of what cannot be taken back, anonymous memory and what the kernel keeps for the process, looked
at every 20 ms.
Needs root. Results go to bench/results/budget.json, where those of earlier calls stay.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import shapes  # noqa: E402
from figures import processor  # noqa: E402

from spillway.demo.memory_limit import MemoryLimit  # noqa: E402

RESULTS = HERE / "results" / "budget.json"
OVER = 1.02  # of the plan, which the group allows
# hidden, feed-forward, layers, heads, key-value heads, vocabulary, tied, family
SHAPES = {
    "3B": (3072, 8192, 28, 24, 8, 128256, True, "llama"),
    "8B": (4096, 14336, 32, 32, 8, 128256, False, "llama"),
} | {
    name.upper(): (*shapes.SHAPES[name], shapes.VOCABULARY[name], name not in shapes.UNTIED, "qwen2")
    for name in ("0.5b", "1.5b", "7b")
}


def model(folder: Path, shape: str, layers: int | None, tokenizer: Path) -> Path:
    """A directory with a configuration, a tokenizer and no weights."""
    hidden, inner, own_layers, heads, keys, vocabulary, tied, family = SHAPES[shape]
    directory = folder / "model"
    directory.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, directory)
    values = {
        "architectures": ["Qwen2ForCausalLM" if family == "qwen2" else "LlamaForCausalLM"],
        "model_type": family, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers or own_layers, "num_attention_heads": heads, "num_key_value_heads": keys,
        "vocab_size": vocabulary, "tie_word_embeddings": tied, "max_position_embeddings": 32768,
        "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return directory


class Watch:
    """The most anonymous and kernel memory of a cgroup (version 1 or 2) while it is open."""

    def __init__(self, group: Path) -> None:
        self.anonymous = self.kernel = 0
        self._group, self._stop = group, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            found = dict(line.split() for line in (self._group / "memory.stat").read_text().splitlines())
            self.anonymous = max(self.anonymous, int(found.get("total_rss", found.get("anon", 0))))
            kernel = self._group / "memory.kmem.usage_in_bytes"
            now = kernel.read_text() if kernel.is_file() else found.get("kernel", "0")
            self.kernel = max(self.kernel, int(now))


def words(folder: Path, args: argparse.Namespace) -> list[str]:
    return [
        "--dataset", str(folder / "text.txt"), "--storage", str(folder / "storage"), "--placement", "path",
        "--state_format", "int8", "--durability", "none", "--max_length", str(args.length), "--packing",
        "--per_device_train_batch_size", "1", "--max_steps", str(args.steps), "--compute_dtype", args.compute,
    ]  # fmt: skip


def spillway(*given: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spillway", *given]
    return subprocess.run(command, capture_output=True, text=True, **options)


def dram(content: dict[str, Any]) -> dict[str, Any]:
    return dict(next(tier for tier in content["tiers"] if tier["name"] == "dram"))


def runs(folder: Path, shape: str, budget: str | None, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """With weights drawn at random, and if asked with those that were saved then."""
    (folder / "storage").mkdir()
    (folder / "text.txt").write_text("The river rises in the hills and runs to the sea. " * 2000, encoding="utf-8")
    facts = {
        "shape": shape, "layers": args.layers or SHAPES[shape][2], "length": args.length, "steps": args.steps,
        "compute": args.compute,
    }  # fmt: skip
    out = folder / "out"
    source = ["--model", str(model(folder, shape, args.layers, args.tokenizer)), "--init", "random"]
    found = facts | {"init": "random"} | measured([*source, *words(folder, args)], out, budget)
    yield found
    if args.pretrained and found["exit"] == 0:
        given = ["--model", str(out), "--init", "pretrained", *words(folder, args)]
        yield facts | {"init": "pretrained"} | measured(given, folder / "second", budget)


def measured(given: list[str], out: Path, budget: str | None) -> dict[str, Any]:
    given = [*given, "--output_dir", str(out)]
    if budget is None:
        planned = spillway("plan", *given, "--json")
        planned.check_returncode()
        budget = str(dram(json.loads(planned.stdout))["planned_peak"])
    from spillway.config.values import parse_size

    limit = int(parse_size(budget) * OVER)
    group = MemoryLimit(limit)
    began = time.perf_counter()
    try:
        with Watch(group.group) as watch:
            ran = spillway("train", *given, "--dram_budget", budget, preexec_fn=group.enter)
        killed = group.killed()
    finally:
        group.close()
    found: dict[str, Any] = {
        "dram_budget": budget, "exit": ran.returncode, "killed": killed,
        "seconds": round(time.perf_counter() - began, 1),
        "group": {"limit": limit, "anonymous": watch.anonymous, "kernel": watch.kernel},
    }  # fmt: skip
    if ran.returncode:
        return found | {"told": (ran.stderr or ran.stdout)[-500:]}
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return found | {"planned": dram(summary)["planned_peak"], "process_peak": summary["process_peak"]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--compute", default="bf16")
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args(argv)
    for word in args.shapes:
        shape, _, budget = word.partition("=")
        with tempfile.TemporaryDirectory(dir=args.back) as folder:
            for row in runs(Path(folder), shape, budget or None, args):
                print(json.dumps(row), flush=True)
                rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
                rows.append({"machine": processor()} | row)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
