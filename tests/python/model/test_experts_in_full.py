"""Experts that are trained in full and come when tokens are routed to them: the bits of layers that come whole, and
fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import both_ways
import real_runs
import seeds
import tiny
from breadth import some
from hf_models import tiny_config
from needs import package
from spillway.cli import main
from spillway.config import resolve
from spillway.errors import InputError
from spillway.model.adapters import quantised
from spillway.model.meta.building import build
from spillway.output.records import rows
from test_quantised import KILLED, LIMIT, MOE

EXPERTS = 16
# Each matrix of an expert is whole chunks: a multiple of 2,048 values.
SIZES = {**MOE, "num_experts": EXPERTS, "moe_intermediate_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
SHORT = ["--max_length", "8", "--per_device_train_batch_size", "1", "--weight_decay", "0.1", "--max_grad_norm", "0.5"]
WORDS = [*SHORT, "--gradient_accumulation_steps", "1"]
ON_DEMAND = ["--expert_loading", "on_demand"]
DEVICE = ["--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"]
KINDS: dict[str, list[str]] = {
    "adamw": [],
    "int8": ["--state_format", "int8"],
    "muon": ["--optim", "muon"],
    "fp32": ["--weight_dtype", "fp32", "--compute_dtype", "fp32"],
    "accumulated": ["--gradient_accumulation_steps", "2"],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts beside the rows, tokenizer and profile of every run."""
    directory = real_runs.inputs(tmp_path_factory.mktemp("experts"))
    for name in ("config.json", "model.safetensors"):
        (directory / "model" / name).unlink()
    both_ways.save(tiny_config("qwen3_moe", False, vocab_size=len(tiny.tokenizer()), **SIZES), directory / "model", 7)
    return directory


def model(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def read_rows(out: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "experts_met"} for row in real_runs.metrics(out)]


def sum_bytes(out: Path, direction: str) -> int:
    """Read or written by the steps after the first, on all paths."""
    steps = [row for row in rows(out / "metrics.jsonl") if "path_bytes" in row][1:]
    return sum(path[direction] for row in steps for path in row["path_bytes"].values())


def train_on_paths(inputs: Path, tmp_path: Path, words: list[str]) -> tuple[Path, Path]:
    """The runs `whole` and `met`, which end with the same model."""
    for name, more in (("whole", []), ("met", ON_DEMAND)):
        storage = real_runs.storage_in(tmp_path / f"{name}-path")
        assert real_runs.here(inputs, tmp_path / name, *words, "--placement", "path", *storage, *more) == 0
    assert model(tmp_path / "met") == model(tmp_path / "whole")
    return tmp_path / "whole", tmp_path / "met"


@pytest.mark.parametrize("kind", some(KINDS, ["adamw", "int8", "muon"]))
def test_trained_experts_change_no_bit_wherever_they_lie(kind: str, inputs: Path, tmp_path: Path) -> None:
    words = [*WORDS, *KINDS[kind], "--max_steps", "6"]
    assert real_runs.here(inputs, tmp_path / "whole", *words) == 0
    places = {
        "dram": [],
        "half": real_runs.on_path(tmp_path / "half-path"),
        "path": [*real_runs.storage_in(tmp_path / "path-path"), "--placement", "path"],
        "device": DEVICE,
        "device and path": [*real_runs.storage_in(tmp_path / "both-path"), "--placement", "path", *DEVICE],
        "path of checkpoints": [*real_runs.on_path(tmp_path / "saved-path"), "--durability", "checkpoint"],
        "device and path that waits": [*real_runs.on_path(tmp_path / "wait-path"), "--durability", "none", *DEVICE],
    }
    for place, more in places.items():
        assert real_runs.here(inputs, tmp_path / place, *words, *ON_DEMAND, *more) == 0
        assert model(tmp_path / place) == model(tmp_path / "whole"), place
        assert read_rows(tmp_path / place) == read_rows(tmp_path / "whole"), place


def test_experts_that_no_token_meets_change_by_decay_and_moments_for_many_steps(inputs: Path, tmp_path: Path) -> None:
    """50 steps of a few tokens, on the host and from a device."""
    words = [*WORDS, "--max_steps", "50", "--learning_rate", "1e-2"]
    for name, more in (("whole", []), ("met", ON_DEMAND), ("device", [*ON_DEMAND, *DEVICE])):
        assert real_runs.here(inputs, tmp_path / name, *words, *more) == 0
    assert model(tmp_path / "met") == model(tmp_path / "device") == model(tmp_path / "whole")
    shares = [row["experts_met"] for row in rows(tmp_path / "met" / "metrics.jsonl") if "loss" in row]
    assert len(shares) == 50 and max(shares) < 1


@pytest.mark.parametrize("durability", ["none", "checkpoint"])
def test_a_step_of_few_tokens_reads_and_writes_fewer_of_them(durability: str, inputs: Path, tmp_path: Path) -> None:
    whole, met = train_on_paths(inputs, tmp_path, [*WORDS, "--max_steps", "6", "--durability", durability])
    plans = [json.loads((out / "plan.json").read_text())["path_bytes_per_step"]["path:0"] for out in (whole, met)]
    for direction in ("read", "written"):
        assert sum_bytes(met, direction) < 0.85 * sum_bytes(whole, direction)
        assert sum_bytes(met, direction) <= 5 * plans[1][direction] < 0.95 * 5 * plans[0][direction]


