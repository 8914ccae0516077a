"""`replay_steps` finds a flipped bit in a product of either computation before the update.

Without errors, a replayed run has the bits of a run that computes each step once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pairs
import real_runs
import spillway
import tiny
from breadth import some
from flips import Products, watch_products
from folders import PYTHONPATH
from needs import package
from real_runs import here, on_path, storage_in
from spillway.config import resolve
from spillway.config.checks import check
from spillway.errors import ComputationDiffers, InputError
from spillway.model.layers.module_state import COPIED, ModuleState
from spillway.model.stream.stream import Stream
from spillway.output.records import rows
from test_ranks import ranks_of

STEPS = 4
RUN = ("--max_steps", str(STEPS), "--compute_dtype", "fp32", "--logging_steps", "1")
SPILLED = "weight=50%,state=path,grad=path,activation=path"
KINDS: dict[str, Callable[[Path], list[str]]] = {
    "in DRAM": lambda _: ["--placement", "dram"],
    "on a path, durable": on_path,
    "on a path": lambda place: [*storage_in(place), "--placement", SPILLED, "--durability", "none"],
    "recomputing": lambda _: ["--activation_recompute", "all"],
    "keeping": lambda _: ["--activation_recompute", "none"],
    "spilling": lambda place: [*storage_in(place), "--activation_spill", "all", "--durability", "none"],
    "in tiles": lambda _: ["--token_tile", "16"],
    "bf16": lambda _: ["--compute_dtype", "bf16"],
    "early": lambda _: ["--update_schedule", "early", "--max_grad_norm", "0"],
    "on a simulated device": lambda _: ["--device", "simulated", "--gpu_memory", "1GiB"],
    "adapters": lambda _: ["--method", "lora", "--lora_r", "4", "--lora_dropout", "0.3"],
    "subspaces": lambda _: [
        *("--method", "lsp", "--lsp_rank", "8", "--lsp_nonzeros", "2", "--lsp_modules", "q_proj|down_proj|up_proj"),
        *("--lsp_check_every", "1", "--lsp_threshold", "0.01"),
    ],
    "pairs": lambda _: ["--objective", "dpo"],
    "virtual ranks": lambda _: ["--virtual_ranks", "2"],
}  # fmt: skip

QUICK = ("in DRAM", "on a path, durable", "spilling", "adapters", "subspaces")
CONTINUES = ("--replay_action", "continue")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("replays"))
    tiny.jsonl(place / "pairs.jsonl", pairs.texts(11))
    return place


def train(inputs: Path, out: Path, kind: str, *more: str) -> int:
    """Trains a run of this kind in `out`, with its storage beside it."""
    storage = out.with_name(f"{out.name}-storage")
    data = ["--dataset", str(inputs / "pairs.jsonl")] if kind == "pairs" else []
    return here(inputs, out, *data, *RUN, *KINDS[kind](storage), *more)


def read_bits(out: Path) -> tuple[list[tuple[float, float]], bytes]:
    """The losses and norms of a run, and the bytes of its model or adapters."""
    (model,) = out.glob("*model.safetensors")
    return [(row["loss"], row["grad_norm"]) for row in rows(out / "metrics.jsonl")], model.read_bytes()


def read_replay_counts(out: Path) -> dict[str, int]:
    counts: dict[str, int] = json.loads((out / "summary.json").read_text())["replay"]
    return counts


def count_products(inputs: Path, out: Path, kind: str) -> int:
    """The number of products in one computation of a step."""
    with watch_products(lambda *_: Products()) as seen:
        assert train(inputs, out, kind, "--replay_steps", str(STEPS)) == 0
    assert seen[0].count == seen[1].count > 0
    return seen[0].count


@pytest.mark.parametrize("kind", some(KINDS, QUICK))
def test_replayed_steps_without_errors_change_no_bit(inputs: Path, tmp_path: Path, kind: str) -> None:
    assert train(inputs, tmp_path / "once", kind) == 0
    assert train(inputs, tmp_path / "twice", kind, "--replay_steps", "2") == 0
    assert read_bits(tmp_path / "twice") == read_bits(tmp_path / "once")
    replayed = [row["step"] for row in rows(tmp_path / "twice" / "metrics.jsonl") if row.get("replayed")]
    assert replayed == [2, 4]
    assert read_replay_counts(tmp_path / "twice") == {"steps": 2, "differences": 0}
    assert not any("replayed" in row for row in rows(tmp_path / "once" / "metrics.jsonl"))


@pytest.mark.parametrize("kind", some(KINDS, QUICK))
def test_flipped_bit_of_a_product_reaches_no_update(inputs: Path, tmp_path: Path, kind: str) -> None:
    """One in each step, at a random product, element and bit, forward, backward or in the head. A flip that is not
    found has changed nothing. Where gradients are written once, the first computation has the flip."""
    count = count_products(inputs, tmp_path / "count", kind)
    assert train(inputs, tmp_path / "once", kind) == 0
    differences = 0
    for seed in range(2):
        drawn, out = random.Random(f"{kind} {seed}"), tmp_path / f"flipped-{seed}"

        def flip(step: int, computation: int, drawn: random.Random = drawn, seed: int = seed) -> Products:
            hit = 1 if kind == "on a path, durable" else 1 + (step + seed) % 2
            return Products(drawn.randrange(count), step) if computation == hit else Products()

        with watch_products(flip) as seen:
            assert train(inputs, out, kind, "--replay_steps", "1", "--replay_action", "continue") == 0
        words = [each.words for each in seen if each.words]
        assert len(words) == STEPS
        assert read_bits(out) == read_bits(tmp_path / "once"), words
        differences += read_replay_counts(out)["differences"]
    assert differences >= STEPS, "of eight flips most change a gradient"


def make_flip(step: int, computation: int, product: int = 3) -> Callable[[int, int], Products]:
    return lambda now, number: Products(product, 7, 22) if (now, number) == (step, computation) else Products()


@pytest.mark.parametrize("kind", ["in DRAM", "on a path, durable"])
@pytest.mark.parametrize("computation", [1, 2])
def test_difference_stops_the_run_with_the_state_of_the_step_before(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, computation: int
) -> None:
    assert train(inputs, tmp_path / "once", kind) == 0
    out = tmp_path / "out"
    capsys.readouterr()
    with watch_products(make_flip(3, computation)):
        assert train(inputs, out, kind, "--replay_steps", "1") == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "two computations of step 3 differ, first in the output of model.layers.0 for micro-batch 0" in error
    assert f"the {('first', 'second')[computation - 1]} one was wrong" in error
    assert "memory test" in error and "another machine" in error
    assert ("Step 2 is durable" if "durable" in kind else "Step 2 is saved in") in error
    assert "spillway resume" in error
    assert [row["step"] for row in rows(out / "metrics.jsonl")] == [1, 2]
    assert here(inputs, out, str(out), verb="resume") == 0
    assert read_bits(out) == read_bits(tmp_path / "once")


def test_wrong_second_computation_of_a_durable_step_is_skipped(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watch_products(make_flip(2, 2)):
        assert train(inputs, tmp_path / "out", "on a path, durable", "--replay_steps", "1", *CONTINUES) == 0
    assert "so the step was skipped" in " ".join(capsys.readouterr().out.split())
    logged = list(rows(tmp_path / "out" / "metrics.jsonl"))
    assert [row.get("skipped", False) for row in logged] == [False, True, False, False]
    assert "replay_difference" in logged[1]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["skipped_steps"] == 1


@pytest.mark.parametrize("action", ["stop", "continue"])
def test_nondeterministic_code_is_named(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    def flip_always(step: int, computation: int) -> Products:
        return Products(3, computation, 22)  # each call flips another element

    with watch_products(flip_always):
        assert train(inputs, tmp_path / "out", "in DRAM", "--replay_steps", "2", "--replay_action", action) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "is not deterministic and cannot be replayed" in error and "Remove replay_steps" in error
    assert "Step 1 is saved in" in error


@pytest.mark.parametrize("action", ["stop", "continue"])
def test_weights_that_change_in_memory_are_named_and_not_saved(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    compute, calls = Stream.compute, [0]

    def flip(self: Stream, *more: Any) -> float:
        loss = compute(self, *more)
        calls[0] += 1
        if calls[0] == 3:  # the first computation of step 2
            leaf = next(leaf for leaf in self._stack[1]._now if leaf.dim() == 2)
            leaf.detach().view(torch.int32)[1, 1] ^= 1 << 20
        return loss

    monkeypatch.setattr(Stream, "compute", flip)
    assert train(inputs, tmp_path / "out", "in DRAM", "--replay_steps", "1", "--replay_action", action) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "first in the weights of model.layers.1" in error and "weights in memory have changed" in error
    assert "Step 1 is not saved" in error
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_trainer_stops_at_a_difference(inputs: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import loaded, parts

    trainer = Trainer(model=loaded(inputs, replay_steps=2), **parts(inputs, tmp_path / "out"))
    differs = pytest.raises(ComputationDiffers, match=r"computations of step 2 differ.* first one was wrong")
    with watch_products(make_flip(1, 1)), differs:
        trainer.train()
    assert trainer.state.global_step == 1
    trainer.save_model(str(tmp_path / "saved"))  # the weights of step 1
    assert (tmp_path / "saved" / "model.safetensors").stat().st_size > 0


def test_session_continues_after_a_difference(inputs: Path, tmp_path: Path) -> None:
    keys = {"model": str(inputs / "model"), "compute_dtype": "fp32", "placement": "dram", "max_length": 16}
    keys |= {"profile": str(inputs / "profile.json"), "max_steps": 3, "learning_rate": 1e-3}
    ids = torch.arange(32).view(2, 16) % 50
    batch = {"input_ids": ids, "labels": ids}
    runs = []
    for more in ({}, {"replay_steps": 2}, {"replay_steps": 2, "replay_action": "continue"}):
        with watch_products(make_flip(1, 2) if "replay_action" in more else lambda *_: Products()):
            with spillway.Session(keys | more) as session:
                runs.append([session.step(batch) for _ in range(3)])
    losses = [[row["loss"] for row in steps] for steps in runs]
    assert losses[0] == losses[1] == losses[2]
    assert [row.get("replayed", False) for row in runs[1]] == [False, True, False]
    assert "the second one was wrong; the step goes on" in runs[2][1]["replay_difference"]


RANK_SCRIPT = """
import os, sys
from flips import Products, watch_products
from spillway.cli import main
hit = (2, 1) if os.environ["RANK"] == "1" else (0, 0)
with watch_products(lambda *place: Products(3, 7, 22) if place == hit else Products()):
    sys.exit(main(sys.argv[1:]))
