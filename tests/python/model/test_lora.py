"""Adapters on a streamed base: equal to PEFT in memory, in PEFT's files, resumed bit by bit, and the base untouched."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import both_ways
import native
import real_runs
from both_ways import compare_adapters, linear_names
from breadth import some
from hf_models import tiny_config
from needs import package
from small_configs import small_config
from spillway._engine import Training
from spillway.config import checks
from spillway.errors import InputError
from spillway.model.adapters.lora import ADAPTER, ADAPTER_CONFIG, Adapters
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe

peft = package("peft", "LoRA is PEFT's")
SEED = 5  # native's
ENGINE = 24 << 20  # plan::kEngineBytes
LORA = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "adam_epsilon": both_ways.EPSILON}
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("lora"))


def in_memory(directory: Path, targets: Any) -> Any:
    """As PEFT's own documentation has it."""
    torch.manual_seed(SEED)
    asked = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    return peft.get_peft_model(both_ways.load(directory), asked)


@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
@pytest.mark.parametrize(("kind", "tied", "targets"), [("llama", True, TARGETS), ("qwen2", False, None)])
def test_equals_peft_in_memory(kind: str, tied: bool, targets: Any, place: str, tmp_path: Path) -> None:
    """Ten steps of two micro-batches, with clipping and decay: losses, adapters, and what the files say."""
    both_ways.save(tiny_config(kind, tied, num_hidden_layers=3), tmp_path / "model", 7)
    more = {"placement": "path", "storage": tmp_path} if place == "path" else {}
    session = native.opened(
        tmp_path / "model", both_ways.SHAPE, weight_decay=both_ways.DECAY, max_grad_norm=both_ways.CLIP,
        lora_target_modules=targets or [], **LORA, **more,
    )  # fmt: skip
    plain = in_memory(tmp_path / "model", targets)
    work = both_ways.steps_of(plain.config.vocab_size)
    try:
        losses = [(r.loss_sum / r.label_tokens) for r in (session.step(step, both_ways.RATE) for step in work)]
        (tmp_path / "saved").mkdir()
        session.save_model(tmp_path / "saved")
        base = {name: tensor for name, tensor in session.masters().items() if "lora_" not in name}
    finally:
        session.close()
    assert losses == pytest.approx(both_ways.train_plain(plain, work), rel=1e-5)
    plain.save_pretrained(tmp_path / "expected")
    ours, theirs = (load_file(tmp_path / name / ADAPTER) for name in ("saved", "expected"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert float((ours[name] - tensor).abs().max()) <= 1e-5 * float(tensor.abs().max()), name
    begun = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(base[name], tensor) for name, tensor in begun.items())
    one, other = (json.loads((tmp_path / name / ADAPTER_CONFIG).read_text()) for name in ("saved", "expected"))
    targets = sorted(other["target_modules"])  # PEFT's order differs from process to process
    assert one == {**other, "target_modules": targets, "base_model_name_or_path": str(tmp_path / "model")}


def test_the_files_are_read_by_peft_and_by_transformers(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--method", "lora", "--lora_r", "4", "--compute_dtype", "fp32", "--lora_dropout", "0", "--max_steps", "4")
    assert real_runs.here(given, out, *words, "--learning_rate", "1e-2") == 0
    assert {ADAPTER, ADAPTER_CONFIG} <= set(real_runs.names(out))
    assert not (out / "config.json").exists() and not (out / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32)
    ids = torch.arange(3, 20)[None]
    before = base(ids).logits.detach()
    tuned = peft.PeftModel.from_pretrained(base, out)(ids).logits.detach()
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)(ids).logits.detach()
    assert torch.equal(tuned, again) and not torch.allclose(before, tuned, atol=1e-4)


def adapters(directory: Path) -> bytes:
    return (directory / ADAPTER).read_bytes()


@pytest.mark.parametrize("storage", [False, True])
def test_a_resumed_run_ends_with_the_same_bits(storage: bool, given: Path, tmp_path: Path, capsys: Any) -> None:
    """With dropout, in bf16; from a checkpoint that stands alone, and from what lies on the path."""
    words = ["--method", "lora", "--lora_r", "4", "--lora_target_modules", "all-linear"]
    words += ["--lora_dropout", "0.3", "--lr_scheduler_type", "constant", "--save_steps", "2"]
    more = real_runs.on_path(tmp_path / "path") if storage else []
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert real_runs.here(given, whole, *words, "--max_steps", "5") == 0
    assert real_runs.here(given, again, *words, *more, "--max_steps", "3") == 0
    going_on = (*words, *more, "--max_steps", "5", "--resume_from_checkpoint", "true")
    changed = [word if word != "4" else "8" for word in going_on]
    assert real_runs.here(given, again, *changed) == 2
    assert "lora_r: the run was started with 4" in capsys.readouterr().err
    assert real_runs.here(given, again, *going_on) == 0
    assert adapters(again) == adapters(whole) == adapters(real_runs.last_checkpoint(again))
    assert real_runs.metrics(again) == real_runs.metrics(whole)
    back = ("--resume_from_checkpoint", str(again / "checkpoint-2"), "--max_steps", "3")
    assert real_runs.here(given, again, *words, *more, *back) == 0
    assert (
        adapters(again) == adapters(whole / "checkpoint-4") or real_runs.metrics(again) == real_runs.metrics(whole)[:3]
    )


def test_export_writes_the_adapter(given: Path, tmp_path: Path) -> None:
    storage = real_runs.on_path(tmp_path / "path")
    out, alone = tmp_path / "out", tmp_path / "alone"
    words = ("--method", "lora", "--lora_r", "4", "--max_steps", "3", "--save_steps", "2", *storage)
    assert real_runs.here(given, out, *words) == 0
    checkpoint = out / "checkpoint-2"
    assert (checkpoint / "spillway" / "manifest.bin").exists()
    from spillway.cli import main

    assert main(["export", str(out), "--to", str(alone), "--checkpoint", str(checkpoint)]) == 0
    assert adapters(alone) == adapters(checkpoint)
    going_on = ("--method", "lora", "--lora_r", "4", "--max_steps", "3", "--resume_from_checkpoint", str(alone))
    assert real_runs.here(given, tmp_path / "next", *going_on) == 0
    assert adapters(tmp_path / "next") == adapters(out)


def test_the_base_stays_on_its_path(tmp_path: Path) -> None:
    """A plan whose memory, the engine's own tables apart, is a fourth of the base; a step writes none of the base."""
    config = tiny_config("llama", False, num_hidden_layers=24, hidden_size=64, intermediate_size=256)
    both_ways.save(config, tmp_path / "model", 7)
    session = native.opened(
        tmp_path / "model", both_ways.SHAPE, placement="weight=path", storage=tmp_path, compute_dtype="bf16",
        durability="step", lora_target_modules=["q_proj"], **LORA,
    )  # fmt: skip
    try:
        base = 2 * sum(p.numel() for p in both_ways.load(tmp_path / "model").parameters())
        assert session.plan["learning_parameters"] == 24 * 4 * (64 + 32)
        small = copy.copy(session.settings)
        small.process_bytes, small.work_bytes, small.dram_budget = 0, 0, ENGINE + base // 4
        planned = native.engine_type(native.CHUNK)(session.description, small).plan()
        (dram,) = (tier.planned_peak for tier in planned.tiers if tier.name == "dram")
        assert dram <= ENGINE + base // 4
        work = both_ways.steps_of(97)
        for step in work[:2]:  # the base's one image may be written until the first one has settled
            session.step(step, 1e-3)
            session.settle()
        moved = session.step(work[2], 1e-3).path_bytes["path:0"]
        assert moved["read"] > base and moved["written"] < base / 2
    finally:
        session.close()


@pytest.mark.parametrize("kind", some(["bart", "falcon_mamba"], ["falcon_mamba"]))
def test_adapters_that_no_gradient_reaches_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    """Of layers whose weights the model's code reads itself, or never: AdamW leaves them alone, decay included."""
    config = small_config(kind)
    assert compare_adapters(config, tmp_path, linear_names(config)).weight <= 1e-4


def test_adapters_that_the_library_cannot_compute_with_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="(?s)lora_target_modules.*llama4_text cannot be computed"):
        compare_adapters(small_config("llama4_text"), tmp_path, ["all-linear"])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["lm_head"], "lora_target_modules: lm_head lies outside the layers"),
        (["embed_tokens", "q_proj"], "lora_target_modules: model.embed_tokens lies outside the layers"),
        (["q_prj"], "lora_target_modules: .*q_prj"),
    ],
)
def test_what_cannot_stream_is_refused_by_name(targets: list[str], words: str) -> None:
    meta_model = build(tiny_config("llama", False), torch.float32)
    with pytest.raises(InputError, match=words):
        Adapters({"r": 2, "target_modules": targets}, 1).adapt(meta_model)


