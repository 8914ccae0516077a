"""What the machines that people have can train: the page docs/machines.md.

    machines.py plan [--machine NAME ...] [--model NAME ...] [--jobs N]   into bench/results/machines.json
    machines.py page                                                      from that file, into docs/machines.md

Every cell is a plan for a profile of profiles/ (`spillway plan --profile`), none is a measurement. A step has 32,768
tokens, 16 rows of 2,048; on the laptop, which has no GPU, 8 rows of 1,024. Full fine-tuning keeps exact AdamW states;
where these do not fit, states of 8 bits are planned, and the page says so. LoRA and QLoRA: rank 16 on all linear
layers, QLoRA over a base in NF4. A plan of `plan` replaces that of an earlier call.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import model_shapes
from shapes import FROZEN, FULL, model_flops

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "machines.json"
PAGE = HERE.parent / "docs" / "machines.md"
PROFILES = HERE.parent / "profiles"
MACHINES = {
    "laptop": "Laptop, 8 cores, 32 GiB, no GPU",
    "rtx-4090": "RTX 4090, 64 GiB",
    "workstation": "Workstation, 24 GiB GPU, 128 GiB, two drives",
    "h100": "H100 80 GB, 125 GiB",
}
MODELS = ("Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen3-30B-A3B")
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"method": "lora", "lora_r": 16, "lora_target_modules": "all-linear"},
    "QLoRA": {"method": "lora", "lora_r": 16, "lora_target_modules": "all-linear", "load_in_4bit": True},
}
ROWS = {"max_length": 2048, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
LAPTOP_ROWS = {"max_length": 1024, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
SHAPES = {model: model.split("-", 1)[1].lower().removeprefix("2.5-") for model in MODELS}  # names of bench/shapes.py
PEAKS = {"rtx-4090": 165e12, "workstation": 165e12, "h100": 989e12}  # dense bf16 by data sheet, operations a second
MEASURED_SHARE = 0.15  # of the peak, rounded: the least of three steps of 1.5B in a GPU's tiles (docs/machines.md)
DRIVE_BYTES = 600e12  # that a drive's maker lets it write
STEP_TOKENS = 32_768
STEPS_OF_GPUS = (  # every step of Spillway that a GPU was timed with: GPU and call, shape, tokens, conditions, place
    ("H100, first day", "0.5b", 16_384, "6 GiB, the CPUs' `token_tile`", "h100:steps.0.5b.cpu_tiles_6_gib"),
    ("H100, first day", "0.5b", 16_384, "40 GiB", "h100:steps.0.5b.gpu_tiles_40_gib_deterministic"),
    ("H100, first day", "0.5b", 16_384, "40 GiB, `full_determinism: false`",
     "h100:steps.0.5b.gpu_tiles_40_gib_any_order"),
    ("H100, first day", "1.5b", 32_768, "8 GiB, the CPUs' `token_tile`", "h100:steps.1.5b.cpu_tiles_8_gib"),
    ("H100, first day", "1.5b", 32_768, "8 GiB", "h100:steps.1.5b.gpu_tiles_8_gib"),
    ("H100, second day", "0.5b", 16_384, "6 GiB", "h100:second_day.steps.0.5b, 6 GiB"),
    ("H100, second day", "1.5b", 32_768, "8 GiB", "h100:second_day.steps.1.5b, 8 GiB"),
    ("H200", "0.5b", 16_384, "6 GiB, before two changes", "h200:steps.before"),
    ("H200", "0.5b", 16_384, "6 GiB, after the first change", "h200:steps.slices_and_norms"),
    ("H200", "0.5b", 16_384, "6 GiB, after both", "h200:steps.all"),
    ("H200", "1.5b", 32_768, "8 GiB, after both", "h200:steps.all 1.5b"),
)  # fmt: skip
OFFLOADED = "1.5b DeepSpeed 0.19.8 ZeRO-3, weights and optimizer in host memory, 24 GiB"  # a step of the H100's file
FEWER_BITS = {"state_format": "int8"}
FEWER_BITS_SHOWN = " Where these do not fit, the cell has 8-bit states and says so."
MILLION = 1_000_000
GIB = 1 << 30
Row = dict[str, Any]
Cell = tuple[str, str, str]


def plan_cell(cell: Cell) -> Row:
    """The row of a machine, a model and a method."""
    machine, model, method = cell
    keys = (LAPTOP_ROWS if machine == "laptop" else ROWS) | METHODS[method]
    row: Row = {"machine": machine, "model": model, "method": method, "states": "exact"}
    found = plan_with(machine, model, keys)
    if not found["fits"] and method == "full":
        smaller = plan_with(machine, model, keys | FEWER_BITS)
        if smaller["fits"]:
            return add_share(row | {"states": "int8"} | smaller)
    return add_share(row | found)


def plan_with(machine: str, model: str, keys: dict[str, Any]) -> Row:
    from spillway.config import resolve
    from spillway.errors import DoesNotFit
    from spillway.run.machines import plan_step

    profile = PROFILES / f"{machine}.json"
    with tempfile.TemporaryDirectory() as directory:
        words = {"model": str(model_shapes.write(Path(directory), model)), "profile": str(profile), **keys}
        try:
            plan = plan_step(resolve({}, words), profile.read_text(encoding="utf-8"), lambda _: None).plan
        except DoesNotFit as error:
            return {"fits": False, "why": str(error)}
    rate = plan["tokens_per_second"]
    held = {entry["class"]: entry["bytes"] for entry in plan["bytes"] if entry["tier"] == "path:0"}
    return {
        "fits": True,
        "step_seconds": plan["predicted_step_seconds"],
        "tokens_per_second": rate,
        "hours_per_million_tokens": MILLION / rate / 3600,
        "written_bytes_per_step": sum(path["written"] for path in plan.get("path_bytes_per_step", {}).values()),
        "bottleneck": plan["bottleneck"],
        "planned_peaks": {tier["name"]: tier["planned_peak"] for tier in plan["tiers"]},
        "drive_bytes": held,
    }


def add_share(row: Row) -> Row:
    """A row with the planned share of its GPU's peak: operations of the model, without recomputation. A second rate is
    that of a GPU which reaches MEASURED_SHARE at most."""
    if not row["fits"] or row["machine"] not in PEAKS:
        return row
    operations = model_flops(
        SHAPES[row["model"]],
        int(row.get("length", ROWS["max_length"])),
        STEP_TOKENS,
        per_weight=FULL if row["method"] == "full" else FROZEN,
    )
    share = operations / row["step_seconds"] / PEAKS[row["machine"]]
    derived = row["tokens_per_second"] * min(1.0, MEASURED_SHARE / share)
    return row | {"share_of_peak": share, "tokens_per_second_at_measured_share": derived}


def measure_shares() -> list[Row]:
    """The share of the peak that each measured step of a GPU reached. An H200 computes as an H100 does."""
    rows = []
    for gpu, shape, tokens, conditions, place in STEPS_OF_GPUS:
        seconds = statistics.median(read_step(place)["counted"])
        share = model_flops(shape, int(ROWS["max_length"]), tokens) / seconds / PEAKS["h100"]
        rows.append({"gpu": gpu, "shape": shape, "conditions": conditions, "seconds": seconds, "share_of_peak": share})
    return rows


def read_step(place: str) -> Row:
    """An entry of `steps` in a GPU's file of results. Its name may have dots."""
    gpu, _, path = place.partition(":")
    parent, _, names = path.partition("steps.")
    held = json.loads((HERE / "results" / f"gpu-nvidia-{gpu}.json").read_text(encoding="utf-8"))
    steps = (held[parent.rstrip(".")] if parent else held)["steps"]
    shape = next((name for name in steps if names.startswith(f"{name}.")), None)
    return dict(steps[shape][names.removeprefix(f"{shape}.")] if shape else steps[names])