def test_durable_steps_read_fewer_of_them_in_backward_alone(inputs: Path, tmp_path: Path) -> None:
    whole, met = train_on_paths(inputs, tmp_path, [*WORDS, "--max_steps", "6", "--durability", "step"])
    assert 0.9 * sum_bytes(whole, "read") < sum_bytes(met, "read") < sum_bytes(whole, "read")
    assert sum_bytes(met, "written") >= 0.9 * sum_bytes(whole, "written")


def test_evaluations_and_checkpoints_find_the_updates_that_wait(inputs: Path, tmp_path: Path) -> None:
    """Losses of held-out rows after each second step, and the checkpoints of each third one."""
    held_out = ["--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_strategy", "steps", "--eval_steps", "2"]
    words = [*WORDS, *held_out, "--max_steps", "8", "--save_steps", "3", "--learning_rate", "1e-2"]
    whole, met = train_on_paths(inputs, tmp_path, [*words, "--durability", "none"])
    assert read_rows(met) == read_rows(whole)
    assert sum("eval_loss" in row for row in read_rows(met)) >= 4
    for step in (3, 6):
        saved = [sorted((out / f"checkpoint-{step}").rglob("*.safetensors")) for out in (whole, met)]
        assert saved[0] and [it.name for it in saved[0]] == [it.name for it in saved[1]]
        for ours, plain in zip(*saved, strict=True):
            assert ours.read_bytes() == plain.read_bytes(), ours


def test_frozen_experts_without_codes_come_on_demand_beside_adapters(inputs: Path, tmp_path: Path) -> None:
    package("peft", "LoRA is PEFT's")
    targets = ["--lora_target_modules", "q_proj", "--lora_target_modules", "v_proj"]
    words = [*SHORT, "--method", "lora", "--lora_r", "4", *targets, "--max_steps", "6", "--durability", "none"]
    for name, more in (("whole", []), ("met", ON_DEMAND)):
        storage = [*real_runs.storage_in(tmp_path / f"{name}-path"), "--placement", "path"]
        assert real_runs.here(inputs, tmp_path / name, *words, *storage, *more) == 0
    ours, plain = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("met", "whole"))
    assert ours == plain
    assert sum_bytes(tmp_path / "met", "read") < 0.9 * sum_bytes(tmp_path / "whole", "read")


@pytest.mark.parametrize("durability", ["step", "checkpoint"])
def test_a_run_killed_and_resumed_on_a_path_ends_as_in_memory(
    durability: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, *ON_DEMAND, "--max_steps", "8", "--save_steps", "3"]
    assert real_runs.here(inputs, tmp_path / "whole", *words) == 0
    on_path = [*words, "--resume_from_checkpoint", "auto", "--storage", f"{tmp_path},capacity=1GiB"]
    on_path += ["--placement", "path", "--durability", durability]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants(f"experts-in-full-{durability}").uniform(0.005, 0.2)))
    process = real_runs.apart("-c", KILLED, *real_runs.words(inputs, tmp_path / "out", *on_path))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode in (0, -14), (error, seeds.said())
    assert real_runs.here(inputs, tmp_path / "out", *on_path) == 0
    assert model(tmp_path / "out") == model(tmp_path / "whole"), seeds.said()
    if durability != "step":
        return
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]) == 0
    exported, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("exported", "out"))
    assert exported.keys() == trained.keys()


def test_a_plan_of_trained_experts_counts_on_those_that_tokens_meet(
    inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*more: str) -> tuple[dict[str, Any], str]:
        words = ["plan", "--model", str(inputs / "model"), "--profile", "two-drives", "--json"]
        assert main([*words, "--per_device_train_batch_size", "1", *more]) == 0
        out = capsys.readouterr()
        return json.loads(out.out), out.err

    few, told = plan("--max_length", "8", "--placement", "path", *ON_DEMAND)
    assert "meet 66% of a layer's experts" in told
    whole, told = plan("--max_length", "8", "--placement", "path")
    assert "expert_loading" not in told
    assert few["seconds"] != whole["seconds"]
    _, told = plan("--max_length", "512", *ON_DEMAND)
    assert "meet all experts of a layer, so layers come whole" in told


def test_experts_of_odd_sizes_and_subspaces_are_refused(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta_model = build(tiny_config("qwen3_moe", False, **{**SIZES, "moe_intermediate_size": 24}), torch.bfloat16)
    with pytest.raises(InputError, match="1,536 values cannot come on demand, which takes multiples of 2,048"):
        quantised.choose(meta_model, resolve({}, {"expert_loading": "on_demand"}))
    assert real_runs.here(inputs, tmp_path / "out", *WORDS, *ON_DEMAND, "--method", "lsp") == 2
    assert "expert_loading: on_demand is for method full or lora, and the method is lsp" in capsys.readouterr().err
