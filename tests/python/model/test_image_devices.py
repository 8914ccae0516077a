"""Rows with images where layers compute elsewhere than in host memory, and in several processes: the bits of a run of
one process on the CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import native
import real_runs
from breadth import some
from fake_gpu import FakeGpu, build_driver
from image_models import image_directory
from needs import lacks
from spillway import _engine
from spillway.output.records import rows
from test_ranks import LIMIT, processes

KEYS = ("--max_length", "96", "--max_steps", "4", "--save_steps", "4", "--lr_scheduler_type", "constant",
        "--placement", "dram", "--virtual_ranks", "2", "--fused_kernels", "never", "--compute_dtype", "bf16")  # fmt: skip
KINDS = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=some(KINDS, ("gemma3", "qwen2_vl")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


@pytest.fixture(scope="module")
def plain(given: Path) -> Path:
    """Four steps on the CPUs."""
    assert real_runs.here(given, given / "plain", *KEYS) == 0
    return given / "plain"


@pytest.fixture(scope="module")
def gpu() -> Iterator[FakeGpu]:
    if not _engine.gpu_kernels():
        lacks("nvcc", f"there are no kernels to run: {_engine.load_gpu_kernels(0)[1]}")
    if refusal := build_driver():
        lacks("compiler", refusal)
    process = FakeGpu()
    yield process
    process.close()


def require_same(run: Path, other: Path) -> None:
    """Weights, states, losses and gradient norms."""
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    files = [native.file_bytes(each / "checkpoint-4" / "spillway") for each in (run, other)]
    assert files[0] == files[1]
    for one, another in zip(rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True):
        assert one["loss"] == another["loss"] and one["grad_norm"] == another["grad_norm"]


def read_plan(run: Path) -> Any:
    return json.loads((run / "plan.json").read_text())


def test_a_simulated_device_changes_no_bit(given: Path, plain: Path) -> None:
    out = given / "simulated"
    assert real_runs.here(given, out, *KEYS, "--device", "simulated") == 0
    require_same(out, plain)
    assert read_plan(out)["device_bytes_per_step"]["to_device"] > 0


def test_a_gpu_changes_no_bit(given: Path, plain: Path, gpu: FakeGpu) -> None:
    """On the driver of a fake one. The plan counts the tower on the GPU."""
    out = given / "gpu"
    words = real_runs.words(given, out, *KEYS, "--device", "cuda:0", "--gpu_memory", "96MiB")
    said = gpu.run(words)
    assert said.code == 0, said.err
    require_same(out, plain)
    assert "are frozen and stay on the GPU" in " ".join((said.out + said.err).split())


def test_a_gpu_without_room_for_the_tower_is_refused(given: Path, gpu: FakeGpu, tmp_path: Path) -> None:
    words = real_runs.words(given, tmp_path / "out", *KEYS, "--device", "cuda:0")
    said = gpu.run(words, FAKE_GPU_TOKENS="2")
    assert said.code == 3, said.err
    assert "does not fit on cuda:0: the features of images take more than the 256.0 MiB that are free" in said.err
    assert not (tmp_path / "out").exists()


def test_two_processes_make_what_one_makes(given: Path, plain: Path) -> None:
    """Each has the tower, and computes the features of its own micro-batches."""
    ranks = processes(2, given, given / "two", *KEYS)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    require_same(given / "two", plain)
