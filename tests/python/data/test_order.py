"""Order of rows, number of steps, and when something is due."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.config import resolve
from spillway.data.order import Order, in_file_order
from spillway.run.events import MOST_SAVES, Events

SIZES = (st.integers(1, 40), st.integers(1, 7), st.integers(1, 5))


@settings(max_examples=200, deadline=None)
@given(*SIZES, st.integers(0, 3))
def test_an_epoch_visits_every_row_once_in_the_seeded_order(
    rows: int, batch: int, accumulation: int, epoch: int
) -> None:
    order = Order(rows, batch, accumulation, data_seed=11)
    steps = [order.step(epoch * order.steps_per_epoch + step) for step in range(order.steps_per_epoch)]
    visited = [int(row) for step in steps for part in step for row in part]
    generator = torch.Generator().manual_seed(11 + epoch)
    assert visited == torch.randperm(rows, generator=generator).tolist()
    assert all(len(step) == accumulation for step in steps[:-1])
    assert 1 <= len(steps[-1]) <= accumulation
    parts = [len(part) for step in steps for part in step]
    assert all(size == batch for size in parts[:-1]) and 1 <= parts[-1] <= batch


@given(*SIZES)
def test_epochs_are_counted_in_micro_batches(rows: int, batch: int, accumulation: int) -> None:
    order = Order(rows, batch, accumulation, 0)
    micro_batches = math.ceil(rows / batch)
    assert order.epoch_after(0) == 0
    assert order.epoch_after(order.steps_per_epoch) == 1
    assert order.epoch_after(2 * order.steps_per_epoch) == 2
    if order.steps_per_epoch > 1:
        assert order.epoch_after(1) == accumulation / micro_batches


@pytest.mark.parametrize(
    ("max_steps", "epochs", "steps"),
    [(-1, 3.0, 12), (-1, 0.5, 2), (-1, 1.3, 6), (5, 3.0, 5), (100, 1.0, 100), (-1, 0.01, 1)],
)
def test_steps_of_a_run(max_steps: int, epochs: float, steps: int) -> None:
    assert Order(rows=14, batch=2, accumulation=2, data_seed=0).steps(max_steps, epochs) == steps


def test_any_step_can_be_asked_for_first() -> None:
    forward, direct = Order(20, 3, 2, 7), Order(20, 3, 2, 7)
    steps = [forward.step(number) for number in range(10)]
    assert [part.tolist() for part in direct.step(9)] == [part.tolist() for part in steps[9]]
    assert [part.tolist() for part in direct.step(2)] == [part.tolist() for part in steps[2]]


def test_evaluations_read_in_file_order() -> None:
    assert [part.tolist() for part in in_file_order(5, 2)] == [[0, 1], [2, 3], [4]]


def due(keys: dict[str, object], steps: int = 10, rows: int = 8) -> dict[str, list[int]]:
    config = resolve(keys, {})
    events = Events(config, Order(rows, 1, 2, 0), steps)
    kinds = {"log": events.log_due, "eval": events.evaluation_due, "save": events.save_due, "whole": events.whole_due}
    return {name: [step for step in range(1, steps + 1) if asked(step)] for name, asked in kinds.items()}


@pytest.mark.parametrize(
    ("keys", "kind", "steps"),
    [
        ({}, "log", list(range(1, 11))),
        ({"logging_steps": 3}, "log", [3, 6, 9]),
        ({"logging_steps": 0.25}, "log", [3, 6, 9]),
        ({}, "eval", []),
        ({"eval_dataset": "x"}, "eval", [4, 8, 10]),
        ({"eval_dataset": "x", "eval_steps": 4}, "eval", [4, 8, 10]),
        ({"eval_dataset": "x", "eval_strategy": "no"}, "eval", []),
        ({"eval_dataset": "x", "eval_strategy": "steps", "logging_steps": 5}, "eval", [5, 10]),
        ({}, "save", [10]),
        ({"save_steps": 4}, "save", [4, 8, 10]),
        ({"save_steps": 0.5}, "save", [5, 10]),
        ({"save_strategy": "epoch"}, "save", [4, 8, 10]),
        ({"save_strategy": "no", "save_steps": 2}, "save", [10]),
        ({"save_whole_steps": 4}, "save", [4, 8, 10]),
        ({"save_whole_steps": 4}, "whole", [4, 8]),
        ({"save_steps": 5, "save_whole_steps": 0.4}, "save", [4, 5, 8, 10]),
    ],
)
def test_what_is_due_when(keys: dict[str, object], kind: str, steps: list[int]) -> None:
    assert due(keys)[kind] == steps


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"save_steps": 3},
        {"save_steps": 5, "save_whole_steps": 4},
        {"save_strategy": "epoch", "save_whole_steps": 0.3},
        {"save_steps": 20, "logging_steps": 3, "eval_dataset": "x"},
        {"eval_dataset": "x", "eval_steps": 4, "logging_steps": 0.25},
        {"eval_dataset": "x", "eval_strategy": "no"},
    ],
)
@pytest.mark.parametrize("begun", [0, 4, 9, 10])
def test_saves_and_rows_are_counted_without_a_look_at_each_step(keys: dict[str, object], begun: int) -> None:
    events, found = Events(resolve(keys, {}), Order(8, 1, 2, 0), 10), due(keys)
    assert events.list_saves(begun) == [step for step in found["save"] if step > begun]
    assert events.count_rows() == len(found["log"]) + len(found["eval"])


def test_saves_of_very_many_steps_are_counted_at_once() -> None:
    events = Events(resolve({"save_steps": 1, "eval_dataset": "x"}, {}), Order(8, 1, 2, 0), 10**12)
    assert len(events.list_saves(7)) == MOST_SAVES and events.count_rows() == 10**12 + 10**12 // 4
    rare = Events(resolve({}, {}), Order(8, 1, 2, 0), 10**12)
    assert rare.list_saves(0) == [10**12]


def test_before_the_first_step_only_when_asked() -> None:
    for asked in (True, False):
        events = Events(resolve({"eval_dataset": "x", "eval_on_start": asked}, {}), Order(8, 1, 2, 0), 10)
        assert events.evaluation_due(0) is asked
