"""The smallest GPU memory that trains a model: the page docs/gpu-memory.md.

    smallest.py plan [--model NAME ...] [--method NAME ...] [--length N ...]   into bench/results/smallest.json
    smallest.py page                                                           from that file, into docs/gpu-memory.md

Every cell is a plan for profiles/rtx-4090.json (`spillway plan --profile rtx-4090`), none is a measurement. A step has
32,768 tokens, in micro-batches of one row. `gpu_memory` is bisected to one MiB: the plan at the smallest value fits,
and the plan at 1 MiB less does not. Methods are those of bench/machines.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machines
import model_shapes
from machines import GIB, METHODS, MODELS, STEP_TOKENS, Row, rounded

if TYPE_CHECKING:
    from spillway.run.machines import Planned

RESULTS = machines.HERE / "results" / "smallest.json"
PAGE = machines.HERE.parent / "docs" / "gpu-memory.md"
MACHINE = "rtx-4090"
CARD = 24  # GiB
LENGTHS = (2048, 4096, 8192)
SIZES = (12, 20)  # of `gpu_memory` beside the smallest and the card's, in GiB
KEYS = {"per_device_train_batch_size": 1, "pass_tokens": 0, "token_tile": 2048}
MIB = 1 << 20
Cell = tuple[str, str, int]


def plan_cell(cell: Cell) -> Row:
    """The row of a model, a method and a length."""
    model, method, length = cell
    from spillway.errors import DoesNotFit

    row: Row = {"machine": MACHINE, "model": model, "method": method, "length": length}
    try:
        with tempfile.TemporaryDirectory() as directory:
            planned = open_plan(Path(directory), model, METHODS[method], length)
    except DoesNotFit as error:
        return row | {"smallest_mib": 0, "plans": {}, "why": str(error)}
    smallest, plan = find_smallest(planned)
    plans = {"smallest": plan, f"{CARD}": planned.plan}
    plans |= {f"{size}": plan_within(planned, size * GIB) for size in SIZES if size * GIB >= smallest * MIB}
    return row | {"smallest_mib": smallest, "plans": {name: summarise(row, plan) for name, plan in plans.items()}}


def open_plan(directory: Path, model: str, keys: dict[str, Any], length: int) -> Planned:
    """The plan within the whole card, from which plans within less are made."""
    from spillway.config import resolve
    from spillway.run.machines import plan_step

    profile = machines.PROFILES / f"{MACHINE}.json"
    accumulation = {"max_length": length, "gradient_accumulation_steps": STEP_TOKENS // length}
    words = {"model": str(model_shapes.write(directory, model)), "profile": str(profile)} | KEYS | accumulation | keys
    return plan_step(resolve({}, words), profile.read_text(encoding="utf-8"), lambda _: None)


def plan_within(planned: Planned, gpu_memory: int) -> dict[str, Any]:
    """The plan with another `gpu_memory`. Raises DoesNotFit."""
    from spillway.run.machines import plan_of

    request = copy.copy(planned.asked.request)
    request.gpu_memory = gpu_memory
    asked = replace(planned.asked, request=request)
    return plan_of(asked.engine(), asked, planned.config, planned.several)


def find_smallest(planned: Planned) -> tuple[int, dict[str, Any]]:
    """The smallest `gpu_memory` that fits, in MiB, and its plan. The first guess is the one that a refusal names."""
    from spillway.errors import DoesNotFit

    low, high, plan = 0, CARD * 1024, planned.plan  # the first does not fit, and the second does
    guesses = [1]
    while high - low > 1:
        guess = guesses.pop(0) if guesses else (low + high) // 2
        try:
            high, plan = guess, plan_within(planned, guess * MIB)
        except DoesNotFit as error:
            low, named = guess, re.search(r"--gpu_memory (\d+)MiB", str(error))
            guesses = [int(named[1]), int(named[1]) - 1] if named and guess == 1 else guesses
        guesses = [size for size in guesses if low < size < high]
    return high, plan


def summarise(row: Row, plan: dict[str, Any]) -> Row:
    """The part of a plan that the page has."""
    rate = plan["tokens_per_second"]
    moved = plan.get("path_bytes_per_step", {}).values()
    summary = {
        "fits": True,
        "step_seconds": plan["predicted_step_seconds"],
        "tokens_per_second": rate,
        "written_bytes_per_step": sum(path["written"] for path in moved),
        "bottleneck": plan["bottleneck"],
        "planned_peaks": {tier["name"]: tier["planned_peak"] for tier in plan["tiers"]},
    }
    added = machines.add_share(row | summary)
    return {key: value for key, value in added.items() if key not in row}


def read() -> list[Row]:
    return list(json.loads(RESULTS.read_text(encoding="utf-8"))["plans"]) if RESULTS.is_file() else []


def cell_of(row: Row) -> Cell:
    return row["model"], row["method"], row["length"]


def plan_all(arguments: argparse.Namespace) -> None:
    cells = [(model, method, length)
             for model in arguments.model for method in arguments.method for length in arguments.length]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=8) as pool:
        for row in pool.imap_unordered(plan_cell, cells):
            rows = {cell_of(row): row for row in [*read(), row]}  # another call may have added some
            print(*cell_of(row), row["smallest_mib"], flush=True)
            order = sorted(rows.values(), key=lambda it: (MODELS.index(it["model"]), it["method"], it["length"]))
            content = {"is": "planned", "keys": KEYS, "plans": order}
            RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def show_size(mib: int) -> str:
    """A size in GiB, rounded up to a tenth."""
    return f"{math.ceil(mib / 102.4) / 10:.1f} GiB"


def describe_size(row: Row) -> str:
    """A cell of the first table of a method: the smallest size, and the plan's DRAM and drive there."""
    if not row["plans"]:
        return "does not fit"
    peaks = row["plans"]["smallest"]["planned_peaks"]
    tiers = {"DRAM": peaks["dram"], "drive": sum(peak for tier, peak in peaks.items() if tier.startswith("path:"))}
    held = [f"{name} {peak / GIB:.0f} GiB" for name, peak in tiers.items() if peak >= GIB / 2]
    return "<br>".join([f"**{show_size(row['smallest_mib'])}**", *held])


