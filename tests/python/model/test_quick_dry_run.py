"""What a plan measures of a large layer: as little as tells what it has to know, and a line that says what it is at."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest

import interposed
from real_runs import apart, inputs, words
from spillway.model.measure import quick_dry_run
from spillway.model.measure.quick_dry_run import Taken
from warm import NIGHTLY


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given"))


def taken(tokens: int, seconds: float, number: int = 0) -> Taken:
    return Taken(tokens, number, {"forward": seconds / 4, "backward": seconds * 3 / 4})


def test_shapes_have_about_half_the_tokens_each_time() -> None:
    assert quick_dry_run.shapes(1, 1024) == [(1, 64), (1, 128), (1, 256), (1, 512), (1, 1024)]
    assert quick_dry_run.shapes(5, 300)[-4:] == [(1, 300), (2, 300), (3, 300), (5, 300)]
    assert quick_dry_run.shapes(2, 8) == [(2, 8)]
    for rows, length in ((1, 999), (7, 129), (64, 1)):
        found = quick_dry_run.shapes(rows, length)
        counts = [each * long for each, long in found]
        assert counts == sorted(set(counts)) and found[-1] == (rows, length) and counts[0] <= quick_dry_run.FIRST_TOKENS


def measured(seconds_per_token: float, largest: int, room: int = 1 << 30) -> list[tuple[int, int]]:
    """What is measured of one row of `largest` tokens, the first of it included."""
    asked: list[tuple[int, int]] = []

    def measure(rows: int, length: int) -> Taken | None:
        asked.append((rows, length))
        return taken(rows * length, rows * length * seconds_per_token, rows * length) if length <= room else None

    first, *rest = quick_dry_run.shapes(1, largest)
    found = quick_dry_run.measured(taken(first[1], first[1] * seconds_per_token), rest, measure)
    assert [each.tokens for each in found] == sorted({each.tokens for each in found})
    return asked


def test_all_of_it_is_measured_where_that_is_quick() -> None:
    assert measured(0.001, 1024) == [(1, 1024)]  # of which one measurement has two steps already
    assert measured(0.003, 1024) == [(1, 1024), (1, 1024)]
    assert measured(0.008, 1024) == [(1, 1024)]


def test_fewer_tokens_are_measured_where_it_is_not() -> None:
    assert measured(0.01, 1 << 15) == [(1, 128), (1, 256)]
    assert measured(0.001, 1 << 15) == [(1, 128), (1, 256), (1, 512), (1, 1024), (1, 2048), (1, 4096)]
    assert measured(1.0, 1024) == [(1, 128), (1, 256)]  # three points, however slow it is
    assert measured(0.004, 1024, room=512) == [(1, 1024), (1, 128), (1, 256), (1, 512), (1, 1024)]


def test_what_libraries_take_is_not_what_tokens_take() -> None:
    """On a machine that is busy few tokens are measured, and many must not be said to take no more than these."""
    rest = quick_dry_run.shapes(1, 1 << 15)[1:]
    for each, most in ((1 << 12, 1 << 11), (1 << 20, 1 << 8)):  # bytes of a token, beside 100 MiB
        found = quick_dry_run.ascend(
            taken(64, 6.4, 100 << 20), rest, lambda rows, n, each=each: taken(n, n * 0.1, (100 << 20) + each * n)
        )
        assert found[-1].tokens == most


def test_what_more_tokens_take_lies_on_the_line() -> None:
    found = [taken(128, 2.0, 1000), taken(256, 3.0, 2000), taken(512, 5.0, 4000)]
    seconds = quick_dry_run.seconds_of(found, found[0].seconds, 1024, 1)
    assert sum(seconds.values()) == pytest.approx(9.0)
    for linear in (True, False):
        assert 8000 <= quick_dry_run.bytes_of(found, 1024, linear) <= 8000 * 1.11
        assert quick_dry_run.bytes_of(found, 512, linear) == 4000
    noisy = [taken(64, 1.0, 1000), taken(128, 2.0, 1100), taken(256, 3.0, 1900)]
    assert quick_dry_run.bytes_of(noisy, 4096, True) < quick_dry_run.bytes_of(noisy, 4096, False) / 3
    assert quick_dry_run.bytes_per_token(found) == pytest.approx(2000 / 256)
    warm = {kind: value / 2 for kind, value in found[0].seconds.items()}
    assert sum(quick_dry_run.seconds_of(found, warm, 1024, 3).values()) == pytest.approx(9.0 + 2 * (9.0 - 1.0))


def test_longer_rows_take_more_than_lies_on_the_line() -> None:
    """By the square, where attention is a part of a pass that can be told from noise."""

    def seconds(length: int, rows: int = 1) -> dict[str, float]:
        return {"forward": rows * (length + length**2 / 1024), "head": rows * (length + length**2 / 1e6)}

    last, shorter = Taken(8192, 0, seconds(8192)), Taken(8192, 0, seconds(1024, 8))
    more = quick_dry_run.beyond_a_line(last, shorter, 32768, 4.0)
    assert more == {"forward": pytest.approx(seconds(32768)["forward"] - 4 * last.seconds["forward"])}
    found = [Taken(64, 0, {kind: value / 128 for kind, value in last.seconds.items()}), last]
    assert quick_dry_run.seconds_of(found, {}, 32768, 1, more)["forward"] == pytest.approx(seconds(32768)["forward"])


def test_the_middle_of_measurements_is_of_each_thing() -> None:
    assert quick_dry_run.middle([taken(8, 4.0, 300), taken(8, 8.0, 100), taken(8, 6.0, 200)]) == taken(8, 6.0, 200)


PLANNED = """
import json, sys
import spillway.run.profiled
from spillway.cli import main
from spillway.model.measure import dry_run, quick_dry_run
spillway.run.profiled.profile_dry_run = dry_run.profile_dry_run  # it measures itself, whoever has measured before
for name, value in json.loads(sys.argv[1]).items():
    setattr(quick_dry_run, name, value)
