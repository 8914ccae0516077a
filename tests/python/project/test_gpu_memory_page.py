"""docs/gpu-memory.md has the plans of its file, and the command refuses less than the smallest size."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from folders import REPOSITORY
from model_directories import model_shapes
from spillway.cli import main

sys.path.insert(0, str(REPOSITORY / "bench"))
import machines  # noqa: E402
import smallest  # noqa: E402

PLAN: dict[str, Any] = {
    "step_seconds": 12.06,
    "tokens_per_second_at_measured_share": 838.6,
    "planned_peaks": {"dram": 13 << 30, "device": 3700 << 20, "path:0": 0},
}


def test_page_is_that_of_the_file() -> None:
    assert smallest.PAGE.read_text(encoding="utf-8") == smallest.page(smallest.read())


def test_every_plan_of_the_file_is_a_cell_of_the_page() -> None:
    cells = [smallest.cell_of(row) for row in smallest.read()]
    known = {(model, method, length) for model in machines.MODELS for method in machines.METHODS
             for length in smallest.LENGTHS}  # fmt: skip
    assert len(cells) == len({*cells})
    assert known >= {*cells} >= {cell for cell in known if cell[1] == "QLoRA" and cell[2] == 2048}


def test_peak_of_each_plan_is_within_its_size() -> None:
    """A plan may leave a part of its size empty, but not the smallest one: 1 MiB less does not fit."""
    for row in smallest.read():
        for name, plan in row["plans"].items():
            size = row["smallest_mib"] if name == "smallest" else int(name) * 1024
            assert plan["planned_peaks"]["device"] <= size * smallest.MIB, (smallest.cell_of(row), name)
        if row["plans"]:
            assert row["plans"]["smallest"]["planned_peaks"]["device"] > (row["smallest_mib"] - 1) * smallest.MIB


def test_less_gpu_memory_takes_no_less_time() -> None:
    for row in smallest.read():
        seconds = [plan["step_seconds"] for _, plan in sorted(row["plans"].items(), key=lambda it: order(it[0]))]
        assert all(less >= 0.97 * more for less, more in zip(seconds, seconds[1:], strict=False)), row


def order(name: str) -> int:
    return 0 if name == "smallest" else int(name)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"smallest_mib": 3713, "plans": {"smallest": PLAN}}, "**3.7 GiB**<br>DRAM 13 GiB"),
        (
            {"smallest_mib": 3712, "plans": {"smallest": PLAN | {"planned_peaks": {"dram": 0, "path:0": 7 << 30}}}},
            "**3.7 GiB**<br>drive 7 GiB",
        ),
        ({"smallest_mib": 0, "plans": {}}, "does not fit"),
    ],
)
def test_cell_has_the_size_and_the_tiers(row: dict[str, Any], words: str) -> None:
    assert smallest.describe_size(row) == words


def test_cell_of_times_has_the_plan_and_the_derived_seconds() -> None:
    assert smallest.describe_time(PLAN) == "12 s, *39 s*"
    assert smallest.describe_time(None) == "does not fit"


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["full", "QLoRA"])
def test_command_fits_at_the_smallest_size_and_refuses_less(method: str, tmp_path: Path) -> None:
    (row,) = (row for row in smallest.read() if smallest.cell_of(row) == ("Qwen2.5-1.5B", method, 2048))
    keys = {**smallest.KEYS, **machines.METHODS[method], "max_length": 2048, "gradient_accumulation_steps": 16}
    words = [f"--{key}={value}" for key, value in keys.items() if not isinstance(value, bool)]
    words += [f"--{key}" for key, value in keys.items() if value is True]
    command = ["plan", "--model", str(model_shapes.write(tmp_path, "Qwen2.5-1.5B")), "--profile", "rtx-4090", *words]
    assert main([*command, "--gpu_memory", f"{row['smallest_mib']}MiB"]) == 0
    assert main([*command, "--gpu_memory", f"{row['smallest_mib'] - 1}MiB"]) == 3
