"""Files that are mapped as memory: the key, what is refused, that no bit depends on them, and runs that are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import interposed
import real_runs
import seeds
from real_runs import apart, here, result, words
from spillway import _engine
from spillway._engine import NodeRate, NodeSettings, Profile
from spillway.config import resolve
from spillway.config.values import FileShare, parse_memory_file
from spillway.machine import memory_files

MIB = 1 << 20
GIB = 1 << 30
KEYS = ["--max_steps", "6", "--save_steps", "2", "--logging_steps", "2"]
LONG = ["--max_steps", "30", "--save_steps", "7", "--save_total_limit", "2", "--logging_steps", "3"]
# So fast that what can lie there does, whatever this machine is.
FAST = NodeRate(update_elements_per_second=1e12, update_elements_per_second_thread=1e12, read_bytes_per_second=1e13)
LIMIT = 300  # seconds that a process of its own may take at most
PROGRAM = f"""
from spillway import _engine
_engine.measure_memory_file = lambda *given, **more: _engine.{FAST!r}
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
RUN, KILLED = "import sys" + PROGRAM, real_runs.dying("step") + PROGRAM


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "measure_memory_file", lambda *given, **more: FAST)


def file_in(directory: Path, size: str = "256MiB") -> list[str]:
    directory.mkdir(exist_ok=True)
    return ["--memory_file", f"{directory}={size}"]


def tiers(out: Path, name: str = "plan.json") -> dict[str, dict[str, Any]]:
    return {tier["name"]: tier for tier in json.loads((out / name).read_text())["tiers"]}


def test_key(tmp_path: Path) -> None:
    assert parse_memory_file("/mnt/a=b=2GiB") == FileShare("/mnt/a=b", 2 * GIB)
    assert str(parse_memory_file(" /mnt/pmem = 512MiB")) == f"/mnt/pmem={512 * MIB}"
    given = {"model": "m", "dataset": "d", "output_dir": "o"}
    config = resolve({}, {**given, "memory_file": [f"{tmp_path}=1GiB", "x=3GiB"]})
    assert config.memory_file == [FileShare(str(tmp_path), GIB), FileShare(str(Path("x").absolute()), 3 * GIB)]
    again = json.loads(json.dumps({"memory_file": [str(share) for share in config.memory_file]}))
    assert resolve(again, given).memory_file == config.memory_file


@pytest.mark.parametrize("value", ["/mnt", "/mnt=", "=1GiB", "/mnt=lots", 3, None, "/mnt=0"])
def test_not_a_file(value: object) -> None:
    with pytest.raises(ValueError):
        parse_memory_file(value)


def test_dram_beside_a_file_has_the_rates_of_the_profile(tmp_path: Path) -> None:
    rule = {"weight_dtype": "bf16", "optimizer": "adamw", "state_format": "exact"}
    profile = Profile(update_elements_per_second=1e9, update_elements_per_second_all_cores=2e9)
    found, _ = memory_files.tiers([FileShare(str(tmp_path), 64 * MIB)], [], rule, profile)
    assert found[0] == NodeSettings(kind="dram", update=2e9, update_thread=1e9)
    assert found[1].kind == "file" and found[1].directory == str(tmp_path)
    assert found[1].update > 1e5 and found[1].read > 1e6
    nodes = [NodeSettings(id=0, capacity=GIB), NodeSettings(id=2, capacity=GIB)]
    assert memory_files.tiers([], nodes, rule, profile) == (nodes, [])


