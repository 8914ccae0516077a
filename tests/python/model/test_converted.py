"""Runs of models whose files are not named or shaped as their modules: resumed, exported, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import real_runs
from both_ways import replace_model, tensors
from breadth import some
from hf_models import random_ids
from spillway.cli import main

Tensors = dict[str, torch.Tensor]


def as_they_are(found: Tensors) -> Tensors:
    return found


def with_a_layer_that_is_passed_over(found: Tensors) -> Tensors:
    """Multi-token prediction: the library ignores it at load, a save must not lose it."""
    return found | {"model.layers.61.eh_proj.weight": torch.arange(6.0).view(2, 3)}


def of_older_names(found: Tensors) -> Tensors:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in found.items()
    }


KINDS: dict[str, Callable[[Tensors], Tensors]] = {
    "mixtral": as_they_are,  # experts apart in files, fused in modules
    "gpt_neox": as_they_are,  # other names in files
    "deepseek_v3": with_a_layer_that_is_passed_over,  # and buffers, in fp32
    "bert": of_older_names,
}


@pytest.fixture(scope="module", params=some(KINDS, ("mixtral", "deepseek_v3")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    real_runs.inputs(place)
    model = place / "model"
    replace_model(model, request.param)
    weights = model / "model.safetensors"
    save_file(KINDS[request.param](load_file(weights)), weights, {"format": "pt"})
    return place


@pytest.fixture(scope="module")
def whole(given: Path) -> Path:
    """Four steps without an interruption, in DRAM; a checkpoint after two."""
    assert run(given, given / "whole", "--max_steps", "4", "--save_steps", "2") == 0
    return given / "whole"


def run(given: Path, out: Path, *more: str) -> int:
    words = ["--max_length", "32", "--lr_scheduler_type", "constant", "--placement", "dram", *more]
    return real_runs.here(given, out, *words)


def same(ours: Path, other: Path) -> None:
    one, two = tensors(ours), tensors(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) and value.dtype == two[name].dtype for name, value in one.items())


def test_what_is_saved_has_the_files_names_and_forms(given: Path, whole: Path) -> None:
    source, saved = tensors(given / "model"), tensors(whole)
    assert source.keys() == saved.keys()
    assert all(value.shape == saved[name].shape for name, value in source.items())
    if "model.layers.61.eh_proj.weight" in source:
        assert torch.equal(source["model.layers.61.eh_proj.weight"], saved["model.layers.61.eh_proj.weight"])
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.bfloat16)
    model.save_pretrained(given / "again")
    again = tensors(given / "again")
    assert all(again[name].dtype == saved[name].dtype for name in again)
    assert torch.isfinite(model(random_ids(1, 8, 3)).logits).all()


def test_gone_back_to_a_checkpoint(given: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    words = ["--max_steps", "4", "--save_steps", "2", "--resume_from_checkpoint", str(tmp_path / "out/checkpoint-2")]
    assert run(given, tmp_path / "out", *words) == 0
    same(tmp_path / "out", whole)
    assert real_runs.result(tmp_path / "out") == real_runs.result(whole)


def test_taken_further_from_the_paths_and_exported(given: Path, whole: Path, tmp_path: Path) -> None:
    """No process of the resumed run has read the model's files."""
    path = real_runs.on_path(tmp_path / "storage")
    assert run(given, tmp_path / "out", "--max_steps", "2", *path) == 0
    assert run(given, tmp_path / "out", "--max_steps", "4", *path, "--resume_from_checkpoint", "true") == 0
    same(tmp_path / "out", whole)
    assert main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "alone")]) == 0
    same(tmp_path / "alone", whole)
