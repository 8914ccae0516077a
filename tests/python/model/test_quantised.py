"""A frozen base of 4 or 8 bits under adapters: equal to PEFT in memory on what its codes stand for, wherever it lies,
killed and resumed, and a quarter or half of the bytes."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

import both_ways
import native
import real_runs
import seeds
from breadth import some
from hf_models import tiny_config
from needs import package
from spillway import _engine
from spillway._engine import Form, TensorSpec, Training
from spillway.cli import doctor, main
from spillway.config import resolve
from spillway.errors import InputError
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import ADAPTER, Adapters
from spillway.model.adapters.unpacked import REASONS, count_unpacked, summarise_unpacked, unpacked_notice
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe

peft = package("peft", "LoRA is PEFT's")
SEED = 5  # native's
BLOCK = 64
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
       0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
# The limits between two codes in bitsandbytes' kernel (dQuantizeNF4); a value on a limit has the lower code.
NF4_LIMITS = (-0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544,
              -0.23460740596055984, -0.13791173323988914, -0.045525018125772476, 0.03979014977812767,
              0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683, 0.5016634166240692,
              0.6427869200706482, 0.8614784181118011)  # fmt: skip
NORMAL_OFFSET = 0.9677083  # the outermost quantile in bitsandbytes' create_normal_map
ASKED = {"nf4": "--load_in_4bit", "int8": "--load_in_8bit"}
LORA = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "adam_epsilon": both_ways.EPSILON}
WORDS = ["--method", "lora", "--lora_r", "4", "--lora_target_modules", "all-linear"]
LIMIT = 300  # seconds that a process of its own may take at most
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("quantised"))


def rounded(weight: torch.Tensor, form: str) -> torch.Tensor:
    """What the codes of a weight stand for, as the papers say it: blocks along the flat weight, each by its largest."""
    flat = weight.detach().float().flatten()
    blocks = nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1, keepdim=True)
    if form == "nf4":
        values = torch.tensor(NF4)
        between = ((values[:-1].double() + values[1:].double()) / 2).float()
        found = values[torch.bucketize(blocks * (1 / largest), between)] * largest
    else:
        found = (blocks * (127 / largest)).round().clamp(-127, 127) * (largest / 127)
    return found.flatten()[: flat.numel()].view(weight.shape)


def round_block(values: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """`values`, which are at most 1, rounded by the engine in one block of this scale."""
    block = torch.cat([values, torch.ones(1)]) * scale
    assert len(block) <= BLOCK
    _engine.round_packed("nf4", block.numpy())
    return block[:-1]


def round_layers(model: Any, form: str) -> Any:
    """Every linear layer but the head."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and ".layers." in name:
                module.weight.copy_(rounded(module.weight, form))
    return model


