"""Parameters that are frozen: equal to a plain loop that froze the same, unchanged, refused where that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import both_ways
import real_runs
from breadth import some
from hf_models import tiny_config
from spillway.errors import InputError
from spillway.model.checkpoint.freeze import freeze, frozen_names


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("frozen"))


CHOICES: list[dict[str, Any]] = [
    {"frozen": ["mlp", "embed"]},
    {"trainable": [r"layers\.2", r"^lm_head", "embed"], "frozen": ["bias"]},  # tied: the head is the embedding
    {"frozen": [r"layers\.[01]\.", "embed_tokens", "lm_head"]},  # backward ends above them
    {"trainable": ["norm"]},
    {"trainable": ["lm_head"]},  # untied: nothing but the head learns
    {"frozen": ["lm_head"]},
]


KINDS = [(0, True), (1, True), (2, True), (2, False), (3, True), (4, False), (5, False)]


@pytest.mark.parametrize("place", ["path", pytest.param("dram", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("number", "tied"), some(KINDS, [KINDS[0], KINDS[2], KINDS[5], KINDS[6]]))
def test_equals_a_plain_loop(number: int, tied: bool, place: str, tmp_path: Path) -> None:
    config = tiny_config("qwen2", tied, num_hidden_layers=3)
    more = {"placement": "path", "storage": tmp_path} if place == "path" else {}
    both_ways.compare(config, tmp_path, **CHOICES[number], **more)
    found = load_file(tmp_path / "saved" / "model.safetensors")
    begun = load_file(tmp_path / "model" / "model.safetensors")
    model = both_ways.load(tmp_path / "model")
    freeze(model, **CHOICES[number])
    still = frozen_names(model)
    assert {name for name in found if torch.equal(found[name], begun[name])} == still & found.keys()


@pytest.mark.parametrize("kind", some(["gemma3n_text", "zamba2", "gpt2", "qwen2_moe"], ["zamba2"]))
def test_of_other_kinds_of_models(kind: str, tmp_path: Path) -> None:
    """Shared keys and values, layers that share parameters, position tables, routers."""
    from small_configs import small_config

    both_ways.compare(small_config(kind), tmp_path, frozen=["embed|wte", r"\.0\."])


def test_a_pattern_that_finds_nothing_or_everything_is_refused(given: Path) -> None:
    model = both_ways.load(given / "model")
    with pytest.raises(InputError, match=r"trainable: 'layer_0' matches no parameter; .* such as model\.embed"):
        freeze(model, ["layer_0"])
    with pytest.raises(InputError, match=r"frozen: 'q_prj' matches no parameter"):
        freeze(model, ["layers"], ["q_prj"])
    with pytest.raises(InputError, match="frozen: with 'model', 'lm_head' no parameter is left to train"):
        freeze(both_ways.load(given / "model"), (), ["model", "lm_head"])


def test_a_run_is_resumed_with_the_same_choice_alone(given: Path, tmp_path: Path, capsys: Any) -> None:
    choice = ("--frozen", "embed", "--frozen", "mlp")
    storage = real_runs.on_path(tmp_path / "path")
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert real_runs.here(given, whole, *choice, "--max_steps", "6") == 0
    assert "parameters are trainable" in capsys.readouterr().out.replace("\n", " ")
    plan = json.loads((whole / "plan.json").read_text())
    assert 0 < plan["learning_parameters"] < plan["parameters"] / 2
    assert real_runs.here(given, again, *storage, *choice, "--max_steps", "4", "--save_steps", "2") == 0
    for other in (("--frozen", "embed"), (), (*choice, "--trainable", "layers")):
        words = (*storage, *other, "--max_steps", "6", "--resume_from_checkpoint", "true")
        assert real_runs.here(given, again, *words) == 2
        said = capsys.readouterr().err
        assert (
            "frozen: the run was started with embed mlp" in said or "trainable: the run was started with none" in said
        )
    words = (*storage, *choice, "--max_steps", "6", "--lr_scheduler_type", "linear", "--resume_from_checkpoint", "true")
    assert real_runs.here(given, again, *words) == 0
    assert real_runs.metrics(whole)[:1] == real_runs.metrics(again)[:1]
    begun, tuned = (load_file(path / "model.safetensors") for path in (given / "model", again))
    for name, tensor in tuned.items():
        assert torch.equal(begun[name].to(tensor.dtype), tensor) == ("embed" in name or "mlp" in name), name


def test_check_freezes_both_ways(given: Path, tmp_path: Path, capsys: Any) -> None:
    words = ("--frozen", "mlp|embed", "--compute_dtype", "fp32", "--max_steps", "3")
    assert real_runs.here(given, tmp_path / "out", *words, verb="check") == 0
    assert "equal but for rounding" in capsys.readouterr().out


def test_the_command_line_names_the_pattern(given: Path, tmp_path: Path, capsys: Any) -> None:
    assert real_runs.here(given, tmp_path / "out", "--frozen", "emb(ed") == 2
    assert "frozen: got ['emb(ed'], expects a regular expression" in capsys.readouterr().err
    assert real_runs.here(given, tmp_path / "out", "--trainable", "lora", verb="plan") == 2
    assert "trainable: 'lora' matches no parameter" in capsys.readouterr().err