def read() -> list[Row]:
    return list(json.loads(RESULTS.read_text(encoding="utf-8"))["plans"]) if RESULTS.is_file() else []


def cell_of(row: Row) -> Cell:
    return row["machine"], row["model"], row["method"]


def plan_all(arguments: argparse.Namespace) -> None:
    cells = [(machine, model, method)
             for model in arguments.model for machine in arguments.machine for method in METHODS]  # fmt: skip
    rows = {cell_of(row): row for row in read()}
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=8) as pool:
        for row in pool.imap_unordered(plan_cell, cells):
            rows[cell_of(row)] = row
            print(*cell_of(row), words_of(row), flush=True)
            write(rows)


def write(rows: dict[Cell, Row]) -> None:
    order = sorted(rows.values(), key=lambda it: [*map(str, cell_of(it))])
    content = {"is": "planned", "measured_shares": measure_shares(), "plans": order}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def rounded(value: float) -> str:
    """Two digits that count, and all before the point."""
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{round(value, digits):,.{digits}f}"


def read_slower_rate(row: Row) -> float | None:
    """The derived rate, if it is below the planned one."""
    slower: float | None = row.get("tokens_per_second_at_measured_share")
    return None if slower is None or slower >= row["tokens_per_second"] else slower


def words_of(row: Row) -> str:
    """A cell of the page."""
    if not row["fits"]:
        return "does not fit"
    states = " (8-bit states)" if row["states"] == "int8" else ""
    wear = row["written_bytes_per_step"] / 1e9
    written = f", {rounded(wear)} GB written, {describe_life(row)}" if wear >= 0.05 else ""
    slower = read_slower_rate(row)
    derived = "" if slower is None else f", *{rounded(slower)} at {MEASURED_SHARE * 100:.0f} %*"
    return (
        f"{rounded(row['step_seconds'])} s, {rounded(row['tokens_per_second'])} tokens/s{derived}, "
        f"{rounded(row['hours_per_million_tokens'])} h{describe_slower_hours(row)}{written}{states}"
    )


