"""The watch over the heap on sizes of a simulated process: how often it trims, and what peaks it allows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from spillway._engine import PlannedTier, PlanSummary
from spillway.machine import process_memory
from spillway.run import telemetry
from spillway.run.telemetry import HOLES, RESERVE, SHARE_OF_TIME, HeapWatch

MEBIBYTE = 1 << 20
LIMIT = 1000 * MEBIBYTE
SLICES = 70  # passes of the head in a round, beside four of layers


@dataclasses.dataclass
class SimulatedProcess:
    """A process whose heap keeps all that passes took, until a trim. Sizes are MiB, and times are seconds."""

    in_use: float
    size: float = 0
    holes: float = 0
    garbage: float = 0  # that a collection lets go
    sizes: list[float] = dataclasses.field(default_factory=list)  # after each pass
    trims: int = 0
    collections: int = 0
    seconds: float = 0
    trim_seconds: float = 0.01
    trimming: float = 0  # seconds of all trims

    def run_pass(self, working_set: float, holes: float = 0) -> None:
        self.holes += holes
        self.seconds += 0.01
        self.size = max(self.size, self.in_use + self.garbage + self.holes + working_set)
        self.sizes.append(self.size)

    def trim(self) -> None:
        self.trims += 1
        self.seconds += self.trim_seconds
        self.trimming += self.trim_seconds
        self.holes = 0
        self.size = self.in_use + self.garbage

    def give_back(self) -> None:
        self.collections += 1
        self.garbage = 0
        self.trim()

    def resident(self) -> int:
        return int(self.size * MEBIBYTE)


def make_watch(process: SimulatedProcess, monkeypatch: pytest.MonkeyPatch, spare: int = 0) -> HeapWatch:
    """The watch over a process that has loaded its model. `spare`: bytes of the budget beyond the plan's peak."""
    for name in ("trim", "give_back", "resident"):
        monkeypatch.setattr(process_memory, name, getattr(process, name))
    monkeypatch.setattr(process_memory, "reserve", lambda size: None)
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(perf_counter=lambda: process.seconds))
    tier = PlannedTier(name="dram", planned_peak=LIMIT, capacity=LIMIT + spare)
    watch = HeapWatch(PlanSummary(tiers=[tier]), work_bytes=0)
    watch.give_back()
    process.trims, process.collections, process.trimming = 0, 0, 0
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


def allow(seconds: float) -> float:
    """Seconds of trims in so many seconds, but for the last one, which may collect and trim again."""
    return SHARE_OF_TIME * seconds + RESERVE


def exceed_plan(watch: HeapWatch, process: SimulatedProcess) -> None:
    """Lowers the mark by holes near the limit. The process then holds as much for good."""
    for working_set, holes in ((470, 0), (440, 70)):
        process.run_pass(working_set, holes)
        watch.look()
    process.in_use = 990


def test_trims_of_a_process_above_its_plan_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500, trim_seconds=0.1)
    watch = make_watch(process, monkeypatch, spare=15 << 30)
    exceed_plan(watch, process)
    run_rounds(watch, process, rounds=200, layer=8)
    assert RESERVE <= process.trimming <= allow(process.seconds) + 2 * process.trim_seconds


def test_time_without_trims_leaves_them_a_reserve_of_seconds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500, trim_seconds=0.1)
    watch = make_watch(process, monkeypatch, spare=15 << 30)
    exceed_plan(watch, process)
    run_rounds(watch, process, rounds=20, layer=8)
    process.seconds += 10_000
    began, before = process.seconds, process.trimming
    run_rounds(watch, process, rounds=20, layer=8)
    assert RESERVE <= process.trimming - before <= allow(process.seconds - began) + 2 * process.trim_seconds


def test_the_budget_holds_whatever_trims_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = 100
    process = SimulatedProcess(in_use=500, trim_seconds=50)
    watch = make_watch(process, monkeypatch, spare * MEBIBYTE)
    run_rounds(watch, process, rounds=60, layer=400, holes=0.25)
    assert 1 < find_peak(process) <= 1 + spare * MEBIBYTE / LIMIT


def test_holes_leave_the_plan_alone_while_trims_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimulatedProcess(in_use=500)
    run_rounds(make_watch(process, monkeypatch, spare=15 << 30), process, rounds=60, layer=400, holes=0.25)
    assert find_peak(process) <= 1
