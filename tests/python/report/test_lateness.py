"""Who is late among the processes of a run, and for what: what they tell each other, and what a person reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from spillway._engine import Delay
from spillway.cli import doctor
from spillway.output import identity
from spillway.report import page, ranks
from spillway.report.facts import Facts
from spillway.run.carriers import received_first
from spillway.run.lateness import Lateness, account
from spillway.run.network import Waited

LATE = Delay(task="backward of layers.7", waits_for="path:1", seconds=34.0)
WORDS = "backward of layers.7 waits for path:1, 34.0 s"


class Store:
    """What torch.distributed's store does of it."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)


def named(rank: int) -> str:
    return f"rank {rank} (node{rank})"


def test_a_process_says_what_it_is_late_for_and_those_that_wait_say_it(tmp_path: Path) -> None:
    (tmp_path / identity.FOLDER).mkdir()
    store = Store()
    first, second = (Lateness(store, rank, 3, named) for rank in (0, 1))
    said: list[Delay | None] = [LATE]
    first.listen(lambda: None, tmp_path)
    second.listen(lambda: said[-1])
    second.look(None)
    first.look((time.monotonic() - 20, [1]))
    assert first.why([1, 2]) == f"{named(1)}: {WORDS}; {named(2)}"
    assert second.why([0]) == f"{named(0)}: waits for {named(1)}, 20.0 s"
    assert ranks.late_now(tmp_path) == [f"{named(0)}: waits for {named(1)}, 20.0 s", f"{named(1)}: {WORDS}"]
    said.append(None)
    second.look(None)
    assert first.why([1]) == named(1)
    first.listen(None)
    second.listen(None)
    second.look((0.0, [0]))  # nobody asks one whose engine is about to close
    assert first.why([0, 1]) == f"{named(0)}; {named(1)}"


def test_what_bytes_take_alone_is_nobodys_lateness() -> None:
    waited = Waited()
    for waits, size in (([(1, 2.0)], 100), ([(1, 1.0), (2, 4.0)], 100), ([(1, 2.0), (2, 0.5)], 100), ([(2, 0.5)], 7)):
        waited.add(waits, size)
    assert waited.seconds() == {1: 0.5, 2: 3.0}


def test_what_is_received_is_asked_for_before_anything_is_sent() -> None:
    messages = [(1, True, "a"), (2, False, "b"), (2, True, "c"), (1, False, "d")]
    assert received_first(messages) == [(2, False, "b"), (1, False, "d"), (1, True, "a"), (2, True, "c")]


def run_of(output_dir: Path, told: list[dict[str, Any]], finished: bool = True) -> Facts:
    summary = {"ranks": told, "steps": 3}
    return Facts(output_dir, {}, {"tiers": []}, summary, [], [], None, None, finished)


def told() -> list[dict[str, Any]]:
    own = {"waits": {"path:1": {"read": 30.0}, "dram": {"network": 1.0}}}
    found = [account(0, {"waits": {"dram": {"network": 34.0}}}, {1: 33.0}), account(1, own, {0: 0.25})]
    for each in found:
        each["host"] = f"node{each['rank']}"
    return found


def test_the_page_says_who_was_late_and_for_what(tmp_path: Path) -> None:
    found = ranks.rows(run_of(tmp_path, told()))
    assert [(row.name, row.kept_waiting, row.waited) for row in found] == [
        (named(0), 0.25, 34.0),
        (named(1), 33.0, 1.0),
    ]
    words = ranks.latest(found)
    assert (
        words.startswith(f"{named(1)} kept the others waiting longest, 33.0 s") and "reads of path:1, 30.0 s" in words
    )
    shown = page.processes(run_of(tmp_path, told()))
    assert 'id="late-1">33.0 s<' in shown and "the other processes" not in shown
    assert page.processes(run_of(tmp_path, [])) == "" == ranks.latest([])


def test_doctor_says_who_is_late_now(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("spillway.report.facts.read", lambda output_dir: run_of(output_dir, told(), finished=False))
    assert "kept the others waiting" in doctor.of_run(tmp_path)[0][2]
    (tmp_path / identity.FOLDER).mkdir()
    late = {"at": time.time(), "late": [{"rank": named(1), "words": WORDS}]}
    (tmp_path / identity.LATE).write_text(json.dumps(late))
    console = Console(record=True, width=160)
    doctor.show_findings(console, doctor.of_run(tmp_path), str(tmp_path))
    assert f"{named(1)}: {WORDS}" in console.export_text()
    (tmp_path / identity.LATE).write_text(json.dumps(late | {"at": time.time() - 600}))
    assert ranks.late_now(tmp_path) == []  # of a run that was killed