sys.exit(main(sys.argv[2:]))
"""


def planned(given: Path, **constants: float) -> dict[str, Any]:
    """By a process of its own, whose memory nothing has warmed; with these constants of what is measured briefly."""
    evaluated = ("--per_device_eval_batch_size", "4", "--eval_dataset", str(given / "held_out.jsonl"))
    asked = words(given, given / "out", *evaluated, "--json", verb="plan")
    process = apart("-c", PLANNED, json.dumps(constants), *asked)
    said, error = process.communicate()
    assert process.returncode == 0, error
    found: dict[str, Any] = json.loads(said)
    return found


def test_a_plan_of_what_takes_long(given: Path) -> None:
    """Nearly the plan of what does not, measured briefly: all of it once or twice, or a part of it."""
    usual = planned(given)
    for once in (20.0, -1.0) if NIGHTLY else (-1.0,):
        found = planned(given, AS_A_RUN=0.0, ONCE=once, FIRST_TOKENS=16)
        assert found["fits"] and found["predicted_step_seconds"] > 0 and found["fit_table"]
        assert 0.8 * working_set(usual) < working_set(found) < 2 * working_set(usual)


def working_set(plan: dict[str, Any]) -> int:
    return sum(entry["bytes"] for entry in plan["bytes"] if entry["class"] == "working set")


ON_A_TERMINAL = """
import os, sys
os.dup2(0, 2)
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_plan_says_on_a_terminal_what_it_is_at(given: Path, tmp_path: Path) -> None:
    """By the command; where standard error is no terminal it says nothing."""
    ours, theirs = pty.openpty()
    command = words(given, tmp_path / "out", verb="plan")
    process = apart("-c", ON_A_TERMINAL, *command, stdin=theirs, env_more=interposed.BY_ITSELF)
    os.close(theirs)
    said = read_all(ours)
    out, _ = process.communicate()
    assert process.returncode == 0 and "It fits." in out and "measuring" not in out
    for stage in ("reading tokenizer and data", "measuring one layer", "planning what else fits"):
        assert stage in said
    assert said.endswith("\r\x1b[2K")


def read_all(terminal: int) -> str:
    found = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # nobody writes any more
            return found.decode()
        if not part:
            return found.decode()
        found += part
