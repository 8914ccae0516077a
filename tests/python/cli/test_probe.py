"""The verbs that look at the machine: probe and doctor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spillway.cli import doctor, main
from spillway.machine import call_seconds, compute_rates, operation_rates, probe


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is no part of these tests."""
    from spillway import _engine

    measured = _engine.probe
    monkeypatch.setattr(_engine, "probe", lambda places: measured(places, 0.004))
    monkeypatch.setattr(probe, "SECONDS", 0.0)
    monkeypatch.setattr(probe, "LAYERS", ((64, 128),))
    for name, value in {"SECONDS": 0.0, "SHAPES": ((64, 128),), "TOKENS": (8, 16), "ROWS": (16,)}.items():
        monkeypatch.setattr(compute_rates, name, value)
    monkeypatch.setattr(compute_rates, "HEAP", 1 << 20)
    for name, value in {"SECONDS": 0.0, "SIZES": (1 << 14, 1 << 15)}.items():
        monkeypatch.setattr(operation_rates, name, value)
    for name, value in {"WINDOW": 0.0, "LEAST": 1}.items():
        monkeypatch.setattr(call_seconds, name, value)


def test_probe_writes_a_profile_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "machine.json"
    assert main(["probe", "--output", str(output)]) == 0
    profile = json.loads(output.read_text())
    node = profile["nodes"][0]
    assert profile["spillway_profile"] == 2 and profile["cores"] >= 1
    assert node["kind"] == "dram" and node["capacity"] > 0 and node["update_elements_per_second"] > 0
    assert profile["access"][0]["update"]["threads"] >= 1
    assert profile["layers"][0]["flops_per_second"] > 0
    assert {found["dtype"] for found in profile["compute"]} == {"fp32", "bf16"}
    assert all(found["elementwise_bytes_per_second"] > 0 for found in profile["compute"])
    for found in profile["compute"]:
        rates = {(it["operation"], it["strided"], it["bytes"]): it["bytes_per_second"] for it in found["operations"]}
        assert min(rates.values()) > 0 and len(rates) == len(found["operations"])
        assert {"mul", "convert", "silu_backward", "native_layer_norm", "loss_gradient"} <= {name for name, *_ in rates}
        assert found["call_seconds"] > 0 and {it["head_size"] for it in found["attention"]} == {64, 128}
    shown = capsys.readouterr().out
    assert "NUMA nodes" in shown and str(output) in shown
    assert re.search(r"a CPU does [0-9.]+ GFLOP/s in bf16 and [0-9.]+ in fp32.*: compute_dtype auto", shown)

    from spillway._engine import Profile

    assert json.loads(Profile.parse(output.read_text(), "x").to_json()) == profile


def test_a_call_that_takes_long_is_measured_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_seconds, "LEAST", 5)
    clock = [0.0]
    monkeypatch.setattr(call_seconds.time, "perf_counter", lambda: clock[0])

    def count(of_one: float) -> int:
        calls = []

        def call() -> None:
            calls.append(of_one)
            clock[0] += of_one

        assert call_seconds.typical(call, 1.0) == pytest.approx(of_one)
        return len(calls)

    assert [count(seconds) for seconds in (0.125, 0.5, 1.75, 64.0)] == [8, 5, 5, 2]


def test_the_small_layer_by_which_calls_are_timed_is_one() -> None:
    """Its gradients are there, and what it asks of PyTorch is counted."""
    import torch

    layer = operation_rates.small_layer("float32")
    hidden, scale = layer()
    assert hidden.shape == (1, 8, 64) and scale.shape == (64,) and hidden.abs().sum() > 0 and scale.abs().sum() > 0
    x = torch.ones(2)
    assert operation_rates.calls_of(lambda: x + x) == 1
    assert operation_rates.calls_of(layer) > 50


def test_probe_says_which_path_is_which(tmp_path: Path) -> None:
    assert main(["probe", "--output", str(tmp_path / "p.json"), "--storage", str(tmp_path)]) == 0
    profile = json.loads((tmp_path / "p.json").read_text())
    assert len(profile["paths"]) == 1 and f"path 0: {tmp_path}" in profile["comment"]
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["probe", "--output", "/no/such/directory/p.json"], "output: /no/such/directory/p.json cannot be written"),
        (["probe", "--storage", "/no/such/place", "--output", "p.json"], "/no/such/place"),
        (["probe", "config.yaml"], "'config.yaml' means nothing here"),
        (["probe", "--learning_rate", "1"], "'learning_rate' means nothing here"),
        (["doctor", "--max_steps", "1"], "'max_steps' means nothing here"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_doctor_says_what_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--storage", str(tmp_path), "--storage", "/no/such/place"]) == 0
    shown = capsys.readouterr().out
    for what in (
        "kernel",
        "io_uring",
        "registered memory",
        "huge pages",
        "placing memory",
        "GPU driver",
        "torch",
        "transformers",
        "gpu",
    ):
        assert what in shown
    assert "Missing:" in shown and "storage /no/such/place" in shown
    assert "memlock" in shown
    words = " ".join(shown.replace("│", " ").split())
    assert re.search(r"products (yes|in part) a CPU does [0-9.]+ GFLOP/s in bf16.* compute_dtype auto", words)
    assert not list(tmp_path.iterdir())


def test_doctor_looks_where_it_is_called_when_no_storage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {what: words for what, _, words in doctor.examine([])}
    assert "O_DIRECT" in found[f"storage {tmp_path}"]
    assert doctor.locked_memory(8 << 20).startswith("a process may lock 8.00 MiB")
    assert doctor.locked_memory(-1).startswith("a process may lock all memory")


def test_doctor_works_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "spillway._engine", None)
    monkeypatch.delattr("spillway._engine", raising=False)
    found = {what: state for what, state, _ in doctor.examine([])}
    assert found["engine"] == "missing" and found["kernel"] == "good"
