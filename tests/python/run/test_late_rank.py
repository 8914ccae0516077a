"""A process whose storage path is slow while the other one waits for it: named live with what it waits for, by
`spillway doctor` meanwhile, and by the page and the summary when the run has ended. Through the `spillway` command; the
path's file system is one that answers when it is told to (served.c)."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

import held
import real_runs
from needs import lacks
from served import Unserved, program, served
from spillway.cli import main
from spillway.output import identity
from test_ranks import LIMIT, free_port
from test_remote import has_said

HOST = socket.gethostname()
FIRST, LATE = (f"rank {rank} ({HOST})" for rank in (0, 1))


def words_of(table: str) -> str:
    """What stands in it, cells that take several lines among them."""
    return " ".join(table.replace("│", " ").split())


@pytest.mark.nightly
def test_a_rank_whose_path_is_slow_is_named_with_what_it_waits_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given, out = real_runs.inputs(tmp_path), tmp_path / "out"
    (tmp_path / "drive0").mkdir()
    try:
        server_program = program(tmp_path)
    except Unserved as why:
        lacks("fuse", str(why))
    keys = ("--virtual_ranks", "2", "--max_steps", "40", "--storage", f"{tmp_path}/drive{{rank}},capacity=64MiB",
            "--placement", "weight=50%,state=path,grad=path,activation=dram")  # fmt: skip
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with served(server_program, tmp_path / "backing", tmp_path / "drive1") as server:
        words = ["-m", "spillway", *real_runs.words(given, out, *keys)]
        first, second = (
            real_runs.apart(*words, env_more={**where, "RANK": str(rank), "LOCAL_RANK": str(rank)}, forked=True)
            for rank in (0, 1)
        )
        held.wait_for(first, lambda: held.has_row(out, 3))
        server.go_away()
        held.wait_for(first, lambda: has_said(first, f"for {LATE}: "))
        capfd.readouterr()
        assert main(["doctor", str(out)]) == 0
        now = words_of(capfd.readouterr().out)
        server.come_back()
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in (first, second)]
    assert [code for *_, code in ends] == [0, 0], ends

    waits = r"\w+ of \S+ waits for path:0, [\d.]+ s"
    assert re.search(rf"note: {re.escape(FIRST)} has waited for 20 s for {re.escape(LATE)}: {waits}", ends[0][1]), ends
    assert "late now" in now and re.search(rf"{re.escape(LATE)}: {waits}", now), now

    told = json.loads((out / "summary.json").read_text())["ranks"]
    kept_waiting = [told[other]["waited_for"][str(1 - other)] for other in (1, 0)]
    assert kept_waiting[1] > 15 > kept_waiting[0], told
    assert sum(told[1]["waits"]["path:0"].values()) > 15, told
    ended = (
        rf"{re.escape(LATE)} kept the others waiting longest, [\d.]+ s in all; what its own passes waited for most: "
    )
    assert main(["doctor", str(out)]) == 0
    assert re.search(ended, words_of(capfd.readouterr().out))
    assert main(["report", str(out)]) == 0
    assert re.search(ended, (out / "report.html").read_text())
    assert not (out / identity.LATE).exists()