def test_the_base_keeps_its_names_and_is_frozen() -> None:
    config = tiny_config("gpt2", True)
    plain = describe(build(config, torch.float32), WorkSize(1, 8), "fp32")
    meta_model = build(config, torch.float32)
    made = Adapters({"r": 2}, 1)
    made.adapt(meta_model)
    tensors = [t for block in describe(meta_model, WorkSize(1, 8), "fp32").blocks for t in block.tensors]
    base = [t for t in tensors if t.name not in made.names]
    assert [t.name for t in base] == [t.name for block in plain.blocks for t in block.tensors]
    assert all(t.training is Training.frozen for t in base) and len(made.names) == len(tensors) - len(base) > 0
    assert all(parameter.is_meta for parameter in meta_model.model.parameters())


def test_refused_on_the_command_line(given: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def said(*more: str) -> str:
        assert real_runs.here(given, tmp_path / "out", *more) == 2
        return str(capsys.readouterr().err)

    assert "lora_r: it is for method lora" in said("--lora_r", "4")
    assert "frozen: with method lora" in said("--method", "lora", "--frozen", "mlp")
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    assert "pip install peft" in said("--method", "lora")
    assert not (tmp_path / "out").exists()


# The experts of these types are one parameter of three dimensions. PEFT takes some linear layers for experts.
MIXTURES = {
    "qwen3_moe": (["q_proj", "k_proj", "v_proj", "o_proj"], []),
    "mixtral": (["q_proj", "k_proj", "v_proj", "o_proj"], []),
    "deepseek_v3": (["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"], ["gate_proj", "up_proj"]),
    "gpt_oss": (["q_proj", "k_proj", "v_proj", "o_proj"], []),
}


@pytest.fixture
def mixture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = real_runs.inputs(tmp_path / "given")
    both_ways.replace_model(place / "model", request.param)
    return place


@pytest.mark.parametrize("mixture", some(MIXTURES, ("qwen3_moe", "deepseek_v3")), indirect=True)
def test_all_linear_layers_of_a_mixture_train_beside_its_experts(
    mixture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = json.loads((mixture / "model" / "config.json").read_text())["model_type"]
    linear, taken = MIXTURES[kind]
    words = ("--method", "lora", "--lora_r", "4", "--lora_target_modules", "all-linear", "--compute_dtype", "fp32")
    for dropout in ("0.1", "0"):
        out = tmp_path / f"out-{dropout}"
        assert real_runs.here(mixture, out, *words, "--lora_dropout", dropout, "--max_steps", "2") == 0
        output = " ".join(" ".join(capfd.readouterr()).split())
        assert "leaves out" in output and "experts" in output and all(name in output for name in taken)
    saved = load_file(tmp_path / "out-0" / ADAPTER)
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name in saved}
    assert (
        adapted == set(linear) == set(json.loads((tmp_path / "out-0" / ADAPTER_CONFIG).read_text())["target_modules"])
    )
    assert all(float(value.abs().max()) > 0 for name, value in saved.items() if "lora_B" in name)
    base = AutoModelForCausalLM.from_pretrained(mixture / "model", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "out-0")
    loaded = {name for name, _ in model.named_parameters() if "lora_" in name}
    assert {name.replace(".default", "") for name in loaded} == saved.keys()
    assert real_runs.here(mixture, tmp_path / "out", *words, "--max_steps", "2", verb="check") == 0


@pytest.mark.parametrize("mixture", ["qwen3_moe"], indirect=True)
def test_adapters_of_a_mixture_without_targets_name_its_linear_layers(
    mixture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for more, word in (
        ((), "none are given"),
        (("--lora_target_modules", "q_proj", "--lora_target_modules", "up_proj"), "takes up_proj for experts"),
        (("--lora_target_modules", "q_prj"), "q_prj"),
    ):
        assert real_runs.here(mixture, tmp_path / "out", "--method", "lora", *more) == 2
        error = " ".join(capfd.readouterr().err.split())
        assert word in error and "q_proj, k_proj, v_proj, o_proj" in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize("mixture", ["mixtral"], indirect=True)
def test_adapters_of_a_mixture_that_peft_knows_have_its_default(mixture: Path, tmp_path: Path) -> None:
    """PEFT 0.21 itself loses its default for types whose experts it rewrites."""
    assert real_runs.here(mixture, tmp_path / "out", "--method", "lora", "--max_steps", "1") == 0
    assert set(json.loads((tmp_path / "out" / ADAPTER_CONFIG).read_text())["target_modules"]) == {"q_proj", "v_proj"}
