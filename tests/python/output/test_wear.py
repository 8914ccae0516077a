"""Bytes written over a run's life: nothing that is lost or damaged stops a run."""

from pathlib import Path

import pytest

from spillway.output import wear


def test_read_back_as_written(tmp_path: Path) -> None:
    wear.save(tmp_path, {})
    assert list(tmp_path.iterdir()) == [] and wear.read(tmp_path) == {}
    wear.save(tmp_path, {"path:0": 5, "path:1": 2**60})
    assert wear.read(tmp_path) == {"path:0": 5, "path:1": 2**60}


@pytest.mark.parametrize("text", ["", "[]", '{"path:0": "x"}', "{"])
def test_a_damaged_file_is_no_reason_to_stop(tmp_path: Path, text: str) -> None:
    (tmp_path / wear.FILE).write_text(text)
    assert wear.read(tmp_path) == {}


def test_totals_and_the_most_that_is_known() -> None:
    assert wear.total({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}
    assert wear.most([{"a": 1, "b": 9}, {"a": 7}, {}]) == {"a": 7, "b": 9}


def test_the_flushes_of_durable_steps_are_told() -> None:
    from spillway.report.tables import flushes

    summary = {"flushes": {"path:0": {"count": 42, "seconds": 0.5}, "path:1": {"count": 0, "seconds": 0.0}}}
    assert flushes("path:0", summary) == "; flushed 42 times in 500 ms"
    assert flushes("path:1", summary) == flushes("path:2", summary) == flushes("path:0", {}) == ""