def test_no_file_changes_a_bit(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And DRAM has what is left: its budget is for what lies in no file."""
    assert here(inputs, tmp_path / "dram", *KEYS) == 0
    budget = ["--dram_budget", "4GiB", "--placement", "grad=file:0,activation=file:0"]
    command = words(inputs, tmp_path / "file", *KEYS, *budget, *file_in(tmp_path / "memory"))
    process = apart("-c", RUN, *command, env_more=interposed.BY_ITSELF)
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    assert result(tmp_path / "file") == result(tmp_path / "dram")
    planned, measured = tiers(tmp_path / "file"), tiers(tmp_path / "file", "summary.json")
    assert list(planned) == list(measured) == ["dram", "file:0"]
    assert planned["dram"]["capacity"] == 4 * GIB and planned["file:0"]["capacity"] == 256 * MIB
    assert 0 < planned["file:0"]["planned_peak"] == measured["file:0"]["measured_peak"] <= 256 * MIB
    assert 0 < measured["dram"]["measured_peak"] <= planned["dram"]["planned_peak"]
    assert "file:0" in shown
    summary = json.loads((tmp_path / "file" / "summary.json").read_text())
    assert summary["nodes"]["elsewhere"] == [] and summary["process_peak"] > measured["dram"]["measured_peak"]
    aside = summary["nodes"]["aside"]
    assert aside["activation"]["buffers"] == 3 <= aside["grad"]["buffers"]
    assert aside["activation"]["elsewhere"] == aside["grad"]["elsewhere"] == 0
    assert "Boundary activations from forward to backward: 3 on file:0." in shown
    assert not any((tmp_path / "memory").iterdir())


def test_planned_and_not_started(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], fast: None) -> None:
    assert here(inputs, tmp_path / "out", *file_in(tmp_path / "memory"), verb="plan") == 0
    assert "file:0" in capfd.readouterr().out
    assert not any((tmp_path / "memory").iterdir())


def test_killed_and_resumed_in_another_directory(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fast: None
) -> None:
    assert here(inputs, tmp_path / "whole", *LONG) == 0
    placement = ["--placement", "weight=dram,state=dram,grad=path,activation=file:0"]
    lies = [*real_runs.storage_in(tmp_path / "storage"), *placement]
    keys = [*LONG, *lies, "--durability", "step", "--resume_from_checkpoint", "auto"]
    instants = seeds.instants("memory_file")
    for turn in range(2):
        monkeypatch.setenv("DIES_AFTER", str(instants.uniform(0.005, 0.4)))
        memory = file_in(tmp_path / f"memory{turn}")
        process = apart("-c", KILLED, *words(inputs, tmp_path / "out", *keys, *memory))
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode in (0, -14), (error, seeds.said())  # 0: it was done before
        assert not any((tmp_path / f"memory{turn}").iterdir())
    assert here(inputs, tmp_path / "out", *keys, *file_in(tmp_path / "last")) == 0, capfd.readouterr().err
    assert tiers(tmp_path / "out")["file:0"]["planned_peak"] > 0
    assert result(tmp_path / "out") == result(tmp_path / "whole"), seeds.said()


def test_states_on_a_path_beside_it(inputs: Path, tmp_path: Path, fast: None) -> None:
    assert here(inputs, tmp_path / "whole", *KEYS) == 0
    placement = ["--placement", "weight=50%,state=path,grad=file:0,activation=path"]
    keys = [*KEYS, *real_runs.storage_in(tmp_path / "storage"), *placement, *file_in(tmp_path / "memory")]
    assert here(inputs, tmp_path / "out", *keys) == 0
    assert list(tiers(tmp_path / "out")) == ["dram", "file:0", "path:0"]
    assert result(tmp_path / "out") == result(tmp_path / "whole")


@pytest.mark.parametrize(
    ("value", "more", "code", "parts"),
    [
        ("none=64MiB", [], 2, ["memory_file", "none", "is no directory"]),
        ("here=lots", [], 2, ["memory_file", "lots", "DIR=SIZE"]),
        ("here=64MiB", ["--memory_file", "./here=1MiB"], 2, ["memory_file", "given twice"]),
        ("here=4096TiB", [], 3, ["memory_file", "here", "It would fit with --memory_file"]),
        ("here=64MiB", ["--dram_budget", "64MiB"], 3, ["--dram_budget"]),
        ("here=64MiB", ["--placement", "activation=file:1"], 2, ["placement", "file:1", "dram, file:0"]),
        ("here=64KiB", ["--placement", "grad=file:0"], 3, ["fit on file:0", "It would fit with --memory_file"]),
        ("here=64MiB", ["--profile", "workstation"], 2, ["memory_file", "profile"]),
    ],
)
def test_refused(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    value: str, more: list[str], code: int, parts: list[str],
) -> None:  # fmt: skip
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    verb = "plan" if "--profile" in more else "train"
    assert here(inputs, tmp_path / "out", "--memory_file", value, *more, verb=verb) == code
    error = capfd.readouterr().err
    assert all(part in error for part in parts) and error.count("\n") == 1 and "Traceback" not in error, error
    assert not (tmp_path / "out").exists() and not any((tmp_path / "here").iterdir())


def test_a_person_is_told_of_a_page_cache(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], fast: None
) -> None:
    memory = file_in(tmp_path / "memory")
    ((in_dram, notice),) = _engine.check_memory_files([(str(tmp_path / "memory"), MIB)])
    assert here(inputs, tmp_path / "out", "--max_steps", "1", *memory) == 0
    shown = "".join(capfd.readouterr())
    assert in_dram or not notice or "page cache" in " ".join(shown.split())