def describe_slower_hours(row: Row) -> str:
    """Hours for a million tokens at the derived rate."""
    slower = read_slower_rate(row)
    return "" if slower is None else f", *{rounded(MILLION / slower / 3600)} h at {MEASURED_SHARE * 100:.0f} %*"


def describe_life(row: Row) -> str:
    """Days of training at the planned rate until a row has written DRIVE_BYTES."""
    days = DRIVE_BYTES / row["written_bytes_per_step"] * row["step_seconds"] / 86_400
    return f"{DRIVE_BYTES / 1e12:.0f} TB last {rounded(days)} days"


def describe_limits(row: Row) -> str:
    """A cell of a method's second table: the bottleneck and the planned peaks of memory and of each drive."""
    if not row["fits"]:
        return "does not fit"
    peaks = row["planned_peaks"]
    names = {"device": "GPU", "dram": "DRAM"}
    memory = [f"{name} {peaks[tier] / GIB:.1f} GiB" for tier, name in names.items() if tier in peaks]
    return ", ".join([f"`{row['bottleneck']}`", *memory, *describe_drives(peaks)])


def describe_drives(peaks: Row) -> list[str]:
    """The space that a plan takes on its drives, which share the bytes equally in all plans of the page."""
    held = [peak for tier, peak in peaks.items() if tier.startswith("path:") and peak >= GIB / 2]
    if not held:
        return []
    space = f"{max(held) / GIB:.0f} GiB"
    return [f"drive {space}" if len(held) == 1 else f"{len(held)} drives of {space} each"]


def describe_share(row: Row) -> str:
    """A cell of the table of shares: percent, and a mark where the GPU waits for drives."""
    if not row["fits"]:
        return "does not fit"
    waits = "" if row["bottleneck"] == "compute" else " (drive)"
    return f"{describe_percent(row)}{waits}"


def describe_percent(row: Row) -> str:
    percent = row["share_of_peak"] * 100
    return f"{percent:.0f} %" if percent >= 1 else "below 1 %"


def draw_shares(known: dict[Cell, Row]) -> Iterator[str]:
    """A row for each machine with a GPU and each method, a column for each model."""
    yield f"| | {' | '.join(MODELS)} |"
    yield "|---" * (len(MODELS) + 1) + "|"
    for machine in PEAKS:
        for method in METHODS:
            rows = [known.get((machine, model, method)) for model in MODELS]
            cells = ["not planned" if row is None else describe_share(row) for row in rows]
            yield f"| {MACHINES[machine].split(',')[0]}, {method} | {' | '.join(cells)} |"


def draw_measured_shares() -> Iterator[str]:
    yield "| GPU | full step of | limit of GPU memory, and conditions | seconds | share of the peak |"
    yield "|---|---|---|---|---|"
    for row in measure_shares():
        share = rounded(row["share_of_peak"] * 100)
        yield f"| {row['gpu']} | {row['shape'].upper()} | {row['conditions']} | {row['seconds']:.2f} | {share} % |"


def read_products(machine: str) -> str:
    """The rate of matrix products that a profile assumes, beside the peak."""
    gpu = json.loads((PROFILES / f"{machine}.json").read_text(encoding="utf-8"))["gpus"][0]
    return f"{gpu['flops_per_second'] / 1e12:.0f} of {PEAKS[machine] / 1e12:.0f} TFLOPS"


def read_drive(machine: str) -> str:
    """The rates of its drive that a profile assumes."""
    path = json.loads((PROFILES / f"{machine}.json").read_text(encoding="utf-8"))["paths"][0]
    reads, writes = (path[f"{way}_bytes_per_second"] / 1e9 for way in ("read", "write"))
    return f"reads {reads:.1f} GB/s and writes {writes:.1f} GB/s"


