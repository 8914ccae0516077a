"""`spillway plan --profile` of runs that sample completions: their memory between two steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import LlamaConfig

from folders import REPOSITORY
from spillway import cli

SIZES = ("--max_length", "64", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
         "--compute_dtype", "bf16", "--objective", "grpo", "--num_generations", "4", "--max_completion_length", "32",
         "--reward_funcs", "rewards.score")  # fmt: skip
RECORDED = (*SIZES[:8], "--objective", "grpo")
LAYERS, WIDTH, INNER, VOCABULARY = 24, 256, 1024, 512
PARAMETERS = VOCABULARY * WIDTH + WIDTH + LAYERS * (4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH)
WEIGHTS = 2 * PARAMETERS  # bytes in bf16


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=4, tie_word_embeddings=True,
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    return tmp_path


def plan(model: Path, profile: str, *words: str) -> int:
    machine = REPOSITORY / "profiles" / f"{profile}.json"
    return cli.main(["plan", "--model", str(model), "--profile", str(machine), *words, "--json"])


def read_working_sets(output: str) -> dict[str, int]:
    """Bytes by tier."""
    found: dict[str, int] = {}
    for part in json.loads(output)["bytes"]:
        if part["class"] == "working set":
            found[part["tier"]] = found.get(part["tier"], 0) + part["bytes"]
    return found


@pytest.mark.parametrize("profile, tier", [("laptop", "dram"), ("rtx-4090", "device")])
def test_the_working_set_has_the_memory_of_sampling(
    model: Path, profile: str, tier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(model, profile, *RECORDED) == 0
    before = read_working_sets(capsys.readouterr().out)[tier]
    assert plan(model, profile, *SIZES) == 0
    said = capsys.readouterr()
    copies = 2 if tier == "dram" else 1  # products of CPUs may keep the weights in another order
    assert read_working_sets(said.out)[tier] > max(before, copies * WEIGHTS + (128 << 20))
    assert "reward_funcs: sampling takes" in " ".join(said.err.split())


def test_a_budget_without_room_for_sampling_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Near the smallest budget that fits without sampling. It has the libraries of this process, which may grow."""
    assert plan(model, "laptop", *RECORDED, "--placement", "path", "--dram_budget", "64MiB") == 3
    smallest = re.search(r"--dram_budget (\d+)MiB", capsys.readouterr().err)
    assert smallest is not None
    budget = ("--placement", "path", "--dram_budget", f"{int(smallest[1]) + 64}MiB")
    assert plan(model, "laptop", *RECORDED, *budget) == 0
    capsys.readouterr()
    assert plan(model, "laptop", *SIZES, *budget) == 3
    error = " ".join(capsys.readouterr().err.split())
    assert "which the run generates" in error