def describe_time(plan: Row | None) -> str:
    """A cell of the second table: seconds of a step, by the plan and at the measured share."""
    if plan is None:
        return "does not fit"
    slower = STEP_TOKENS / plan["tokens_per_second_at_measured_share"]
    return f"{rounded(plan['step_seconds'])} s, *{rounded(slower)} s*"


def draw_sizes(known: dict[Cell, Row], method: str) -> Iterator[str]:
    yield f"| | {' | '.join(f'{length:,} tokens' for length in LENGTHS)} |"
    yield "|---" * (len(LENGTHS) + 1) + "|"
    for model in MODELS:
        rows = [known.get((model, method, length)) for length in LENGTHS]
        cells = ["not planned" if row is None else describe_size(row) for row in rows]
        yield f"| {model} | {' | '.join(cells)} |"


def draw_times(known: dict[Cell, Row], method: str) -> Iterator[str]:
    names = ["smallest", *map(str, (*SIZES, CARD))]
    yield f"| | smallest | {' | '.join(f'{size} GiB' for size in (*SIZES, CARD))} |"
    yield "|---" * (len(names) + 1) + "|"
    for model in MODELS:
        for length in LENGTHS:
            row = known.get((model, method, length))
            plans = None if row is None else row["plans"]
            cells = ["not planned" if plans is None else describe_time(plans.get(name)) for name in names]
            yield f"| {model}, {length:,} | {' | '.join(cells)} |"


def page(rows: list[Row]) -> str:
    known = {cell_of(row): row for row in rows}
    keys = ", ".join(f"`{key}: {value}`" for key, value in KEYS.items())
    parts = [
        "# The smallest GPU memory",
        "",
        "Every number is **planned**: the planner's answer for an RTX 4090 in a machine of 64 GiB with one drive",
        "([profile](../profiles/rtx-4090.json)). No number is a measurement, and no such machine has run Spillway.",
        "",
        "**Smallest** is the smallest `gpu_memory` with which a plan fits. The plan for 1 MiB less does not fit. The",
        "size is the peak of the run itself. The driver's context and a desktop come on top. No GPU has run at these",
        "sizes, so leave some room.",
        "",
        f"- **Settings.** {keys}.",
        "  A step has 32,768 tokens in rows of the stated length. These settings take the least memory.",
        "- **The default of `pass_tokens`.** The default joins micro-batches in a pass, and takes more memory. The",
        "  default is for short rows: their passes wait for the host's calls, and joined passes do not. The planner",
        "  finds no gain for rows of 2,048 tokens. Smaller passes leave GPU memory for states, so a full",
        "  step of 7B with 24 GiB takes 23 s here, and 26 s in [machines](machines.md). If a full step waits for the",
        "  drive, plan the step both ways, and take the faster plan.",
        "- **DRAM and drive.** The first table of a method has the plan's peaks with the smallest `gpu_memory`. A plan",
        "  takes DRAM if that makes a step faster, so less DRAM may fit, too. Cells without a drive use none.",
        "- **Time.** The second table has the seconds of a step. The number in *italics* is that of a GPU at 15 % of",
        "  its peak, as a full step of 1.5B reached ([measured shares](machines.md#measured-shares)). No GPU has timed",
        "  LoRA or QLoRA. A step may take longer than both times: steps of 0.5B reached less than 15 %.",
        "- **Methods.** As in [machines](machines.md): full with exact AdamW states, adapters of rank 16 on all linear",
        "  layers, frozen experts, QLoRA over a base in NF4.",
        "",
        "`spillway plan` finds the size for your settings. A plan that does not fit names the smallest `gpu_memory`:",
        "",
        "```",
        "spillway plan config.yaml --profile rtx-4090 --pass_tokens 0 --gpu_memory 1GiB",
        "```",
        "",
    ]
    for method in METHODS:
        times = "Seconds of a step, by `gpu_memory` and by tokens in a row:"
        parts += machines.draw_method(method, draw_sizes(known, method), times, draw_times(known, method))
    parts += ["Made by `bench/smallest.py` from [`smallest.json`](../bench/results/smallest.json).", ""]
    return "\n".join(parts)


def main() -> None:
    parser = machines.make_parser(__doc__)
    parser.add_argument("--method", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--length", nargs="+", type=int, choices=LENGTHS, default=list(LENGTHS))
    arguments = parser.parse_args()
    if arguments.what == "plan":
        plan_all(arguments)
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