"""


def test_difference_in_one_of_two_processes_stops_both_and_is_named(inputs: Path, tmp_path: Path) -> None:
    keys = ("--virtual_ranks", "2", "--gradient_accumulation_steps", "2", "--replay_steps", "1")
    words = real_runs.words(inputs, tmp_path / "out", *keys, *RUN, "--placement", "dram")
    ends = ranks_of(RANK_SCRIPT, 2, *words, env_more={"PYTHONPATH": PYTHONPATH})
    assert [code for *_, code in ends] == [1, 1], ends
    error = " ".join(" ".join(error for _, error, _ in ends).split())
    assert "computations of step 2 differ, first in the output of model.layers.0" in error
    assert "in the process of rank 1" in error and "Step 1 is saved in" in error


def test_plan_has_the_cost_of_replays(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = real_runs.words(inputs, tmp_path / "out", *RUN, "--replay_steps", "10", verb="plan")
    assert real_runs.main(words) == 0
    assert "One of every 10 steps is computed twice" in " ".join(capsys.readouterr().out.split())
    assert real_runs.main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["replay"] == {"every": 10, "seconds": plan["predicted_step_seconds"], "share": 0.1}


def test_action_without_replayed_steps_is_refused() -> None:
    keys = {"model": "m", "dataset": "d", "output_dir": "o"}
    with pytest.raises(InputError, match=r"replay_action: continue .*--replay_steps N"):
        check(resolve({}, keys | {"replay_action": "continue"}))
    for wrong in (0, -1, 1.5):
        with pytest.raises(InputError, match="replay_steps"):
            resolve({}, keys | {"replay_steps": wrong})


class CallCounter(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(size))
        self.longest = 0

    def forward(self, length: int) -> None:
        self.calls += 1
        self.longest = max(self.longest, length)


def test_state_of_modules_is_restored() -> None:
    model = nn.Sequential(CallCounter(3), CallCounter(2))
    model[0](5)
    state = ModuleState(model)
    for module in model:
        module(9)
    model[1].calls = torch.ones(7)
    assert state.restore() == ""
    assert [module.longest for module in model] == [5, 0]
    assert [module.calls.tolist() for module in model] == [[1, 1, 1], [0, 0]]


def test_large_buffer_that_changes_is_named() -> None:
    model = nn.Sequential(CallCounter(COPIED))
    state = ModuleState(model)
    assert state.restore() == ""
    model[0](1)
    assert state.restore() == "0.calls"
