"""A model much larger than its memory, trained for some steps: killed once, resumed, saved, and loaded elsewhere.

    large.py --tokenizer DIR [--shape 3B] [--budget 4GiB] [--durability step] [--steps 4] [--kill-after 2] [options]

SHAPE is one of budget.py's, with its full vocabulary and depth and with weights drawn at random; everything lies on a
storage path in --back, unless --placement says otherwise. `spillway train` runs in a cgroup that allows 2 % more than
the plan's peak. With --kill-after N it gets SIGKILL when N steps are in its metrics, and `spillway resume` goes on in
a group of the same size. transformers then loads the checkpoint, shard by shard, and computes the loss of a piece of
the text. A loss more than 5 % above the last training loss is an error: the file does not hold what was trained.
--profiles: what `spillway plan` says of the same run on those machines. The group's peak is of anonymous memory and
the kernel's, looked at every 20 ms. Needs root. Results go to bench/results/large.json; the row of another setting
stays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import budget  # noqa: E402
from figures import RESULTS, machine, processor, save  # noqa: E402

from spillway.demo.memory_limit import MemoryLimit  # noqa: E402

NAME = "large"
SENTENCE = "The river rises in the hills and runs to the sea. "
LOOK = 0.5  # seconds between two looks at the metrics
LOSS_LIMIT = 1.05  # times the last training loss: the most that the loss of the text may be
LOADED = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
text, length = open(sys.argv[2], encoding="utf-8").read(), int(sys.argv[3])
ids = AutoTokenizer.from_pretrained(sys.argv[1])(text, return_tensors="pt").input_ids[:, :length]
with torch.no_grad():
    print(float(model(input_ids=ids, labels=ids).loss))
"""


def rows_of(out: Path) -> list[dict[str, Any]]:
    file = out / "metrics.jsonl"
    if not file.is_file():
        return []
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [row for row in found if "step_seconds" in row]


def write_rows(folder: Path, sentence: str, length: int, count: int) -> tuple[Path, Path]:
    """A text of more than `length` tokens, and a dataset of `count` rows that are all that text."""
    text, rows = folder / "text.txt", folder / "rows.jsonl"
    text.write_text(sentence * length, encoding="utf-8")
    rows.write_text((json.dumps({"text": sentence * length}) + "\n") * count, encoding="utf-8")
    return text, rows