def test_nf4_values_are_the_quantiles_of_bitsandbytes() -> None:
    """Seven quantiles below zero, zero, and eight above, divided by the largest."""
    invert = statistics.NormalDist().inv_cdf
    above = [invert(share) for share in torch.linspace(NORMAL_OFFSET, 0.5, 9)[:-1].tolist()]
    below = [-invert(share) for share in torch.linspace(NORMAL_OFFSET, 0.5, 8)[:-1].tolist()]
    quantiles = torch.tensor(sorted([*below, 0.0, *above]))
    torch.testing.assert_close(torch.tensor(NF4), quantiles / quantiles.max(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_nf4_blocks_are_rounded_to_the_codes_of_bitsandbytes(scale: float) -> None:
    """The engine keeps each of the 16 values, and changes from one code to the next right above each limit."""
    values, limits = torch.tensor(NF4), torch.tensor(NF4_LIMITS)
    assert torch.equal(round_block(values, scale), values * scale)
    assert torch.equal(round_block(limits, scale), values[:-1] * scale)
    assert torch.equal(round_block(torch.nextafter(limits, torch.tensor(2.0)), scale), values[1:] * scale)


@pytest.mark.parametrize("form", ASKED)
@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
def test_equals_peft_on_what_the_codes_stand_for(form: str, place: str, tmp_path: Path) -> None:
    both_ways.save(tiny_config("llama", False, num_hidden_layers=3), tmp_path / "model", 7)
    more = {"placement": "path", "storage": tmp_path} if place == "path" else {}
    session = native.opened(
        tmp_path / "model", both_ways.SHAPE, weight_decay=both_ways.DECAY, max_grad_norm=both_ways.CLIP,
        lora_target_modules=["q_proj", "v_proj", "down_proj"], base_form=form, **LORA, **more,
    )  # fmt: skip
    base = round_layers(both_ways.load(tmp_path / "model"), form)
    begun = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    torch.manual_seed(SEED)
    asked = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    plain = peft.get_peft_model(base, asked)
    work = both_ways.steps_of(plain.config.vocab_size)
    try:
        losses = [(r.loss_sum / r.label_tokens) for r in (session.step(step, both_ways.RATE) for step in work)]
        (tmp_path / "saved").mkdir()
        session.save_model(tmp_path / "saved")
        ours = {name: tensor for name, tensor in session.masters().items() if "lora_" not in name}
    finally:
        session.close()
    assert ours.keys() == begun.keys() and all(torch.equal(ours[name], tensor) for name, tensor in begun.items())
    assert losses == pytest.approx(both_ways.train_plain(plain, work), rel=1e-5)
    plain.save_pretrained(tmp_path / "expected")
    found, expected = (load_file(tmp_path / name / ADAPTER) for name in ("saved", "expected"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) <= 1e-5 * float(tensor.abs().max()), name


def adapters(directory: Path) -> bytes:
    return (directory / ADAPTER).read_bytes()


@pytest.mark.parametrize("form", ASKED)
def test_a_base_of_codes_trains_as_the_base_that_they_stand_for(form: str, given: Path, tmp_path: Path) -> None:
    """By the command line, bit by bit: the second run reads files of fp32, made without the engine."""
    base = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32)
    shutil.copytree(given / "model", tmp_path / "model")
    round_layers(base, form).save_pretrained(tmp_path / "model")
    words = (*WORDS, "--compute_dtype", "fp32", "--max_steps", "4", "--learning_rate", "1e-2")
    assert real_runs.here(given, tmp_path / "codes", *words, ASKED[form]) == 0
    assert real_runs.here(given, tmp_path / "fp32", *words, "--model", str(tmp_path / "model")) == 0
    assert adapters(tmp_path / "codes") == adapters(tmp_path / "fp32")
    assert real_runs.metrics(tmp_path / "codes") == real_runs.metrics(tmp_path / "fp32")
    assert real_runs.here(given, tmp_path / "whole", *words) == 0
    assert adapters(tmp_path / "codes") != adapters(tmp_path / "whole")


def expect_kill_changes_nothing(given: Path, place: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """A run on a path that dies after DIES_AFTER seconds, and goes on, ends as one in memory."""
    assert real_runs.here(given, place / "whole", *words) == 0
    on_path = [*words, "--resume_from_checkpoint", "auto", "--storage", f"{place},capacity=512MiB"]
    on_path += ["--placement", "path"]
    process = real_runs.apart("-c", KILLED, *real_runs.words(given, place / "out", *on_path))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode in (0, -14), (error, seeds.said())
    assert real_runs.here(given, place / "out", *on_path) == 0, capfd.readouterr().err
    assert adapters(place / "out") == adapters(place / "whole"), seeds.said()
    assert real_runs.metrics(place / "out") == real_runs.metrics(place / "whole")


def test_killed_and_resumed_on_a_path_ends_as_in_memory(
    given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, "--load_in_4bit", "--lora_dropout", "0.3", "--max_steps", "12", "--save_steps", "5"]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("quantised").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(given, tmp_path, words, capfd)


def test_it_is_verified_exported_and_goes_on(given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--load_in_8bit", "--save_steps", "2", *real_runs.on_path(tmp_path / "path")]
    assert real_runs.here(given, tmp_path / "out", *words, "--max_steps", "3") == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    alone, checkpoint = tmp_path / "alone", str(tmp_path / "out" / "checkpoint-2")
    assert main(["export", str(tmp_path / "out"), "--to", str(alone), "--checkpoint", checkpoint]) == 0
    going_on = ("--max_steps", "3", "--resume_from_checkpoint", str(alone))
    assert real_runs.here(given, tmp_path / "next", *WORDS, "--load_in_8bit", *going_on) == 0
    assert adapters(tmp_path / "next") == adapters(tmp_path / "out")
    capfd.readouterr()
    assert real_runs.here(given, tmp_path / "other", *WORDS, *going_on) == 2
    assert "load_in_8bit: the run was started with True" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("form", "dtype"), some([(form, dtype) for form in ASKED for dtype in ("fp32", "bf16")], [("nf4", "bf16")])
)
def test_check_rounds_the_plain_way_as_well(form: str, dtype: str, given: Path, capsys: Any) -> None:
    words = [*WORDS, "--compute_dtype", dtype, "--learning_rate", "1e-2", ASKED[form]]
    found = main(["check", "--model", str(given / "model"), "--dataset", str(given / "train.jsonl"), *words,
                  "--max_length", "64", "--per_device_train_batch_size", "2",
                  "--profile", str(given / "profile.json")])  # fmt: skip
    assert found == 0, capsys.readouterr().out
    assert "equal but for rounding" in capsys.readouterr().out


def test_a_simulated_device_changes_no_adapter(given: Path, tmp_path: Path) -> None:
    words = (*WORDS, "--load_in_4bit", "--max_steps", "3")
    there = ("--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB")
    assert real_runs.here(given, tmp_path / "host", *words) == 0
    assert real_runs.here(given, tmp_path / "device", *words, *there) == 0
    assert adapters(tmp_path / "host") == adapters(tmp_path / "device")


@pytest.mark.parametrize(("form", "share"), [("nf4", 36 / 128), ("int8", 68 / 128)])
def test_its_linear_layers_take_that_share_of_what_bf16_takes(form: str, share: float, tmp_path: Path) -> None:
    """On the path, in what a step reads of it, and in the plan."""
    config = tiny_config("llama", False, num_hidden_layers=8, hidden_size=64, intermediate_size=256)
    both_ways.save(config, tmp_path / "model", 7)
    layers = both_ways.load(tmp_path / "model").model.layers
    linear = 2 * sum(m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear))
    read: dict[str | None, int] = {}
    planned: dict[str | None, int] = {}
    for base_form in (None, form):
        place = tmp_path / str(base_form)
        place.mkdir()
        session = native.opened(
            tmp_path / "model", both_ways.SHAPE, placement="weight=path", storage=place, compute_dtype="bf16",
            durability="none", lora_target_modules=["q_proj"], base_form=base_form, chunk=1 << 22, **LORA,
        )  # fmt: skip
        try:
            for step in both_ways.steps_of(97)[:2]:
                read[base_form] = session.step(step, 1e-3).path_bytes["path:0"]["read"]
                session.settle()
            planned[base_form] = session.plan["path_bytes_per_step"]["path:0"]["read"]
        finally:
            session.close()
    for found in (read, planned):
        assert found[None] - found[form] == pytest.approx(2 * linear * (1 - share), rel=0.1)


def test_under_the_trainer_equal_to_peft_on_the_rounded_base(given: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    import transformers

    from spillway.hf import Trainer
    from test_trainer import loaded, parts, same_rows

    targets = ["q_proj", "up_proj"]
    base = round_layers(AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32), "nf4")
    torch.manual_seed(42)  # of TrainingArguments
    asked = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    more = {"adam_epsilon": both_ways.EPSILON}
    plain = transformers.Trainer(model=peft.get_peft_model(base, asked), **parts(given, tmp_path / "plain", **more))
    keys = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": targets}
    ours = Trainer(
        model=loaded(given, tmp_path / "storage", load_in_4bit=True, **keys), **parts(given, tmp_path / "ours", **more)
    )
    for trainer in (plain, ours):
        trainer.train()
        trainer.save_model()
    ours.close()
    same_rows(ours, plain)
    found, expected = (load_file(tmp_path / name / ADAPTER) for name in ("ours", "plain"))
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) <= 1e-5 * float(tensor.abs().max()), name


def tensors_of(kind: str, form: str) -> list[TensorSpec]:
    meta_model = build(tiny_config(kind, kind == "gpt2"), torch.float32)
    Adapters({"r": 2, "target_modules": "all-linear"}, 1).adapt(meta_model)
    key = ASKED[form].removeprefix("--")
    quantised.choose(meta_model, resolve({}, {"method": "lora", key: True}))
    return [t for block in describe(meta_model, WorkSize(1, 8), "fp32").blocks for t in block.tensors]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_is_packed_are_the_base_s_linear_layers(kind: str) -> None:
    tensors = tensors_of(kind, "nf4")
    packed = {t.name for t in tensors if t.form is Form.nf4}
    words = ("_proj.weight",) if kind == "llama" else ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    assert packed == {t.name for t in tensors if t.name.endswith(words) and "lora_" not in t.name} != set()
    assert all(t.training is Training.frozen for t in tensors if t.form.is_packed)


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}


