"""Products of few rows have the same bits with any number of threads, alone and in the experts of whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import real_runs
import tiny
from both_ways import replace_model
from breadth import some
from spillway.model.layers import few_rows
from spillway.model.layers.few_rows import ENOUGH, fill_rows

CPU = torch.device("cpu")
THREADS = [(1, 2), pytest.param((1, 3, 8, 16), marks=pytest.mark.nightly)]
ROWS = some([*range(1, 33), 47, 64, 100, ENOUGH - 1, ENOUGH, ENOUGH + 3], (1, 5, 7, 11, 13, 17, 100))
COUNTS = ([8] * 8, [5, 7, 9, 11, 3, 13, 6, 10], [0, 0, 21, 4, 16, 11, 8, 4], [1, 0, 0, 0, 0, 0, 0, 63])


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compute_with_gradients(call: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The result of `call`, and the gradient of each argument."""
    leaves = [each.clone().requires_grad_() for each in tensors]
    product = call(*leaves)
    product.backward(product.detach().cos())
    return [product.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]


def compute_filled(call: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    def call_filled(*leaves: torch.Tensor) -> torch.Tensor:
        with fill_rows(CPU):
            return call(*leaves)

    return compute_with_gradients(call_filled, *tensors)


def expect_same_bits(threads: Sequence[int], call: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """Results have the same bits with each number of threads, and equal PyTorch's within rounding."""
    results = []
    for number in threads:
        torch.set_num_threads(number)
        results.append(compute_filled(call, *tensors))
    for number, result in zip(threads, results, strict=True):
        assert all(map(torch.equal, result, results[0])), number
    for ours, plain in zip(results[0], compute_with_gradients(call, *tensors), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
        assert ours.stride() == plain.stride()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("rows", ROWS)
def test_products_have_the_same_bits_with_any_threads(rows: int, threads: Sequence[int]) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 128), torch.randn(256, 128), torch.randn(256)
    transposed = weight.t().contiguous()
    expect_same_bits(threads, functional.linear, x, weight, bias)
    expect_same_bits(threads, functional.linear, x.view(1, rows, 128), weight)
    expect_same_bits(threads, lambda x, weight: x @ weight, x, transposed)
    expect_same_bits(threads, torch.addmm, bias, x, transposed)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("counts", COUNTS)
def test_groups_have_the_same_bits_with_any_threads(counts: Sequence[int], threads: Sequence[int]) -> None:
    torch.manual_seed(1)
    x, weights = torch.randn(64, 128), torch.randn(8, 256, 128)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    fallback = torch.ops.transformers.grouped_mm_fallback
    for grouped in (fallback, getattr(functional, "grouped_mm", fallback)):
        expect_same_bits(threads, lambda x, weights: grouped(x, weights.transpose(-2, -1), offs=ends), x, weights)  # noqa: B023


def test_products_of_enough_rows_are_pytorch_s_own() -> None:
    torch.manual_seed(2)
    for rows in (16, 48, ENOUGH, ENOUGH + 5):
        x, weight = torch.randn(rows, 64), torch.randn(32, 64)
        assert all(
            map(
                torch.equal,
                compute_filled(functional.linear, x, weight),
                compute_with_gradients(functional.linear, x, weight),
            )
        )


def test_saved_tensors_are_those_of_the_plain_product() -> None:
    """A product with frozen weights saves no input."""
    x, weight = torch.randn(5, 64, requires_grad=True), torch.randn(32, 64)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        with fill_rows(CPU):
            functional.linear(x, weight)
            assert [tensor.data_ptr() for tensor in saved] == [weight.data_ptr()]
            functional.linear(x, weight.requires_grad_())
    assert {tensor.data_ptr() for tensor in saved} == {weight.data_ptr(), x.data_ptr()}
    assert few_rows.count_missing_rows(0) == few_rows.count_missing_rows(ENOUGH + 1) == 0


# ---- whole runs


KINDS = ("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "dbrx", "granitemoe", "llama4_text")
LATENT = ("deepseek_v2", "deepseek_v3")  # multi-head latent attention, of keys that are larger than values
TOLD = "attention: with keys of 12 elements and values of 8 a step has the same bits with the same number of compute"
KEYS = ("--compute_dtype", "fp32", "--weight_dtype", "bf16", "--virtual_ranks", "3", "--max_steps", "3",
        "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "6",
        "--save_only_model", "true")  # fmt: skip


def train_in_process(
    inputs: Path, out: Path, threads: int, *more: str, tells: bool = False
) -> tuple[list[dict[str, Any]], bytes]:
    """The log's rows and the weights of a run in a process of its own. `tells`: whether the run says that its bits
    depend on the number of threads."""
    done = subprocess.run(
        [sys.executable, "-m", "spillway", *real_runs.words(inputs, out, *KEYS, *more)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Threads: {threads} for compute" in done.stdout, done.stdout
    assert (TOLD in done.stdout) == tells, done.stdout
    return real_runs.metrics(out), (out / "model.safetensors").read_bytes()


def make_inputs(path: Path, kind: str) -> Path:
    """A small model of this type, and rows for three steps."""
    inputs = real_runs.inputs(path)
    replace_model(inputs / "model", kind)
    tiny.jsonl(inputs / "train.jsonl", tiny.text_rows(36))
    return inputs


@pytest.mark.parametrize("kind", some(KINDS, ("mixtral", "gpt_oss")))
def test_experts_train_to_the_same_bits_with_one_thread_and_two(tmp_path: Path, kind: str) -> None:
    inputs = make_inputs(tmp_path / "given", kind)
    assert train_in_process(inputs, tmp_path / "one", 1) == train_in_process(inputs, tmp_path / "two", 2)


@pytest.mark.parametrize("kind", some(LATENT, ("deepseek_v3",)))
def test_a_run_whose_attention_depends_on_the_number_of_threads_says_so(tmp_path: Path, kind: str) -> None:
    inputs = make_inputs(tmp_path / "given", kind)
    one, two = (train_in_process(inputs, tmp_path / f"{count}", count, tells=True)[0] for count in (1, 2))
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-3)


def test_short_completions_train_to_the_same_bits_with_one_thread_and_two(tmp_path: Path) -> None:
    """The head multiplies one row for each label: about nine in these completions."""
    inputs = real_runs.inputs(tmp_path / "given")
    rows = [{"prompt": row["text"], "completion": f" {number}"} for number, row in enumerate(tiny.text_rows(36))]
    (inputs / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train_in_process(inputs, tmp_path / "one", 1) == train_in_process(inputs, tmp_path / "two", 2)
