"""Adapters belong to one base. Its files may be touched, copied and moved; another base is refused by its file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import real_runs
from needs import package
from real_runs import apart, here, words
from spillway.cli import main
from spillway.errors import InputError
from spillway.output import base_files

package("peft", "LoRA is PEFT's")
LIMIT = 300  # seconds that a process of its own may take at most
KEYS = ["--max_steps", "4", "--save_steps", "2"]
LORA = ["--method", "lora", "--lora_r", "4"]
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)
WAYS = {
    "dram": [*LORA, "--placement", "dram"],
    "nf4": [*LORA, "--placement", "dram", "--load_in_4bit"],
    "durable": [*LORA, "--placement", "weight=dram,state=path,grad=path,activation=dram"],
    "path": [*LORA, "--placement", "path"],
}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "inputs").mkdir()
    return real_runs.inputs(tmp_path / "inputs")


def kill_run(inputs: Path, place: Path, *keys: str) -> list[str]:
    """Kills a run in its third step, and returns the command that resumes it."""
    storage = [] if "dram" in keys else real_runs.storage_in(place / "storage")
    command = words(inputs, place / "out", *KEYS, *keys, *storage)
    process = apart("-c", KILLED, *command, env_more={"DIES_AFTER": "0.000001", "DIES_IN": "3"})
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -14, error
    return ["resume", str(place / "out")]


def replace_weights(path: Path) -> None:
    """Writes another model of the same shape."""
    tensors = load_file(path)
    save_file({name: torch.flip(tensor, [0]).contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def shard(model: Path) -> None:
    """Writes the same model in two files."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[: len(names) // 2],
        "model-00002-of-00002.safetensors": names[len(names) // 2 :],
    }
    for file, part_names in parts.items():
        save_file({name: tensors[name] for name in part_names}, model / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part_names in parts.items() for name in part_names}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("way", WAYS)
def test_another_base_is_refused_by_its_file(
    way: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = inputs / "model" / "model.safetensors"
    original = file.read_bytes()
    resume = kill_run(inputs, tmp_path, *WAYS[way])
    replace_weights(file)
    for command in (resume, ["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]):
        assert main(command) == 2
        error = capfd.readouterr().err
        assert f"model: {file} is not the file that the run was started with (its content differs)" in error
        assert not (tmp_path / "exported").exists()
    file.write_bytes(original)
    os.utime(file, (5, 5))
    assert main(resume) == 0, capfd.readouterr().err


def test_copied_base_is_the_same(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resume = kill_run(inputs, tmp_path, *WAYS["dram"])
    shutil.move(inputs / "model", tmp_path / "moved")
    moved = ["--model", str(tmp_path / "moved"), "--tokenizer", str(tmp_path / "moved")]
    assert main([*resume, *moved]) == 0, capfd.readouterr().err


def test_shard_of_another_base_is_refused(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shard(inputs / "model")
    file = inputs / "model" / "model-00002-of-00002.safetensors"
    resume = kill_run(inputs, tmp_path, *WAYS["dram"])
    original = file.read_bytes()
    replace_weights(file)
    assert main(resume) == 2 and f"model: {file} is not the file" in capfd.readouterr().err
    file.unlink()
    assert main(resume) == 2 and f"model: {file}, which the run was started with, is missing" in capfd.readouterr().err
    file.write_bytes(original)
    assert main(resume) == 0, capfd.readouterr().err


def test_base_of_links_is_read_through_the_links(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A snapshot of the hub's cache consists of links."""
    model, blobs = inputs / "model", tmp_path / "blobs"
    blobs.mkdir()
    for path in list(model.iterdir()):
        shutil.move(path, blobs / path.name)
        path.symlink_to(blobs / path.name)
    resume = kill_run(inputs, tmp_path, *WAYS["dram"])
    other = tmp_path / "other"
    shutil.copy(blobs / "model.safetensors", other)
    replace_weights(other)
    link = model / "model.safetensors"
    link.unlink()
    link.symlink_to(other)
    assert main(resume) == 2 and f"model: {link} is not the file" in capfd.readouterr().err
    link.unlink()
    shutil.copy(blobs / "model.safetensors", link)
    assert main(resume) == 0, capfd.readouterr().err


FULL = {
    "dram": ["--placement", "dram"],
    "path": ["--placement", "path"],
    "frozen": ["--frozen", r"layers\.0\.", "--placement", "weight=dram,state=path,grad=path,activation=dram"],
}


@pytest.mark.parametrize("way", FULL)
def test_full_fine_tuning_resumes_from_its_own_weights(
    way: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    undisturbed = tmp_path / "whole"
    assert here(inputs, undisturbed, *KEYS, *(FULL[way][:2] if way == "frozen" else []), "--placement", "dram") == 0
    resume = kill_run(inputs, tmp_path, *FULL[way])
    replace_weights(inputs / "model" / "model.safetensors")
    assert main(resume) == 0, capfd.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_run_of_an_earlier_release_resumes(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resume = kill_run(inputs, tmp_path, *WAYS["durable"])
    for path in tmp_path.glob("out/**/run.json"):
        content = json.loads(path.read_text())
        content["fixed"].pop("base")
        content.pop("digest", None)
        path.write_text(json.dumps(content))
    for path in tmp_path.glob("out/**/files.json"):
        path.unlink()
    assert main(resume) == 0, capfd.readouterr().err
    assert "base" in json.loads((tmp_path / "out" / "spillway" / "run.json").read_text())["fixed"]


def test_trainers_adapters_are_refused_on_another_base(inputs: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import loaded, parts

    def train_adapters(resume: Any, steps: int) -> None:
        model = loaded(inputs, method="lora", lora_r=4)
        ours = Trainer(
            model=model, **parts(inputs, tmp_path / "out", max_steps=steps, save_strategy="steps", save_steps=2)
        )
        try:
            ours.train(resume_from_checkpoint=resume)
        finally:
            ours.close()

    train_adapters(None, 2)
    file = inputs / "model" / "model.safetensors"
    original = file.read_bytes()
    replace_weights(file)
    with pytest.raises(InputError, match=f"model: {file} is not the file that the run was started with"):
        train_adapters(True, 4)
    file.write_bytes(original)
    train_adapters(True, 4)


def test_fingerprint_of_a_header_and_samples_differs_for_changed_files(tmp_path: Path) -> None:
    size = 24 << 20
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(size // 4)}, path)
    fingerprint = base_files.read_fingerprint(tmp_path)
    base_files.check(fingerprint, tmp_path)
    content = path.read_bytes()
    for place in (20, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place : place + (size // 200)] = bytes(255 - byte for byte in damaged[place : place + (size // 200)])
        path.write_bytes(damaged[: len(content)])
        with pytest.raises(InputError, match=r"model\.safetensors is not the file"):
            base_files.check(fingerprint, tmp_path)
    path.write_bytes(content + b"\0")
    with pytest.raises(InputError, match="bytes, and had"):
        base_files.check(fingerprint, tmp_path)
