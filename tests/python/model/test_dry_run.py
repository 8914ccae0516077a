"""The dry run: what it measures is there, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from folders import PYTHONPATH
from spillway.machine import process_memory
from spillway.model.meta.layer_arguments import Arguments, argument_bytes

KINDS = {"forward", "backward", "tail_forward", "tail_backward", "head_loss", "head_gradient", "between"}
MEGABYTE = 1 << 20

# A process of its own: the peak is a fact of a whole process, and this one's heap has holes of any size.
MEASURE = """
import json, os, torch
from hf_models import tiny_config
from spillway.config import resolve
from spillway.errors import DoesNotFit
from spillway.machine import process_memory as heap
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import Adapters
from spillway.model.measure import dry_run as module
from spillway.model.measure.dry_run import profile_dry_run
from spillway.model.meta.building import build
from spillway.model.batches.batch import WorkShape

if os.environ.get("SPILLWAY_NIGHTLY", "0") in ("", "0"):
    module.MOST_RUNS = module.LEAST_RUNS = 2
heap.settle()
wide = build(tiny_config("llama", hidden_size=64, intermediate_size=4096), torch.float32)
tiny = build(tiny_config("qwen2"), torch.float32)
found = {}
# Before the heap has holes; and larger than any, and than the stacks of many threads: four times 512 MiB at once.
wider = build(tiny_config("llama", hidden_size=64, intermediate_size=65536), torch.float32)
try:
    profile_dry_run(wider, "fp32", WorkShape(1, 32, 64, 0, 0), False, budget=heap.resident() + (16 << 20))
    found["no room"] = "nothing was refused"
except DoesNotFit as error:
    found["no room"] = str(error)
for name, meta_model, dtype, shape, packing in [
    ("one", tiny, "fp32", WorkShape(1, 2, 32, 0, 0), False),
    ("many", tiny, "fp32", WorkShape(64, 2, 32, 0, 0), False),
    ("packed", tiny, "fp32", WorkShape(64, 2, 32, 0, 0), True),
    ("small", wide, "fp32", WorkShape(1, 1, 64, 0, 0), False),
    ("large", wide, "fp32", WorkShape(1, 16, 64, 0, 0), False),
    ("evaluation", wide, "fp32", WorkShape(1, 1, 8, 64, 64), False),
]:
    result = profile_dry_run(meta_model, dtype, shape, packing)
    found[name] = {"process": result.process_bytes, "work": result.work_bytes, "seconds": result.seconds}
    found[name]["meta"] = all(parameter.is_meta for parameter in meta_model.model.parameters())
given, made = module.sample, []
module.sample = lambda model, sequences, length, rows: made.append(rows) or given(model, sequences, length, rows)
for rows in (1.0, 1.2, 6.4):
    made.clear()
    profile_dry_run(tiny, "fp32", WorkShape(1, 1, 32, 0, 0, packed_rows=rows), True)
    found[f"joined {rows}"] = sorted(set(made))
module.sample = given
peak = heap.peak
# The second as if all libraries' pages had left since.
for name, rows, peak_now in [("half", 24, peak), ("reclaimed", 8, lambda: 0)]:
    heap.peak = peak_now
    result = profile_dry_run(wide, "fp32", WorkShape(1, rows, 64, 0, 0), False, half=True)
    found[name] = {"work": result.work_bytes, "seconds": result.seconds, "per_token": result.per_token}
heap.peak = peak
before = heap.resident()
try:
    with heap.bounded(before + (64 << 20)):
        fits = torch.ones(32 << 20, dtype=torch.uint8)
        del fits
        torch.ones(256 << 20, dtype=torch.uint8)
    found["bounded"] = "nothing was refused"
except heap.OutOfBounds:
    found["bounded"] = "refused"
found["after"] = int(torch.ones(256 << 20, dtype=torch.uint8)[-1])
budget = heap.resident() + (96 << 20)
for name, shape in [("long", WorkShape(1, 1, 65536, 0, 0)), ("many rows", WorkShape(1, 4096, 64, 0, 0))]:
    result = profile_dry_run(wide, "fp32", shape, False, budget=budget)
    measured = result.measured_rows * result.measured_length
    found[name] = {"work": result.work_bytes, "measured": measured}
