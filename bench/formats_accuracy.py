"""What the state formats cost in quality: a small Llama from one seed, first on a text, then on questions and answers.

    python bench/formats_accuracy.py --tokenizer DIR --text FILE --questions TRAIN.jsonl --held-out TEST.jsonl --out DIR

For `exact`, `bf16` and `int8` the same two runs: pretraining on the text from random weights, and fine-tuning what came
of it on question and answer pairs; everything but `state_format` is equal, the order of the data too. To see what a
difference means, `exact` runs once more from another seed. Of the text's last tenth a part, and `--rows` of the test
questions, are held out. Goals: the last evaluation loss of `bf16` within 0.5 % and of `int8` within 1 % of `exact`.
Results: bench/results/formats-accuracy.json and .png. A finished run in --out is not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import RESULTS, machine, save

FORMATS = {"exact": 42, "bf16": 42, "int8": 42, "exact, another seed": 43}
GOALS = {"bf16": 0.005, "int8": 0.01}
MODEL = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 3,
         "num_key_value_heads": 3, "head_dim": 64}  # fmt: skip
HELD_OUT = 40_000  # characters
PHASES = {"pretraining": ("text", 1e-3, 40), "fine-tuning": ("questions", 3e-4, 20)}


def make_start(arguments: argparse.Namespace) -> Path:
    """A configuration and a tokenizer; no weights."""
    start = Path(arguments.out) / "start"
    start.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (arguments.tokenizer / name).exists():
            shutil.copy(arguments.tokenizer / name, start)
    config = json.loads((arguments.tokenizer / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | MODEL, indent=1))
    return start


def make_data(arguments: argparse.Namespace) -> dict[str, tuple[Path, Path]]:
    out = Path(arguments.out)
    text = arguments.text.read_text()
    cut = len(text) * 9 // 10
    (out / "train.txt").write_text(text[:cut])
    (out / "held_out.txt").write_text(text[cut : cut + HELD_OUT])
    rows = arguments.held_out.read_text().splitlines()[: arguments.rows]
    (out / "held_out.jsonl").write_text("\n".join(rows) + "\n")
    return {
        "text": (out / "train.txt", out / "held_out.txt"),
        "questions": (arguments.questions, out / "held_out.jsonl"),
    }


def train(words: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "spillway", "train", *words], check=True, stdout=subprocess.DEVNULL)


def runs(arguments: argparse.Namespace, start: Path, data: dict[str, tuple[Path, Path]], name: str) -> dict[str, Any]:
    """Both phases of one format: the losses of each."""
    found: dict[str, Any] = {}
    model, init = start, "random"
    for phase, (kind, rate, warmup) in PHASES.items():
        out = Path(arguments.out) / name.replace(", ", "-").replace(" ", "-") / phase
        steps = arguments.steps
        words = ["--model", str(model), "--init", init, "--dataset", str(data[kind][0]), "--output_dir", str(out)]
        words += ["--eval_dataset", str(data[kind][1]), "--max_steps", str(steps), "--eval_steps", str(steps // 4)]
        words += ["--per_device_train_batch_size", "8", "--max_length", "256", "--learning_rate", str(rate)]
        words += ["--lr_scheduler_type", "cosine", "--warmup_steps", str(warmup), "--weight_decay", "0.01"]
        words += ["--seed", str(FORMATS[name]), "--state_format", name.split(",")[0]]
        words += ["--save_only_model", "true"]
        if not (out / "summary.json").exists():
            train([*words, "--overwrite"])
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        found[phase] = {
            "train": [[row["step"], row["loss"]] for row in rows if "loss" in row],
            "held_out": [[row["step"], row["eval_loss"]] for row in rows if "eval_loss" in row],
        }
        found[phase]["final"] = found[phase]["held_out"][-1][1]
        print(f"{name:20} {phase:12} held-out loss {found[phase]['final']:.5f}", flush=True)
        model, init = out, "pretrained"
    return found


def table(found: dict[str, Any]) -> None:
    print(f"{'':20} " + " ".join(f"{phase:>26}" for phase in PHASES))
    for name, it in found.items():
        cells = []
        for phase in PHASES:
            final, base = it[phase]["final"], found["exact"][phase]["final"]
            it[phase]["against_exact"] = final / base - 1
            cells.append(f"{final:14.5f} ({final / base - 1:+8.3%})")
        print(f"{name:20} " + " ".join(f"{cell:>26}" for cell in cells))
    for name, goal in GOALS.items():
        worst = max(abs(found[name][phase]["against_exact"]) for phase in PHASES)
        print(f"{name}: within {worst:.3%} of exact; goal {goal:.1%}: {'held' if worst <= goal else 'MISSED'}")


def draw(found: dict[str, Any], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), dpi=120, layout="constrained")
    for column, phase in enumerate(PHASES):
        base = dict(map(tuple, found["exact"][phase]["held_out"]))
        for name, it in found.items():
            points = it[phase]["held_out"]
            style = "--" if "seed" in name else "-"
            steps = [step for step, _ in points]
            panels[0, column].plot(steps, [loss for _, loss in points], style, marker="o", markersize=3, label=name)
            against = [100 * (loss / base[step] - 1) for step, loss in points]
            panels[1, column].plot(steps, against, style, marker="o", markersize=3, label=name)
        panels[0, column].set(title=phase, ylabel="held-out loss (nats per token)")
        panels[1, column].set(xlabel="step", ylabel="against exact (%)")
        for name, goal in GOALS.items():
            for sign in (1, -1):
                panels[1, column].axhline(100 * sign * goal, linewidth=0.7, color="gray", linestyle=":")
            edge = panels[1, column].get_yaxis_transform()
            panels[1, column].text(
                0.99, 100 * goal, f"goal of {name}", transform=edge, fontsize=7, ha="right", va="bottom"
            )
        panels[0, column].legend()
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--tokenizer", "--text", "--questions", "--held-out", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300, help="of each phase")
    parser.add_argument("--rows", type=int, default=100, help="held-out questions")
    parser.add_argument("--formats", default=";".join(FORMATS), help="with semicolons")
    arguments = parser.parse_args()
    start = make_start(arguments)
    data = make_data(arguments)
    found = {name: runs(arguments, start, data, name) for name in arguments.formats.split(";")}
    if "exact" not in found:
        return
    table(found)
    draw(found, RESULTS / "formats-accuracy.png")
    save("formats-accuracy", {"machine": machine(), "model": MODEL, "steps": arguments.steps, "formats": found})


if __name__ == "__main__":
    main()