def test_bytes_that_stay_unquantised_are_counted_by_reason() -> None:
    meta_model = build(tiny_config("qwen3_moe", False, **MOE), torch.bfloat16)
    Adapters({"r": 2, "target_modules": "all-linear"}, 1).adapt(meta_model)
    quantised.choose(meta_model, resolve({}, {"method": "lora", "load_in_4bit": True}))
    description = describe(meta_model, WorkSize(1, 8), "bf16")
    found = count_unpacked(description)
    tables = {id(table): 2 * table.numel() for table in (meta_model.embedding.weight, meta_model.head.weight)}
    whole = {id(p): 2 * p.numel() for p in meta_model.streamed if not p.requires_grad}
    assert found["embedding"] == found["head"] == tables[id(meta_model.head.weight)]
    assert found["routers"] == 3 * 2 * 4 * 32 and found.keys() == REASONS.keys() - {"fp32", "others"}
    assert found.total() == sum(bytes for key, bytes in whole.items() if key not in meta_model.packed)
    (words,) = unpacked_notice(description)
    assert words.startswith("load_in_4bit: ") and " in routers" in words
    summary = summarise_unpacked(description)["unquantised"]
    assert summary["bytes"] == found.total() and summary["reasons"] == found and 0 < summary["share"] < 1