result = profile_dry_run(tiny, "fp32", WorkShape(1, 1, 2048, 0, 0), True, budget=1 << 34)
found["room"] = {"measured": result.measured_length, "left": result.left_bytes}
for method in ("kernel", "sampled"):
    if method == "sampled":
        heap.CLEAR_REFS = heap.CLEAR_REFS / "not" / "there"
    before = heap.resident()
    with heap.PeakWatch() as watch:
        block = torch.ones(256 << 20, dtype=torch.uint8)
        for _ in range(20):
            block.add_(1)
        del block
    found[method] = {"before": before, "peak": watch.bytes}
sizes = {"num_experts": 128, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "hidden_size": 512}
experts = build(tiny_config("qwen3_moe", False, **sizes), torch.bfloat16)
Adapters({"r": 2, "target_modules": ["q_proj"]}, 1).adapt(experts)
quantised.choose(experts, resolve({}, {"method": "lora", "load_in_4bit": True}))
heap.give_back()
before = heap.resident()
with heap.PeakWatch() as watch:  # which samples now, so that the dry run's own watch takes nothing from it
    result = profile_dry_run(experts, "bf16", WorkShape(1, 1, 64, 0, 0), False)
found["experts"] = {"held": watch.bytes - before, "work": result.work_bytes, "seconds": result.seconds}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    paths = [PYTHONPATH, *sys.path]  # the package as this process has it, installed or not
    child = subprocess.run(
        [sys.executable, "-c", MEASURE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return dict(json.loads(child.stdout))


def test_every_kind_of_pass_has_its_seconds(measured: dict[str, Any]) -> None:
    for name in ("one", "many", "packed", "small", "large", "evaluation"):
        assert measured[name]["seconds"].keys() == KINDS
        assert all(value > 0 for value in measured[name]["seconds"].values())
        assert measured[name]["meta"] and measured[name]["process"] > 50 * MEGABYTE


def total(found: dict[str, Any]) -> int:
    return int(found["process"] + found["work"])


def test_the_peak_covers_the_temporaries(measured: dict[str, Any]) -> None:
    """At once, in backward: gate, up, their product and its gradient, [1024 tokens, 4096] fp32 each."""
    large = total(measured["large"]) - total(measured["small"])
    assert 4 * 16 * MEGABYTE < large < 16 * 16 * MEGABYTE


def test_evaluation_at_a_larger_shape_has_a_dry_run_too(measured: dict[str, Any]) -> None:
    """Forward: gate, up and their product, [4096 tokens, 4096] fp32 each."""
    assert total(measured["evaluation"]) - total(measured["small"]) > 3 * 64 * MEGABYTE


def test_half_the_rows_say_how_memory_grows_with_tokens(measured: dict[str, Any]) -> None:
    """Backward keeps gate, up, their product and its gradient at least: 4096 fp32 values each of every token."""
    values = measured["half"]["per_token"][0] / 4096 / 4
    assert 3 < values < 24
    assert measured["half"]["seconds"].keys() == KINDS


def test_pages_of_libraries_that_leave_meanwhile_hide_nothing(measured: dict[str, Any]) -> None:
    """By the peak alone it would be some KiB; how much the heap grows depends on what it has free from before."""
    assert measured["reclaimed"]["work"] > 16 * MEGABYTE


def test_micro_batches_add_what_they_keep_and_no_temporaries(measured: dict[str, Any]) -> None:
    assert measured["many"]["work"] < measured["one"]["work"] + 16 * MEGABYTE
    assert measured["packed"]["work"] < measured["one"]["work"] + 16 * MEGABYTE


@pytest.mark.parametrize("method", ["kernel", "sampled"])
def test_the_peak_is_measured_with_and_without_the_kernels_help(measured: dict[str, Any], method: str) -> None:
    assert measured[method]["peak"] > 250 * MEGABYTE
    assert measured[method]["peak"] < measured[method]["before"] + 300 * MEGABYTE


def test_what_passes_a_bound_is_refused_and_the_process_goes_on(measured: dict[str, Any]) -> None:
    assert measured["bounded"] == "refused" and measured["after"] == 1


def test_a_dry_run_holds_a_few_of_the_experts_that_are_codes(measured: dict[str, Any]) -> None:
    """A layer of them takes 192 MiB in bf16. A run keeps codes, and makes values of four experts at a time."""
    found = measured["experts"]
    assert 0 < found["held"] < 128 * 3 * 512 * 512 * 2
    assert found["seconds"]["forward"] > 0 and found["seconds"]["backward"] > 0


NO_ROOM_FOR_CODE = """
import sys, torch
from hf_models import tiny_config
from spillway.errors import DoesNotFit
from spillway.machine import process_memory
from spillway.model.measure import dry_run
from spillway.model.batches.batch import WorkShape
from spillway.model.meta.building import build

def product(inner):
    return torch.ones(32, inner, dtype=torch.bfloat16) @ torch.ones(inner, 48, dtype=torch.bfloat16)

def products(*_):
    with process_memory.bounded(process_memory.resident() + 1):
        for inner in range(16, 8192, 16):
            product(inner)
    print("nothing was refused")
    sys.exit()

model = build(tiny_config("llama"), torch.bfloat16)
process_memory.settle()
product(8)
heap = torch.ones(64 << 20, dtype=torch.uint8)  # which keeps it: room for tensors, and none for code
del heap
if sys.argv[1] == "dry run":
    dry_run.Measurement.run = products
    products = lambda: dry_run.profile_dry_run(model, "bf16", WorkShape(1, 1, 8, 0, 0), False, budget=1 << 30)
try:
    products()
except DoesNotFit as refused:
    print(refused)
try:
    print(product(8200)[0, 0].item())
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("where", "after"),
    [("here", process_memory.NO_CODE), ("dry run", "8192.0")],  # 8200 in bf16
)
def test_a_thread_that_was_refused_room_for_code_measures_no_more(where: str, after: str) -> None:
    """oneDNN's own code, which is refused to it for good: that it does not fit is told before anything trains. A dry
    run has a thread of its own, so that one with a larger budget can follow."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([PYTHONPATH, *sys.path])}
    child = subprocess.run(
        [sys.executable, "-c", NO_ROOM_FOR_CODE, where], env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    if child.stdout == "nothing was refused\n":
        pytest.skip("processor: products of bf16 are made without code of oneDNN's")
    refused, found = child.stdout.splitlines()
    assert refused.startswith("does not fit in DRAM: what is measured of one layer alone takes more than dram_budget")
    assert found == after


@pytest.mark.parametrize(("name", "tokens"), [("long", 65536), ("many rows", 4096 * 64)])
def test_rows_without_room_are_extrapolated(measured: dict[str, Any], name: str, tokens: int) -> None:
    """At least gate, up, their product and its gradient, [tokens, 4096] fp32 each: 4 GiB of 64 Ki tokens, 16 of 256."""
    found = measured[name]
    assert 0 < found["measured"] < tokens
    assert found["work"] > 4 * 4 * 4096 * tokens


def test_rows_that_have_room_are_measured_at_their_length(measured: dict[str, Any]) -> None:
    assert measured["room"]["measured"] == 2048 and measured["room"]["left"] >= 0


def test_without_room_for_anything_the_refusal_says_so(measured: dict[str, Any]) -> None:
    assert "a layer over 32 rows of 64 tokens alone takes more than dram_budget" in measured["no room"]


def test_packed_rows_are_as_long_as_those_of_the_data(measured: dict[str, Any]) -> None:
    """Memory is that of two at least, where any are joined."""
    assert measured["joined 1.0"] == [1] and measured["joined 1.2"] == [1, 2] and measured["joined 6.4"] == [2, 6]


def test_arguments_are_counted_once() -> None:
    table = torch.zeros(10, 8)
    calls = [
        Arguments(None, (table,), {"pair": (table, table[1:])}),
        Arguments("x", (), {"mask": {"a": torch.ones(4)}}),
    ]
    assert argument_bytes(calls) == 320 + 16