def list_shares(shape: str) -> list[str]:
    """Shares of the steps of a shape in a GPU's tiles, in percent, the smallest first."""
    rows = [row for row in measure_shares() if row["shape"] == shape and "CPU" not in row["conditions"]]
    return [rounded(share * 100) for share in sorted(row["share_of_peak"] for row in rows)]


def describe_range() -> str:
    *others, last = list_shares("1.5b")
    return f"{', '.join(others)} and {last}"


def describe_small() -> str:
    first, *_, last = list_shares("0.5b")
    return f"{first} to {last}"


def describe_others() -> str:
    operations = model_flops("1.5b", int(ROWS["max_length"]), STEP_TOKENS)
    names = {"1.5b plain without offload": "plain PyTorch without offload reached",
             OFFLOADED: "DeepSpeed ZeRO-3 with offload reached"}  # fmt: skip
    shares = []
    for name, words in names.items():
        seconds = statistics.median(read_step(f"h100:second_day.steps.{name}")["counted"])
        shares.append(f"{words} {rounded(operations / seconds / PEAKS['h100'] * 100)} %")
    return " and ".join(shares)


def explain_measured_step(known: dict[Cell, Row]) -> Iterator[str]:
    """Why the H100's cell for 1.5B and its measured step differ."""
    row = known.get(("h100", "Qwen2.5-1.5B", "full"))
    if row is None:
        return
    step = read_step("h100:second_day.steps.1.5b, 8 GiB")
    planned, measured = rounded(row["step_seconds"]), rounded(statistics.median(step["counted"]))
    peak, limit = step["device_peak"] / GIB, step["gpu_memory"] / GIB
    yield f"The H100's cell for 1.5B in full plans {planned} s. The measured step of the second day took {measured} s,"
    yield "with other settings:"
    yield ""
    yield "| | memory of the GPU | kernels | seconds |"
    yield "|---|---|---|---|"
    yield (
        f"| the cell (plan) | {row['planned_peaks']['device'] / GIB:.0f} GiB | "
        f"with fused kernels and joined micro-batches | {planned} planned |"
    )
    yield (
        f"| the run of the second day | {peak:.1f} GiB, by a limit of {limit:.0f} GiB | neither | "
        f"{rounded(step['predicted_seconds'])} planned, {measured} measured |"
    )


def draw_table(known: dict[Cell, Row], method: str, describe: Callable[[Row], str]) -> Iterator[str]:
    """A row for each machine, a column for each model."""
    yield f"| | {' | '.join(MODELS)} |"
    yield "|---" * (len(MODELS) + 1) + "|"
    for machine, name in MACHINES.items():
        rows = [known.get((machine, model, method)) for model in MODELS]
        cells = ["not planned" if row is None else describe(row).replace(", ", "<br>") for row in rows]
        yield f"| {name} | {' | '.join(cells)} |"


def draw_method(method: str, first: Iterable[str], between: str, second: Iterable[str]) -> list[str]:
    """The section of a method: two tables, and the sentence between them."""
    return [f"## {method[0].upper() + method[1:]}", "", *first, "", between, "", *second, ""]


