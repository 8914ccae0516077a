"""The watch over the heap on sizes of a simulated process: how often it trims, and what peaks it allows."""

from __future__ import annotations

import dataclasses

import pytest

from spillway._engine import PlannedTier, PlanSummary
from spillway.machine import process_memory
from spillway.run.telemetry import HOLES, HeapWatch

MEBIBYTE = 1 << 20
LIMIT = 1000 * MEBIBYTE
SLICES = 70  # passes of the head in a round, beside four of layers


@dataclasses.dataclass
class SimulatedProcess:
    """A process whose heap keeps all that passes took, until a trim. Sizes are MiB."""

    in_use: float
    size: float = 0
    holes: float = 0
    garbage: float = 0  # that a collection lets go
    sizes: list[float] = dataclasses.field(default_factory=list)  # after each pass
    trims: int = 0
    collections: int = 0

    def run_pass(self, working_set: float, holes: float = 0) -> None:
        self.holes += holes
        self.size = max(self.size, self.in_use + self.garbage + self.holes + working_set)
        self.sizes.append(self.size)

    def trim(self) -> None:
        self.trims += 1
        self.holes = 0
        self.size = self.in_use + self.garbage

    def give_back(self) -> None:
        self.collections += 1
        self.garbage = 0
        self.trim()

    def resident(self) -> int:
        return int(self.size * MEBIBYTE)


def make_watch(process: SimulatedProcess, monkeypatch: pytest.MonkeyPatch) -> HeapWatch:
    """The watch over a process that has loaded its model."""
    for name in ("trim", "give_back", "resident"):
        monkeypatch.setattr(process_memory, name, getattr(process, name))
    monkeypatch.setattr(process_memory, "reserve", lambda size: None)
    watch = HeapWatch(PlanSummary(tiers=[PlannedTier(name="dram", planned_peak=LIMIT)]), work_bytes=0)
    watch.give_back()
    process.trims = process.collections = 0
    return watch


def run_rounds(watch: HeapWatch, process: SimulatedProcess, rounds: int, layer: float, holes: float = 0) -> list[int]:
    """Trims of each round: passes of layers that take so much, and of the head's slices that take 8 MiB."""
    trims = []
    for _ in range(rounds):
        before = process.trims
        watch.begin_round()
        for working_set in (layer, layer, *[8] * SLICES, layer, layer):
            process.run_pass(working_set, holes)
            watch.look()
        trims.append(process.trims - before)
    return trims


def find_peak(process: SimulatedProcess) -> float:
    return max(process.sizes) * MEBIBYTE / LIMIT


def test_a_working_set_near_the_limit_is_trimmed_in_the_first_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    first, *later = run_rounds(make_watch(process, monkeypatch), process, rounds=6, layer=495)
    assert first <= 10 and later == [0] * 5


def test_memory_in_use_near_the_limit_is_not_trimmed_for_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=985)
    first, *later = run_rounds(make_watch(process, monkeypatch), process, rounds=6, layer=10)
    assert first <= 10 and later == [0] * 5


def test_holes_never_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    trims = run_rounds(make_watch(process, monkeypatch), process, rounds=60, layer=400, holes=0.25)
    assert find_peak(process) <= 1
    assert 0 < sum(trims) <= 60 * (SLICES + 4) * 0.25 / (LIMIT / MEBIBYTE - 900 - HOLES / MEBIBYTE) + 1


def test_slow_holes_above_a_working_set_near_the_limit_never_exceed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    trims = run_rounds(make_watch(process, monkeypatch), process, rounds=200, layer=490, holes=0.01)
    assert find_peak(process) <= 1
    assert sum(trims[1:]) <= 100


def test_a_pass_that_fits_only_a_trimmed_heap_exceeds_the_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass of a round finds no room in the holes of the first."""
    process = SimulatedProcess(in_use=500)
    watch = make_watch(process, monkeypatch)
    for _ in range(50):
        watch.begin_round()
        for working_set, unused in ((480, 0), (440, 70)):
            process.run_pass(working_set, holes=unused if process.size > 600 else 0)
            watch.look()
    assert sum(size * MEBIBYTE > LIMIT for size in process.sizes) == 1


def test_a_pass_that_no_trim_helps_costs_few_trims(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    first, second, *later = run_rounds(make_watch(process, monkeypatch), process, rounds=6, layer=510)
    assert first + second <= 10 and later == [0] * 4


def test_garbage_is_collected_only_if_a_trim_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    watch = make_watch(process, monkeypatch)
    run_rounds(watch, process, rounds=1, layer=490)
    assert process.trims > 0 and process.collections == 0
    process.garbage = 495
    run_rounds(watch, process, rounds=1, layer=8)
    assert process.collections == 1 and process.garbage == 0
