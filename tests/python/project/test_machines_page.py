"""docs/machines.md says what its file of plans holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from folders import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench"))
import machines  # noqa: E402

FITS: dict[str, Any] = {
    "states": "exact",
    "fits": True,
    "step_seconds": 25.96,
    "tokens_per_second": 1262.3,
    "hours_per_million_tokens": 0.2201,
    "written_bytes_per_step": 58.7e9,
    "bottleneck": "path:0",
    "planned_peaks": {"dram": 56023957504, "device": 25570583372, "path:0": 196836294656},
}


def test_the_page_is_that_of_the_file() -> None:
    assert machines.PAGE.read_text(encoding="utf-8") == machines.page(machines.read())


def test_every_machine_and_model_of_the_page_has_a_plan() -> None:
    cells = {machines.cell_of(row) for row in machines.read()}
    assert cells == {(machine, model, method) for machine in machines.MACHINES for model in machines.MODELS
                     for method in machines.METHODS}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (FITS, "26 s, 1,262 tokens/s, 0.22 h, 59 GB written, 600 TB last 3.1 days"),
        (FITS | {"states": "int8"}, "26 s, 1,262 tokens/s, 0.22 h, 59 GB written, 600 TB last 3.1 days (8-bit states)"),
        (
            FITS | {"written_bytes_per_step": 0, "tokens_per_second_at_measured_share": 572.4},
            "26 s, 1,262 tokens/s, *572 at 15 %*, 0.22 h, *0.49 h at 15 %*",
        ),
        (FITS | {"written_bytes_per_step": 0}, "26 s, 1,262 tokens/s, 0.22 h"),
        ({"fits": False}, "does not fit"),
    ],
)
def test_a_cell_says_time_rate_and_wear(row: dict[str, Any], words: str) -> None:
    assert machines.words_of(row) == words


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (FITS, "`path:0`, GPU 23.8 GiB, DRAM 52.2 GiB, drive 183 GiB"),
        (FITS | {"planned_peaks": {"dram": 1 << 30, "path:0": 0}}, "`path:0`, DRAM 1.0 GiB"),
        (
            FITS | {"planned_peaks": {"dram": 1 << 30, "path:0": 5 << 30, "path:1": 5 << 30}},
            "`path:0`, DRAM 1.0 GiB, 2 drives of 5 GiB each",
        ),
        (FITS | {"planned_peaks": {"dram": 1 << 30}}, "`path:0`, DRAM 1.0 GiB"),
        ({"fits": False}, "does not fit"),
    ],
)
def test_a_cell_of_limits_has_the_bottleneck_the_peaks_and_the_drive_space(row: dict[str, Any], words: str) -> None:
    assert machines.describe_limits(row) == words


@pytest.mark.parametrize(("method", "operations"), [("full", 6), ("LoRA", 4)])
def test_a_share_of_the_peak_counts_the_model_without_recomputation(method: str, operations: int) -> None:
    weights = 28 * (2 * 1536 * 1536 * (1 + 2 / 12) + 3 * 1536 * 8960) + 151936 * 1536
    attention = 6 * 28 * 1536 * 2048
    row = machines.add_share(FITS | {"machine": "h100", "model": "Qwen2.5-1.5B", "method": method, "step_seconds": 2.0})
    assert row["share_of_peak"] == pytest.approx((operations * weights + attention) * 32768 / 2.0 / 989e12)


def test_a_second_rate_is_that_of_a_gpu_at_the_measured_share() -> None:
    row = FITS | {"machine": "h100", "model": "Qwen2.5-1.5B", "method": "full"}
    fast = machines.add_share(row | {"step_seconds": 1.0})
    assert fast["tokens_per_second_at_measured_share"] == pytest.approx(1262.3 * 0.15 / fast["share_of_peak"])
    slow = machines.add_share(row | {"step_seconds": 9.0})
    assert slow["share_of_peak"] < 0.15 and slow["tokens_per_second_at_measured_share"] == 1262.3


def test_a_machine_without_a_gpu_has_no_share_of_a_peak() -> None:
    row = FITS | {"machine": "laptop", "model": "Qwen2.5-1.5B", "method": "full"}
    assert machines.add_share(row) == row


@pytest.mark.parametrize(
    ("bottleneck", "share", "words"),
    [("compute", 0.484, "48 %"), ("path:0", 0.331, "33 % (drive)"), ("paths", 0.004, "below 1 % (drive)")],
)
def test_a_cell_of_shares_marks_rows_that_wait_for_drives(bottleneck: str, share: float, words: str) -> None:
    assert machines.describe_share(FITS | {"bottleneck": bottleneck, "share_of_peak": share}) == words


def test_every_timed_step_of_a_gpu_has_a_measured_share() -> None:
    timed = {
        (gpu, str(entry["counted"]))
        for gpu in ("h100", "h200")
        for name, entry in list_entries(json.loads((machines.HERE / f"results/gpu-nvidia-{gpu}.json").read_text()))
        if "counted" in entry and "plain" not in name and "DeepSpeed" not in name
    }
    shown = {(place[:4], str(machines.read_step(place)["counted"])) for *_, place in machines.STEPS_OF_GPUS}
    assert shown == timed


def list_entries(held: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping of a file of results, with its name."""
    if isinstance(held, dict):
        yield name, held
        for key, value in held.items():
            yield from list_entries(value, key)


def test_measured_shares_of_the_file_are_those_of_the_steps() -> None:
    rows = machines.measure_shares()
    assert json.loads(machines.RESULTS.read_text(encoding="utf-8"))["measured_shares"] == rows
    large = [row for row in rows if row["shape"] == "1.5b" and "CPU" not in row["conditions"]]
    assert round(min(row["share_of_peak"] for row in large), 2) == machines.MEASURED_SHARE


def test_every_plan_for_a_gpu_has_its_share_of_the_peak() -> None:
    rows = machines.read()
    assert rows == [machines.add_share(row) for row in rows]
    assert {row["machine"] for row in rows if "share_of_peak" in row} == set(machines.PEAKS)


def test_bottlenecks_of_the_file_are_explained_on_the_page() -> None:
    (line,) = (part for part in machines.page(machines.read()).split("\n- ") if part.startswith("A bottleneck has"))
    assert all(f"`{row['bottleneck']}`" in line for row in machines.read() if row["fits"])


def test_a_plan_of_a_cell_is_that_of_the_command() -> None:
    row = machines.plan_cell(("rtx-4090", "Qwen2.5-1.5B", "QLoRA"))
    assert row["fits"] and 1000 < row["tokens_per_second"] < 20_000
    assert row["planned_peaks"].keys() >= {"dram", "device"} and row["bottleneck"] == "compute"
    assert row["hours_per_million_tokens"] == pytest.approx(1e6 / row["tokens_per_second"] / 3600)