def test_nothing_is_said_of_a_base_that_is_not_quantised() -> None:
    meta_model = build(tiny_config("llama", False), torch.float32)
    description = describe(meta_model, WorkSize(1, 8), "fp32")
    assert unpacked_notice(description) == [] and summarise_unpacked(description) == {}


def test_plan_run_and_doctor_say_what_stays_unquantised(given: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    tiny_config("qwen3_moe", False, **MOE).save_pretrained(tmp_path / "moe")
    plan = ["plan", "--model", str(tmp_path / "moe"), "--profile", "workstation", "--max_length", "64", *WORDS]
    assert main([*plan, "--load_in_4bit"]) == 0
    assert "in the embedding" in "".join(capsys.readouterr())
    assert main([*plan, "--load_in_4bit", "--json"]) == 0
    reasons = json.loads(capsys.readouterr().out)["unquantised"]["reasons"]
    assert reasons["embedding"] == reasons["head"] == 2 * 97 * 32 and reasons["routers"] == 3 * 2 * 4 * 32
    assert main([*plan, "--json"]) == 0
    assert "unquantised" not in json.loads(capsys.readouterr().out)
    assert real_runs.here(given, tmp_path / "planned", *WORDS, "--load_in_4bit", verb="plan") == 0
    told = capsys.readouterr().err
    assert "stay unquantised" in told and "Warning" not in told
    assert real_runs.here(given, out, *WORDS, "--load_in_4bit", "--max_steps", "1") == 0
    assert "stay unquantised" in "".join(capsys.readouterr())
    assert set(json.loads((out / "plan.json").read_text())["unquantised"]["reasons"]) == {"embedding", "head", "norms"}
    assert main(["doctor", str(out)]) == 0
    assert "base" in "".join(capsys.readouterr())
    assert "stay unquantised" in dict((what, words) for what, _, words in doctor.of_run(out))["base"]


def test_refused_on_the_command_line(given: Path, tmp_path: Path, capsys: Any) -> None:
    def said(*more: str) -> str:
        assert real_runs.here(given, tmp_path / "out", *more) == 2
        return str(capsys.readouterr().err)

    assert "load_in_4bit: what is trained cannot be kept as codes" in said("--load_in_4bit")
    assert "frozen base of method lora" in said("--load_in_8bit", "--method", "lsp")
    assert "load_in_8bit: the base is kept in one form" in said(*WORDS, "--load_in_4bit", "--load_in_8bit")
    assert "bnb_4bit_quant_type: fp4 is not" in said(*WORDS, "--load_in_4bit", "--bnb_4bit_quant_type", "fp4")
    assert "its name is `compute_dtype`" in said(*WORDS, "--bnb_4bit_compute_dtype", "bfloat16")
    assert not (tmp_path / "out").exists()


def test_a_plan_of_another_machine_counts_it(tmp_path: Path, capsys: Any) -> None:
    """Of a described machine, where no weight is read."""
    config = tiny_config("llama", False, num_hidden_layers=4, hidden_size=64, intermediate_size=256)
    config.save_pretrained(tmp_path)

    def weights(*more: str) -> int:
        words = ["plan", "--model", str(tmp_path), "--profile", "workstation", "--max_length", "64", *WORDS]
        assert main([*words, "--json", *more]) == 0
        plan = json.loads(capsys.readouterr().out)
        return sum(int(row["bytes"]) for row in plan["bytes"] if row["class"] == "weight")

    assert weights("--load_in_4bit") < weights("--load_in_8bit") < weights()


def test_a_model_without_frozen_linear_layers_is_refused() -> None:
    meta_model = build(tiny_config("llama", False), torch.float32)
    with pytest.raises(InputError, match="load_in_4bit: it is for linear layers"):
        quantised.choose(meta_model, resolve({}, {"method": "lora", "load_in_4bit": True}))