def page(rows: list[Row]) -> str:
    known = {cell_of(row): row for row in rows}
    smaller = any(row["states"] != "exact" for row in rows)
    parts = [
        "# Which machine trains which model",
        "",
        "Every cell is **planned**: the planner's answer for a machine that a file of [profiles/](../profiles)",
        "describes. No cell is a measurement. For your own machine, see",
        "[a plan for another machine](how-to/plan-elsewhere.md).",
        "",
        "A cell has the seconds of a step, the rate, the hours for a million tokens, and the bytes that a step writes",
        "to drives. The second table of a method has the bottleneck, the memory and the space on each drive.",
        "",
        "- Numbers in *italics* are **derived**: rate and hours of a GPU that reaches 15 % of its peak. An H100",
        "  reached this share in a full step of 1.5B ([measured shares](#measured-shares)). No GPU has timed a step of",
        "  LoRA or QLoRA, so the derived numbers of both methods rest on full steps.",
        "- A cell of a GPU without italics waits for a drive even at 15 %, so the planned time stands.",
        f"- The RTX 4090's profile assumes a drive that {read_drive('rtx-4090')}, by common data sheets.",
        "  No GPU step with a drive was timed. The plans and the derived numbers assume these rates without a pause,",
        "  beside compute.",
        "- `600 TB last 3 days`: at the planned rate, a drive rated for 600 TB is worn out after three days of",
        "  training without a pause. If a machine has two drives, 600 TB is the sum of both ratings.",
        "- [The smallest GPU memory](gpu-memory.md) has rows of 4,096 and 8,192 tokens, and smaller cards.",
        "- If the base of your adapters fits the GPU, you do not need offload. A trainer without offload, such as",
        "  Unsloth or TRL, keeps the whole state on the GPU. Bases in NF4 up to 14B and of 30B-A3B fit 24 GiB. On",
        "  80 GiB the base of every model in these tables fits.",
        "- A step has 32,768 tokens, 16 rows of 2,048. The laptop's step has 8,192, 8 rows of 1,024.",
        "- Full fine-tuning keeps exact AdamW states." + (FEWER_BITS_SHOWN if smaller else ""),
        "- LoRA and QLoRA train rank 16 on all linear layers, and no experts. QLoRA keeps the base in NF4.",
        "- No GPU has run 30B-A3B. On CPUs the plans of its steps were far off ([how",
        "  far](results.md#plans-beside-measured-steps)).",
        "- The `comment` of each profile states its assumptions, such as the rates of matrix multiplications and of",
        "  drives.",
        "- Drives hold optimizer states. They also hold saved activations if a drive is faster than recomputing them.",
        "- A bottleneck has the plan's name: `compute` is the GPU, or the CPUs without one. `path:0` is the drive, and",
        "  `paths` are the drives together.",
        "- A peak in DRAM counts the whole process, PyTorch included. `dram_budget` and `gpu_memory` limit the peaks.",
        "- Drive space includes the copies that make steps durable. Checkpoints in `output_dir` come on top.",
        "- Plans assume that all of the GPU's memory is free. The driver and a desktop take part of it, and then the",
        "  plan changes.",
        f"- The H100's profile has one drive that {read_drive('h100')}. Full training beyond its DRAM",
        "  waits for that drive. A faster drive shortens these steps. No plan here has one.",
        "",
        "## How far to trust the GPU rows",
        "",
        "Rates of GPUs are optimistic. The profiles assume a rate for each kind of operation. For the RTX 4090 they",
        f"assume {read_products('rtx-4090')} for matrix multiplications. The plans count on passes that join",
        "micro-batches and on fused kernels. No GPU has run either.",
        "",
        "The table has the share of the GPU's peak that each plan implies. A share counts the operations of the model,",
        "without recomputation, and divides them by the data sheet's dense bf16 rate. If the plan has 45 % and the GPU",
        "reaches 15 %, the step takes three times as long. `(drive)` marks cells whose GPU waits for drives.",
        "",
        *draw_shares(known),
        "",
        "## Measured shares",
        "",
        "The table has every step of Spillway that was timed on a GPU, by the median of the counted steps. Each step",
        "trained all weights, which were random. All state outside the GPU was in DRAM.",
        "",
        *draw_measured_shares(),
        "",
        "- **Why 15 %.** 1.5B is the largest model that a GPU has trained. Three of its steps had the GPUs'",
        f"  `token_tile`, and reached {describe_range()} %. The derived numbers use the slowest of the three. Later",
        "  code has two speed corrections that this step lacked.",
        f"- **15 % is no lower bound.** Steps of 0.5B with the GPUs' `token_tile` reached {describe_small()} %.",
        "- **Adapters.** LoRA and QLoRA compute no gradients of the base, and QLoRA decodes NF4. No one has measured",
        "  the share of either method.",
        "- **The CPUs' `token_tile`.** Two rows ran with CPU-sized tiles by mistake, and so with too many small",
        "  kernels. Later code gives GPUs a larger `token_tile`.",
        "- **Two days.** The step of 1.5B on the H100 had equal settings on both days, and newer code on the second",
        "  day. No file says why the second day was slower.",
        f"- **Others on the H100.** In full steps of 1.5B, {describe_others()}.",
        "",
        *explain_measured_step(known),
        "",
        "[Plans beside measured steps](results.md#plans-beside-measured-steps) has the seconds, and the worst errors.",
        "",
    ]
    for method in METHODS:
        limits = "Bottleneck of each step, planned peaks of GPU memory and DRAM, and drive space:"
        parts += draw_method(
            method, draw_table(known, method, words_of), limits, draw_table(known, method, describe_limits)
        )
    parts += ["Made by `bench/machines.py` from [`machines.json`](../bench/results/machines.json).", ""]
    return "\n".join(parts)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a program that plans models and writes their page."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "page"))
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=2)
    return parser


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--machine", nargs="+", choices=tuple(MACHINES), default=list(MACHINES))
    arguments = parser.parse_args()
    if arguments.what == "plan":
        plan_all(arguments)
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
