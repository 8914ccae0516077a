"""`dram_budget` is for the whole process, whoever allocates: the kernel holds it, in a cgroup 2 % larger."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import native
import tiny
from breadth import some
from memory_group import limited
from spillway.demo.memory_limit import MemoryLimit

MEBIBYTE = 1 << 20
LIMIT = 1800  # seconds after which a process is taken for one that hangs
LONG = 16384  # tokens of a row
# Layers of 17 or 67 million parameters: what they are drawn in takes 64 or 256 MiB, what they compute next to nothing.
WIDE = {"num_hidden_layers": 2, "num_attention_heads": 16}


def run(*words: str, group: MemoryLimit | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, held by `group`."""
    return subprocess.run(
        [sys.executable, "-m", "spillway", *words],
        preexec_fn=group.enter if group else None,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def inputs(path: Path, rows: int, **more: Any) -> Path:
    tiny.model_directory(path / "model")
    (path / "model" / "config.json").write_text(json.dumps(tiny.CONFIG | {"max_position_embeddings": LONG} | more))
    (path / "text.txt").write_text(" ".join(tiny.SENTENCES * rows))
    return path


def words(given: Path, *more: str) -> list[str]:
    values = {"model": given / "model", "dataset": given / "text.txt", "output_dir": given / "out", "init": "random",
              "per_device_train_batch_size": 1, "max_steps": 1}  # fmt: skip
    return ["train", *(str(word) for key, value in values.items() for word in (f"--{key}", value)), "--packing", *more]


def test_rows_too_long_to_be_measured_are_refused_within_the_budget(tmp_path: Path) -> None:
    """An MLP over so many tokens keeps arrays of 128 MiB, ten of them, where 300 MiB are free."""
    given = inputs(tmp_path, rows=300, hidden_size=64, intermediate_size=4096)
    budget = 700 * MEBIBYTE
    with limited(budget * 102 // 100) as group:
        refused = run(
            *words(given, "--max_length", str(LONG), "--token_tile", "all", "--dram_budget", f"{budget}"), group=group
        )
        assert group.killed() == 0
    assert refused.returncode == 3, refused.stdout + refused.stderr
    told = " ".join((refused.stdout + refused.stderr).split())
    assert "does not fit in DRAM" in told and "dram_budget is 700" in told
    assert f"The working set of 1 x {LONG} tokens is extrapolated from 1 x " in told
    assert not (given / "out").exists()


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], int]:
    """A plan of short rows, and the MiB that its process has before it measures anything."""
    path = tmp_path_factory.mktemp("short")
    given = inputs(path, rows=1, hidden_size=1024, intermediate_size=8192, num_attention_heads=16)
    asked = ["plan", *words(given, "--max_length", "64", "--profile", str(native.profile(path)))[1:]]
    told = " ".join(refused(asked, "300MiB").split())
    found = re.search(r"interpreter and libraries ([0-9.]+) MiB.* It would fit with --dram_budget", told)
    assert found is not None, told
    return asked, int(float(found[1]))


def refused(asked: list[str], budget: str) -> str:
    ended = run(*asked, "--dram_budget", budget)
    assert ended.returncode == 3, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("above", some([1, 6, 11, 16, 20, 24, 28, 32, 36, 40, 44, 48], [6]))
def test_a_budget_next_to_what_the_process_has_is_refused(short: tuple[list[str], int], above: int) -> None:
    """Whatever it is that finds no memory, a library's code for its products or a table of a few bytes."""
    asked, process = short
    assert "does not fit in DRAM" in refused(asked, f"{process + above}MiB")


RUNS = [("random", 1024), ("random", 2048), ("pretrained", 2048)]


@pytest.mark.parametrize(("init", "width"), some(RUNS, [RUNS[0]]))
def test_a_run_keeps_its_plan(tmp_path: Path, init: str, width: int) -> None:
    wide = WIDE | {"hidden_size": width, "intermediate_size": 4 * width}
    given, storage = inputs(tmp_path, rows=1, **wide), tmp_path / "storage"
    storage.mkdir()
    places = ["--storage", f"{storage},capacity=2GiB", "--placement", "path", "--state_format", "int8",
              "--durability", "none", "--max_length", "8", "--profile", str(native.profile(tmp_path))]  # fmt: skip
    plain = words(given, *places)
    if init == "pretrained":
        first = run(*plain)
        assert first.returncode == 0, first.stderr
        plain += ["--model", str(given / "out"), "--output_dir", str(given / "second"), "--init", "pretrained"]
    planned = run("plan", *plain[1:], "--json")
    assert planned.returncode == 0, planned.stderr
    (dram,) = (tier for tier in json.loads(planned.stdout)["tiers"] if tier["name"] == "dram")
    budget = int(dram["planned_peak"])
    with limited(budget * 102 // 100) as group:
        ran = run(*plain, "--dram_budget", str(budget), group=group)
        assert group.killed() == 0 and ran.returncode != -signal.SIGKILL
    assert ran.returncode == 0, ran.stdout + ran.stderr
    out = given / ("second" if init == "pretrained" else "out")
    assert (out / "model.safetensors").is_file()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["process_peak"] <= budget * 1.02  # pages of libraries included, which the group may not count