def limited(given: list[str], out: Path, limit: int, kill_after: int) -> dict[str, Any]:
    """One process of the run. `kill_after`: steps in its metrics after which it is killed; 0: it is not."""
    group = MemoryLimit(limit)
    began = time.perf_counter()
    try:
        with budget.Watch(group.group) as watch:
            command = [sys.executable, "-m", "spillway", *given]
            with open(out.with_suffix(".log"), "ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=group.enter)
            while process.poll() is None:
                if kill_after and len(rows_of(out)) >= kill_after:
                    process.kill()
                time.sleep(LOOK)
        killed = group.killed()
    finally:
        group.close()
    return {
        "exit": process.returncode, "killed_by_the_group": killed, "seconds": round(time.perf_counter() - began, 1),
        "peak_bytes": watch.anonymous + watch.kernel,
    }  # fmt: skip


def measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    out = folder / "out"
    (folder / "storage").mkdir()
    text, rows = write_rows(folder, SENTENCE, arguments.length, arguments.steps)
    given = [
        "--model", str(budget.model(folder, arguments.shape, None, arguments.tokenizer)), "--init", "random",
        "--dataset", str(rows), "--storage", str(folder / "storage"), "--placement", arguments.placement,
        "--state_format", arguments.state_format, "--durability", arguments.durability,
        "--max_length", str(arguments.length), "--per_device_train_batch_size", "1",
        "--max_steps", str(arguments.steps), "--dram_budget", arguments.budget, "--output_dir", str(out),
        "--save_only_model", str(arguments.save_only_model),
    ]  # fmt: skip
    planned = budget.spillway("plan", *given, "--json")
    if planned.returncode:
        return {"exit": planned.returncode, "told": planned.stderr[-1000:]}
    plan = json.loads(planned.stdout)
    found: dict[str, Any] = {
        "planned_bytes": budget.dram(plan)["planned_peak"], "predicted_seconds": plan["predicted_step_seconds"],
        "bottleneck": plan["bottleneck"],
    }  # fmt: skip
    if arguments.only_plan:
        return found
    limit = int(found["planned_bytes"] * budget.OVER)
    found["processes"] = [limited(["train", *given], out, limit, arguments.kill_after)]
    if arguments.kill_after:
        found["rows_before_the_kill"] = len(rows_of(out))
        found["processes"].append(limited(["resume", str(out)], out, limit, 0))
    metrics = rows_of(out)
    found["volume_bytes"] = sum(file.stat().st_size for file in (folder / "storage").iterdir())
    found["step_seconds"] = [row["step_seconds"] for row in metrics]
    found["losses"] = [row.get("loss") for row in metrics]
    last = found["processes"][-1]["exit"]
    if last:
        return found | {"exit": last, "told": out.with_suffix(".log").read_text(encoding="utf-8")[-1000:]}
    files = sorted(out.glob("*.safetensors"))
    return found | {
        "exit": 0, "scored": "text",
        "checkpoint_files": len(files), "checkpoint_bytes": sum(file.stat().st_size for file in files),
        "loss_in_transformers": check_loss(out, text, arguments.length, metrics[-1]["loss"]),
    }  # fmt: skip


def check_loss(checkpoint: Path, text: Path, length: int, trained: float) -> float:
    """The loss that transformers computes of the first `length` tokens of a text. SystemExit where the loss is more
    than LOSS_LIMIT times `trained`, the last training loss on that text."""
    words = [sys.executable, "-c", LOADED, str(checkpoint), str(text), str(length)]
    loaded = subprocess.run(words, capture_output=True, text=True)
    if loaded.returncode != 0:
        raise SystemExit(f"{checkpoint} cannot be loaded: {loaded.stderr.strip().rpartition(chr(10))[2]}")
    loss = float(loaded.stdout)
    if not loss <= LOSS_LIMIT * trained:
        raise SystemExit(
            f"{checkpoint}: the loss of the text is {loss:.3f}, more than {LOSS_LIMIT} times the last training loss, "
            f"{trained:.3f}. The checkpoint does not hold what was trained."
        )
    return loss


def on_profiles(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step there, of as many tokens, with the memory that the machine has."""
    found = {}
    for profile in arguments.profiles:
        given = [
            "--model", str(folder / "model"), "--profile", str(profile), "--dataset", "none", "--output_dir", "none",
            "--max_length", str(arguments.length), "--per_device_train_batch_size", "1",
            "--state_format", arguments.state_format,
        ]  # fmt: skip
        told = budget.spillway("plan", *given, "--json")
        found[profile.stem] = (
            json.loads(told.stdout)["predicted_step_seconds"] if told.returncode == 0 else told.stderr[-300:]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--shape", choices=tuple(budget.SHAPES), default="3B")
    parser.add_argument("--budget", default="4GiB")
    parser.add_argument("--state-format", default="int8")
    parser.add_argument("--durability", default="step")
    parser.add_argument("--placement", default="path", help="auto: what the budget has room for lies in DRAM")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--profiles", type=Path, nargs="*", default=[])
    parser.add_argument("--save-only-model", action="store_true", help="where states have no room twice")
    parser.add_argument("--only-plan", action="store_true")
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    setting = ("shape", "budget", "state_format", "durability", "placement", "length")
    key = {name: getattr(arguments, name) for name in setting}
    here = machine() | processor()
    with tempfile.TemporaryDirectory(dir=arguments.back) as name:
        row = key | {"machine": here} | measured(Path(name), arguments)
        row["profiles"] = on_profiles(Path(name), arguments)
    print(json.dumps(row), flush=True)
    if arguments.only_plan:
        return
    file = RESULTS / f"{NAME}.json"
    rows = json.loads(file.read_text())["runs"] if file.is_file() else []
    save(NAME, {"runs": [each for each in rows if not key.items() <= each.items()] + [row]})


if __name__ == "__main__":
    main()
