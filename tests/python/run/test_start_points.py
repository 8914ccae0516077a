"""What the engine is asked for, for every way a run can start."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spillway._engine import OpenOptions, PlannedBytes, PlanSummary
from spillway.errors import InputError
from spillway.run.protocol import StartPoint
from spillway.run.start_points import NEVER, STATE, on_paths, read_counts, tries_of


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A checkpoint after 7 steps that stands alone."""
    (tmp_path / "checkpoint-7" / STATE).mkdir(parents=True)
    (tmp_path / "checkpoint-7" / STATE / "session.json").write_text(json.dumps({"steps": 6, "calls": 7}))
    return tmp_path / "checkpoint-7"


@pytest.fixture
def manifest(alone: Path) -> Path:
    (alone / STATE / "manifest.bin").write_bytes(b"places")
    return alone


def again(**more: Any) -> OpenOptions:
    return OpenOptions(reopen=True, **more)


def test_afresh() -> None:
    for durable in (True, False):
        assert tries_of(StartPoint(), durable) == [OpenOptions()]
    assert tries_of(StartPoint(durable=True), durable=False) == [OpenOptions()]
    assert tries_of(StartPoint(fresh=False), durable=False) == [OpenOptions(if_found=True)]


def test_the_newest_step() -> None:
    start_point = StartPoint(durable=True)
    assert tries_of(start_point, True) == [again()]
    assert tries_of(replace(start_point, fresh=False), True) == [again(if_found=True)]


def test_a_checkpoint_that_stands_alone_only_has_to_be_older(alone: Path) -> None:
    assert tries_of(StartPoint(alone, durable=True), True) == [again(at_least=8)]
    assert tries_of(StartPoint(alone), True) == [again(at_least=NEVER)]
    assert tries_of(StartPoint(alone), False) == [OpenOptions()]


def test_a_manifest_is_found_as_its_step_or_gone_back_to(manifest: Path) -> None:
    by_name = again(checkpoint=manifest / STATE)
    first = again(at_least=7, if_found=True)  # what is not found there is left as it is for the one that is named
    assert tries_of(StartPoint(manifest, durable=True), True) == [first, by_name]
    assert tries_of(StartPoint(manifest), True) == [by_name]
    with pytest.raises(InputError, match="checkpoint-7 lies on storage paths.*spillway export"):
        tries_of(StartPoint(manifest), False)


def test_a_checkpoint_without_counts_is_refused(alone: Path) -> None:
    (alone / STATE / "session.json").write_text("{}")
    with pytest.raises(InputError, match="holds no state"):
        tries_of(StartPoint(alone, durable=True), True)


@pytest.mark.parametrize(
    "counts",
    [
        {"steps": 1e300},
        {"steps": 2**70},
        {"calls": -1},
        {"calls": 2**70},
        {"loss_scale": [1.0, 2**70]},
        {"loss_scale": 1},
    ],
)
def test_counts_that_no_run_reaches_are_refused(alone: Path, counts: dict[str, Any]) -> None:
    (alone / STATE / "session.json").write_text(json.dumps({"steps": 6, "calls": 7} | counts))
    with pytest.raises(InputError, match="holds no state"):
        read_counts(alone / STATE)


def test_what_lies_on_a_path() -> None:
    parts = (("state", "dram", 5), ("weight", "path:0", 5), ("grad", "path:1", 0))
    plan = PlanSummary(bytes=[PlannedBytes(class_=kind, tier=tier, bytes=count) for kind, tier, count in parts])
    assert [on_paths(plan, group) for group in ("state", "weight", "grad")] == [False, True, False]
