"""Checkpoints as transformers reads them: tied tables in all their forms, tensors without a place in the model."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import both_ways
import real_runs
import tiny
from both_ways import tensors
from hf_models import tiny_model
from needs import package
from spillway.cli import main
from spillway.errors import InputError
from test_bad_input import mounted

Tensors = dict[str, torch.Tensor]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FP32 = ("--compute_dtype", "fp32", "--learning_rate", "1e-2")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """The inputs of a run; the model's table and head are tied."""
    place = real_runs.inputs(tmp_path / "given")
    config = {**tiny.CONFIG, "tie_word_embeddings": True}
    (place / "model" / "config.json").write_text(json.dumps(config))
    tiny_model(AutoConfig.from_pretrained(place / "model")).save_pretrained(place / "model")
    assert HEAD not in tensors(place / "model")
    return place


def rewrite(inputs: Path, change: Callable[[Tensors], Tensors], files: int = 1) -> None:
    """Changes the model's tensors, and spreads them over `files` files."""
    directory = inputs / "model"
    weights = change(load_file(directory / "model.safetensors"))
    (directory / "model.safetensors").unlink()
    if files == 1:
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        return
    places = {name: f"model-{number % files + 1:05d}-of-{files:05d}.safetensors" for number, name in enumerate(weights)}
    for file in set(places.values()):
        part = {name: weights[name] for name in weights if places[name] == file}
        save_file(part, directory / file, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def add_other_head(weights: Tensors) -> Tensors:
    torch.manual_seed(3)
    return weights | {HEAD: torch.randn_like(weights[EMBEDDING]) * 0.05}


def add_equal_head(weights: Tensors) -> Tensors:
    return weights | {HEAD: weights[EMBEDDING].clone()}


def rename_table_to_head(weights: Tensors) -> Tensors:
    return {HEAD if name == EMBEDDING else name: value for name, value in weights.items()}


def remove_prefix(weights: Tensors) -> Tensors:
    return {name.removeprefix("model."): value for name, value in weights.items()}


def read_first_loss(out: Path) -> float:
    return float(real_runs.metrics(out)[0]["loss"])


def compute_plain_loss(inputs: Path, out: Path) -> float:
    """Transformers' own loss of the first step's rows."""
    from spillway.config import read_file, resolve
    from spillway.run.train import load_work

    work = load_work(resolve(read_file(out / "config.yaml"), {}), lambda _: None)
    model = AutoModelForCausalLM.from_pretrained(inputs / "model", dtype=torch.float32).eval()
    batches = [work.train.batch(part) for part in work.order.step(0)]
    labels = sum(int((each.labels[:, 1:] != -100).sum()) for each in batches)
    with torch.no_grad():
        return sum(float(both_ways.plain_loss(model, each, labels)) for each in batches)


def test_head_that_differs_from_its_table_is_trained_separately(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rewrite(inputs, add_other_head)
    out = tmp_path / "out"
    assert real_runs.here(inputs, out, *FP32, "--max_steps", "2") == 0
    output = " ".join(" ".join(capfd.readouterr()).split())
    assert "tie_word_embeddings is true" in output and HEAD in output
    assert read_first_loss(out) == pytest.approx(compute_plain_loss(inputs, out), rel=1e-5)
    saved, before = tensors(out), tensors(inputs / "model")
    assert saved.keys() == before.keys()
    assert not torch.equal(saved[HEAD], saved[EMBEDDING]) and not torch.equal(saved[HEAD], before[HEAD])
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    again = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(again.lm_head.weight, saved[HEAD]) and torch.equal(
        again.model.embed_tokens.weight, saved[EMBEDDING]
    )


def test_check_of_a_head_that_differs_from_its_table(inputs: Path, tmp_path: Path) -> None:
    rewrite(inputs, add_other_head)
    for more in ((), ("--layers", "1")):
        assert real_runs.here(inputs, tmp_path / "out", *FP32, "--max_steps", "2", *more, verb="check") == 0


def test_head_that_differs_resumes_and_exports(inputs: Path, tmp_path: Path) -> None:
    rewrite(inputs, add_other_head)
    undisturbed, resumed = tmp_path / "whole", tmp_path / "again"
    words = ("--lr_scheduler_type", "constant", *real_runs.on_path(tmp_path / "path"))
    assert real_runs.here(inputs, undisturbed, *words[:2], "--max_steps", "4") == 0
    assert real_runs.here(inputs, resumed, *words, "--max_steps", "2") == 0
    assert real_runs.here(inputs, resumed, *words, "--max_steps", "4", "--resume_from_checkpoint", "true") == 0
    assert main(["export", str(resumed), "--to", str(tmp_path / "alone")]) == 0
    one, two, three = map(tensors, (undisturbed, resumed, tmp_path / "alone"))
    assert one.keys() == two.keys() == three.keys()
    assert all(torch.equal(value, two[name]) and torch.equal(value, three[name]) for name, value in one.items())
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("form", [add_equal_head, rename_table_to_head])
def test_tied_tables_are_one_in_every_form(
    inputs: Path, tmp_path: Path, form: Callable[[Tensors], Tensors], prefix: bool, files: int
) -> None:
    """A head beside its table, a head alone, without the prefix of the backbone, in several files."""
    assert real_runs.here(inputs, tmp_path / "usual", *FP32, "--max_steps", "2") == 0
    rewrite(inputs, lambda weights: form(weights) if prefix else remove_prefix(form(weights)), files)
    assert AutoModelForCausalLM.from_pretrained(inputs / "model").lm_head.weight is not None
    assert real_runs.here(inputs, tmp_path / "out", *FP32, "--max_steps", "2") == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "usual")
    ours, usual = tensors(tmp_path / "out"), tensors(tmp_path / "usual")
    assert ours.keys() == usual.keys()
    assert all(torch.equal(ours[name], value) for name, value in usual.items())
    assert real_runs.here(inputs, tmp_path / "out", *FP32, "--max_steps", "2", verb="check") == 0


EXTRA = {
    "model.layers.2.eh_proj.weight": torch.arange(6.0).view(2, 3),
    "model.layers.2.self_attn.q_proj.weight": torch.arange(8.0).to(torch.bfloat16).view(2, 4),
    "mtp.layers.0.norm.weight": torch.arange(4, dtype=torch.int32),
    "model.layers.2.scale": torch.arange(4.0).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("files", [1, 2])
def test_tensors_without_a_place_are_carried_bit_for_bit(
    inputs: Path, tmp_path: Path, files: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The class names no layers beyond num_hidden_layers. A buffer of older releases is left out."""
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    rewrite(inputs, lambda weights: weights | EXTRA | buffer, files)
    out, alone, path = tmp_path / "out", tmp_path / "alone", real_runs.on_path(tmp_path / "path")
    assert real_runs.here(inputs, out, "--max_steps", "2", "--save_steps", "1", *path) == 0
    assert "model.layers.2.eh_proj.weight and 3 more" in " ".join(" ".join(capfd.readouterr()).split())
    assert main(["export", str(out), "--to", str(alone)]) == 0
    for place in (out, out / "checkpoint-1", alone):
        saved = tensors(place)
        assert saved.keys() == tensors(inputs / "model").keys() - buffer.keys()
        for name, value in EXTRA.items():
            assert saved[name].dtype == value.dtype
            assert torch.equal(saved[name].view(torch.uint8), value.view(torch.uint8)), name


def test_save_without_its_carried_tensors_fails_and_keeps_the_weights(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spillway.run.session import EngineSession

    rewrite(inputs, lambda weights: weights | EXTRA)
    step = EngineSession.step

    def remove_weights_and_step(*parts: Any) -> Any:
        (inputs / "model" / "model.safetensors").unlink(missing_ok=True)
        return step(*parts)

    monkeypatch.setattr(EngineSession, "step", remove_weights_and_step)
    out = tmp_path / "out"
    assert real_runs.here(inputs, out, "--max_steps", "1") == 1
    output = " ".join(capfd.readouterr().err.split())
    assert "model.layers.2.eh_proj.weight is gone" in output and f"weights of step 1 alone are saved in {out}" in output
    assert tensors(out).keys().isdisjoint(EXTRA) and EMBEDDING in tensors(out)


def test_quantised_tensors_are_named_without_a_quantization_config(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.0.self_attn.q_proj"

    def pack_weight(weights: Tensors) -> Tensors:
        weights.pop(f"{name}.weight")
        return weights | {f"{name}.qweight": torch.zeros(2, 16, dtype=torch.int32)}

    rewrite(inputs, pack_weight)
    assert real_runs.here(inputs, tmp_path / "out", "--max_steps", "1") == 2
    output = " ".join(capfd.readouterr().err.split())
    assert f"tensor {name}.weight is missing" in output and f"{name}.qweight, as of quantised weights" in output


@pytest.fixture
def snapshot(inputs: Path) -> Iterator[Path]:
    """A model as links into the hub's cache, on a file system that is mounted read-only."""
    cache = inputs / "cache" / "models--owner--name"
    (cache / "blobs").mkdir(parents=True)
    place = cache / "snapshots" / ("0" * 40)
    place.mkdir(parents=True)
    for number, path in enumerate(sorted((inputs / "model").iterdir())):
        path.rename(cache / "blobs" / str(number))
        (cache / "blobs" / str(number)).chmod(0o444)
        (place / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
    (inputs / "model").rmdir()
    for _ in mounted(inputs / "read_only", "--bind", "-o", "ro", str(inputs / "cache")):
        read_only = inputs / "read_only" / "models--owner--name" / "snapshots" / ("0" * 40)
        with pytest.raises(OSError):
            (read_only / "any").write_text("")
        yield read_only


def is_writable_file(path: Path) -> bool:
    """True for a file, not a link, that its owner may change."""
    return not path.is_symlink() and bool(path.stat().st_mode & stat.S_IWUSR)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
@pytest.mark.parametrize("more", [(), ("--method", "lora")])
def test_read_only_cache_of_links_is_read_and_saves_are_writable_files(
    inputs: Path, tmp_path: Path, request: pytest.FixtureRequest, kind: str, more: tuple[str, ...]
) -> None:
    """The model is trained, resumed from a checkpoint and from a path, and exported."""
    if kind != "llama":
        both_ways.replace_model(inputs / "model", kind)
    model = str(request.getfixturevalue("snapshot"))
    out, alone, path = tmp_path / "out", tmp_path / "alone", real_runs.on_path(tmp_path / "path")
    words = ("--model", model, *more, "--lr_scheduler_type", "constant", "--save_steps", "1")
    assert real_runs.here(inputs, tmp_path / "plain", *words, "--max_steps", "1") == 0
    resumed = ("--max_steps", "2", "--resume_from_checkpoint", "true")
    assert real_runs.here(inputs, tmp_path / "plain", *words, *resumed) == 0
    assert real_runs.here(inputs, out, *words, *path, "--max_steps", "1") == 0
    assert real_runs.here(inputs, out, *words, *path, *resumed) == 0
    assert main(["export", str(out), "--to", str(alone)]) == 0
    for place in (out, alone, tmp_path / "plain"):
        files = [file for file in place.rglob("*") if not file.is_dir()]
        assert files and all(map(is_writable_file, files))


def test_weights_fetched_after_the_plan_are_refused_if_tied_tables_differ(inputs: Path) -> None:
    """A plan fetches the weights of a name on the hub, after the configuration was read."""
    from spillway.model.checkpoint.ties import refuse_differing
    from spillway.model.meta.building import build
    from spillway.model.source.source import load_config

    meta_model = build(load_config(inputs / "model"), torch.float32)
    refuse_differing(meta_model, inputs / "model")
    rewrite(inputs, add_other_head)
    with pytest.raises(InputError, match=f"{EMBEDDING} and {HEAD} differ.*give the same command again"):
        refuse_differing(meta_model, inputs / "model")


def test_trainer_keeps_a_head_that_differs_from_its_table(inputs: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from test_trainer import streamed

    rewrite(inputs, add_other_head)
    trainer = streamed(inputs, tmp_path / "out", max_steps=1)
    assert trainer.model.lm_head.weight is not trainer.model.model.embed_tokens.weight
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    trainer.close()
    assert tensors(tmp_path / "saved").keys() == tensors(inputs / "model").keys()
