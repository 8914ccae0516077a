"""Peak memory and time of a step against the length of its sequence: `spillway train` under its plan's own budget.

    python bench/long_context.py --model DIR [--lengths 1024 4096 8192 16384 32768] [--steps 2] [--untiled]
        [--placements dram path] [--back DIR] [-- WORDS]

Each length is planned without a limit, then trained with that plan's peak as `dram_budget`, in a cgroup that allows 2 %
more: packed rows, one sequence a step. Both plans' working sets and seconds are told, since a run measures its layers
more often.
WORDS go to both, as `--init random --tokenizer DIR` for a shape without weights. --untiled: with `token_tile: all`,
too, where that has room. --placements: each length with each; losses, norms and weights have equal bits, or this ends
with 1. --back: where files and storage are. The group's peak is of anonymous memory and the kernel's, looked at every
20 ms. Needs root. Results go to bench/results/long-context.json and long-context.png; rows of other lengths and
settings stay.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

from budget import OVER, Watch, dram, spillway  # noqa: E402
from figures import RESULTS, machine, processor, save  # noqa: E402

from spillway.demo.memory_limit import MemoryLimit  # noqa: E402

NAME = "long-context"
GIB = 1 << 30
FULL = 0.9  # of a row are tokens


def words(model: Path, text: Path, length: int, tile: str, steps: int, more: list[str]) -> list[str]:
    return [
        "--model", str(model), "--dataset", str(text), "--max_length", str(length), "--packing", "--token_tile", tile,
        "--per_device_train_batch_size", "1", "--max_steps", str(steps), "--activation_recompute", "all", *more,
    ]  # fmt: skip


def work_of(plan: dict[str, Any]) -> int:
    """Bytes of PyTorch's working set, as planned."""
    return sum(int(part["bytes"]) for part in plan["bytes"] if part["class"] == "working set")


def measured(folder: Path, length: int, given: list[str]) -> dict[str, Any]:
    out = folder / "out"
    planned = spillway("plan", *given, "--output_dir", str(out), "--json")
    if planned.returncode:
        return {"exit": planned.returncode, "told": planned.stderr[-500:]}
    plan = json.loads(planned.stdout)
    budget = int(dram(plan)["planned_peak"])
    found: dict[str, Any] = {"planned_bytes": budget, "working_set": work_of(plan),
                             "predicted_seconds": plan["predicted_step_seconds"]}  # fmt: skip
    group = MemoryLimit(int(budget * OVER))
    try:
        with Watch(group.group) as watch:
            ran = spillway(
                "train", *given, "--output_dir", str(out), "--dram_budget", str(budget), preexec_fn=group.enter
            )
        found |= {"exit": ran.returncode, "killed": group.killed(), "peak_bytes": watch.anonymous + watch.kernel}
    finally:
        group.close()
    if ran.returncode:
        return found | {"told": (ran.stderr or ran.stdout)[-500:]}
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [row["step_seconds"] for row in rows if row.get("tokens", 0) > FULL * length]  # the last row may be short
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    own = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    found["bits"] = bits(out, rows)
    found |= {"run_working_set": work_of(own), "run_predicted_seconds": own["predicted_step_seconds"],
              "compute_dtype": own["compute_dtype"]}  # fmt: skip
    return found | {"counted": seconds[1:] or seconds, "process_peak": summary["process_peak"]}


def bits(out: Path, rows: list[dict[str, Any]]) -> str:
    """A digest of every step's loss and norm, and of the weights at the end."""
    digest = hashlib.sha256(json.dumps([[row["loss"], row["grad_norm"]] for row in rows]).encode())
    for file in sorted(out.glob("model*.safetensors")):
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    for tile, colour in (("auto", "tab:blue"), ("all", "tab:gray")):
        own = [row for row in rows if row["token_tile"] == tile and row["exit"] == 0]
        lengths = [row["length"] for row in own]
        name = "in tiles" if tile == "auto" else "whole"
        left.plot(lengths, [row["peak_bytes"] / GIB for row in own], "o-", color=colour, label=f"{name}, measured")
        left.plot(lengths, [row["planned_bytes"] / GIB for row in own], "--", color=colour, label=f"{name}, planned")
        right.plot(lengths, [row["length"] / statistics.median(row["counted"]) for row in own], "o-", color=colour,
                   label=name)  # fmt: skip
    left.set_ylabel("peak of the process, GiB")
    right.set_ylabel("tokens a second")
    for axes in (left, right):
        axes.set_xlabel("tokens of a sequence")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32768])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--untiled", action="store_true")
    parser.add_argument("--placements", nargs="+", choices=("auto", "dram", "path"), default=["auto"])
    parser.add_argument("--back", type=Path, default=Path("/var/tmp"))
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["runs"] if file.is_file() else []
    tiles = ["auto", *(["all"] if arguments.untiled else [])]
    for length, tile, placement in itertools.product(arguments.lengths, tiles, arguments.placements):
        with tempfile.TemporaryDirectory(dir=arguments.back) as folder:
            text = Path(folder, "text.txt")
            line = "The river rises in the hills and runs to the sea. "
            text.write_text("\n".join([line * 20] * (length * arguments.steps // 20)), encoding="utf-8")
            where = ["--placement", placement]
            if placement == "path":
                where += ["--storage", tempfile.mkdtemp(dir=folder)]
            given = words(arguments.model, text, length, tile, arguments.steps, [*where, *arguments.words])
            found = {"model": arguments.model.name, "length": length, "token_tile": tile, "placement": placement}
            row = found | {"processor": processor()} | measured(Path(folder), length, given)
        print(json.dumps(row), flush=True)
        rows = [each for each in rows if {key: each.get(key) for key in found} != found] + [row]
        rows.sort(key=lambda each: [each[key] for key in found])
        save(NAME, {"machine": machine(), "runs": rows})
    own = [row for row in rows if row["model"] == arguments.model.name]
    if len({row["length"] for row in own}) > 1:
        plot(own, RESULTS / f"{NAME}.png")
    for length, tile in itertools.product(arguments.lengths, tiles):
        alike = [row for row in own if (row["length"], row["token_tile"], row["exit"]) == (length, tile, 0)]
        if len({row["bits"] for row in alike if row["placement"] in arguments.placements}) > 1:
            sys.exit(f"{length} tokens, tile {tile}: the placements have different results")


if __name__ == "__main__":
    main()
