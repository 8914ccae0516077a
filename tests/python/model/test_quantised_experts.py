"""Experts of a frozen base as codes: those of bitsandbytes, equal to PEFT on what they stand for, wherever they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import both_ways
import native
import real_runs
import seeds
import tiny
from breadth import some
from hf_models import tiny_config
from needs import package
from small_configs import small_config
from spillway import _engine
from spillway.cli import main
from spillway.config import resolve
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import ADAPTER, Adapters
from spillway.model.meta.building import build
from test_quantised import MOE, SEED, WORDS, adapters, expect_kill_changes_nothing, rounded

peft = package("peft", "LoRA is PEFT's")
ASKED = {
    "nf4": ["--load_in_4bit"],
    "nf4_nested": ["--load_in_4bit", "--bnb_4bit_use_double_quant"],
    "int8": ["--load_in_8bit"],
}
BLOCK, GROUP = 64, 256  # values of a scale, scales of a group
STEP = 2**-14  # of bitsandbytes' table, between -1 and 1
TARGETS = ["q_proj", "v_proj"]
SHAPES = {  # of weights, as bitsandbytes is given them
    "linear": (160, 256),
    "linear of a part of a block": (33, 50),
    "experts": (6, 96, 64),
    "transposed experts": (6, 64, 96),
    "many groups": (5, 96, 300),
}


def weight_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.02


def parts_of(weight: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the engine keeps of a weight: codes, scales or their codes, and what these are decoded with."""
    flat = weight.flatten().contiguous()
    group = BLOCK * GROUP if form == "nf4_nested" else BLOCK
    values = -(-flat.numel() // group) * group
    kept = torch.frombuffer(bytearray(_engine.pack(form, flat.numpy())), dtype=torch.uint8)
    codes, rest = kept.split([values // 2, len(kept) - values // 2])
    if form == "nf4":
        return codes, rest.view(torch.float32), torch.empty(0)
    scales, groups = rest.split([values // BLOCK, len(rest) - values // BLOCK])
    return codes, scales, groups.clone().view(torch.float32).view(-1, 2)


def same_codes(ours: torch.Tensor, theirs: torch.Tensor, values: int) -> None:
    assert values % 2 == 0 and torch.equal(ours[: values // 2], theirs.flatten())


def quantise(weight: torch.Tensor, nested: bool) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """bitsandbytes' codes of a parameter, their state, and what they stand for."""
    functional = package("bitsandbytes", "its codes are compared").functional
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    module = nn.Module()
    module.weight = nn.Parameter(weight.clone(), requires_grad=False)
    replace_parameter_4bit(module, "weight", compress_statistics=nested, quant_type="nf4", blocksize=BLOCK)
    codes, state = module.parametrizations.weight.original, module.parametrizations.weight[0].quant_state
    state.shape = torch.Size([weight.numel()])  # on CPUs it begins a block with each row
    return codes, state, functional.dequantize_4bit(codes, state)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_nf4_codes_and_scales_equal_those_of_bitsandbytes(shape: tuple[int, ...]) -> None:
    weight = weight_of(shape)
    theirs, state, values = quantise(weight, nested=False)
    codes, scales, _ = parts_of(weight, "nf4")
    same_codes(codes, theirs, weight.numel())
    assert torch.equal(scales[: len(state.absmax)], state.absmax)
    flat = weight.flatten().clone()
    _engine.round_packed("nf4", flat.numpy())
    assert torch.equal(flat, values.flatten())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_double_quantisation_equals_that_of_bitsandbytes(shape: tuple[int, ...]) -> None:
    """Its mean of the scales is a sum in fp32, and on CPUs it looks a code up in a table of steps: where a scale lies
    in the middle between two codes to such a step, it may have the other one."""
    weight = weight_of(shape)
    theirs, state, values = quantise(weight, nested=True)
    codes, scales, groups = parts_of(weight, "nf4_nested")
    same_codes(codes, theirs, weight.numel())
    torch.testing.assert_close(groups[:, 0], state.state2.absmax, rtol=1e-6, atol=0)
    torch.testing.assert_close(groups[:, 1], state.offset.expand(len(groups)), rtol=1e-6, atol=0)
    ours, blocks = scales[: len(state.absmax)].long(), torch.arange(len(state.absmax))
    exact = (parts_of(weight, "nf4")[1][blocks] - state.offset) / state.state2.absmax[blocks // GROUP]
    meanings = dynamic_map()
    assert torch.equal(meanings, state.state2.code)
    assert torch.equal((meanings - exact[:, None]).abs().amin(1), (meanings[ours] - exact).abs()), "the nearest"
    differ = ours != state.absmax
    assert float(differ.float().mean()) < 0.01
    further = (meanings[state.absmax.long()] - exact).abs() - (meanings[ours] - exact).abs()
    assert float(further.abs().max()) < STEP
    flat = weight.flatten().clone()
    _engine.round_packed("nf4_nested", flat.numpy())
    same = ~differ.repeat_interleave(BLOCK)[: len(flat)]
    torch.testing.assert_close(flat[same], values.flatten()[same], rtol=1e-5, atol=1e-9)


def dynamic_map() -> torch.Tensor:
    """The signed dynamic map of 8 bits: seven powers of ten, each with twice as many values as the one below."""
    tenths = [torch.linspace(0.1, 1, 2**power + 1) for power in range(7)]
    above = torch.cat([10 ** (p - 6) * ((bounds[:-1] + bounds[1:]) / 2) for p, bounds in enumerate(tenths)])
    return torch.cat([-above, torch.tensor([0.0, 1.0]), above]).sort().values


def rounded_as(weight: torch.Tensor, form: str) -> torch.Tensor:
    """What the codes of a weight stand for, made without the engine."""
    if form != "nf4_nested":
        return rounded(weight, form)
    flat = weight.detach().float().flatten()
    blocks = nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    unit = rounded(weight, "nf4").flatten() / scales.repeat_interleave(BLOCK)[: flat.numel()]
    mean = scales.double().mean().float()
    groups = nn.functional.pad(scales - mean, (0, -len(scales) % GROUP)).view(-1, GROUP)
    largest = groups.abs().amax(1, keepdim=True)
    values = dynamic_map()
    nearest = (groups / largest).unsqueeze(-1).sub(values).abs().argmin(-1)
    again = (values[nearest] * largest + mean).flatten()[: len(scales)]
    return (unit * again.repeat_interleave(BLOCK)[: flat.numel()]).view(weight.shape)


def round_layers(model: Any, form: str) -> Any:
    """Linear layers and experts inside the layers."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if ".layers." not in name:
                continue
            for own, parameter in module._parameters.items():
                if parameter is not None and (
                    parameter.dim() == 3 or (isinstance(module, nn.Linear) and own == "weight")
                ):
                    assert "router" not in own
                    parameter.copy_(rounded_as(parameter, form))
    return model


PLACES: dict[str, dict[str, Any]] = {
    "dram": {},
    "half": {"placement": "weight=50%,state=path,grad=path,activation=dram"},
    "path": {"placement": "path"},
}


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
@pytest.mark.parametrize(
    ("form", "place"),
    some([(form, place) for form in ASKED for place in PLACES], [("nf4", "half"), ("nf4_nested", "path")]),
)
def test_equals_peft_on_what_the_codes_stand_for(kind: str, form: str, place: str, tmp_path: Path) -> None:
    config = tiny_config(kind, False, num_hidden_layers=2, **(MOE if kind == "qwen3_moe" else {}))
    both_ways.save(config, tmp_path / "model", 7)
    storage = {} if place == "dram" else {"storage": tmp_path}
    session = native.opened(
        tmp_path / "model", both_ways.SHAPE, weight_decay=both_ways.DECAY, max_grad_norm=both_ways.CLIP,
        adam_epsilon=both_ways.EPSILON, method="lora", lora_r=4, lora_alpha=8, lora_target_modules=TARGETS,
        base_form=form, **storage, **PLACES[place],
    )  # fmt: skip
    base = round_layers(both_ways.load(tmp_path / "model"), form)
    begun = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    torch.manual_seed(SEED)
    plain = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    )
    work = both_ways.steps_of(plain.config.vocab_size)
    try:
        losses = [(r.loss_sum / r.label_tokens) for r in (session.step(step, both_ways.RATE) for step in work)]
        (tmp_path / "saved").mkdir()
        session.save_model(tmp_path / "saved")
        ours = {name: tensor for name, tensor in session.masters().items() if "lora_" not in name}
    finally:
        session.close()
    assert ours.keys() == begun.keys()
    for name, tensor in begun.items():  # a scale's code times a scale and a mean, in another order than here
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5 if form == "nf4_nested" else 0, atol=1e-9)
    assert losses == pytest.approx(both_ways.train_plain(plain, work), rel=1e-5)
    plain.save_pretrained(tmp_path / "expected")
    found, expected = (load_file(tmp_path / name / ADAPTER) for name in ("saved", "expected"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) <= 2e-5 * float(tensor.abs().max()), name


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts beside the rows, tokenizer and profile of every run."""
    directory = real_runs.inputs(tmp_path_factory.mktemp("experts"))
    for name in ("config.json", "model.safetensors"):
        (directory / "model" / name).unlink()
    vocabulary = len(tiny.tokenizer())
    config = tiny_config("qwen3_moe", False, num_hidden_layers=2, vocab_size=vocabulary, **MOE)
    both_ways.save(config, directory / "model", 7)
    return directory


@pytest.mark.parametrize("form", some(ASKED, ["nf4_nested"]))
def test_placement_and_device_change_no_bit_of_experts(form: str, given: Path, tmp_path: Path) -> None:
    words = [*WORDS, *ASKED[form], "--max_steps", "3"]
    places = {
        "dram": [],
        "half": real_runs.on_path(tmp_path / "half-path"),
        "path": [*real_runs.storage_in(tmp_path / "path-path"), "--placement", "path"],
        "device": ["--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"],
    }
    for place, more in places.items():
        assert real_runs.here(given, tmp_path / place, *words, *more) == 0
        assert adapters(tmp_path / place) == adapters(tmp_path / "dram"), place


def test_experts_killed_and_resumed_on_a_path_end_as_in_memory(
    given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, *ASKED["nf4_nested"], "--max_steps", "8", "--save_steps", "3"]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("experts").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(given, tmp_path, words, capfd)


def test_check_rounds_experts_the_plain_way_as_well(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, *ASKED["nf4_nested"], "--compute_dtype", "fp32", "--learning_rate", "1e-2", "--max_length", "64",
             "--per_device_train_batch_size", "2", "--profile", str(given / "profile.json")]  # fmt: skip
    assert main(["check", "--model", str(given / "model"), "--dataset", str(given / "train.jsonl"), *words]) == 0
    assert "equal but for rounding" in capsys.readouterr().out


def test_plan_counts_experts_as_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where experts are nearly all of a model, its weights take little more than their codes, in the plan of a step."""
    sizes = {**MOE, "num_experts": 64, "moe_intermediate_size": 128, "hidden_size": 128, "num_hidden_layers": 2}
    config = tiny_config("qwen3_moe", False, **sizes)
    config.save_pretrained(tmp_path)

    def plan(*more: str) -> dict[str, Any]:
        words = ["plan", "--model", str(tmp_path), "--profile", "workstation", "--max_length", "64", *WORDS]
        assert main([*words, "--json", *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def weights(plan: dict[str, Any]) -> int:
        return sum(int(row["bytes"]) for row in plan["bytes"] if row["class"] == "weight")

    whole, nf4, nested, int8 = (plan(*words) for words in ([], *ASKED.values()))
    experts = 2 * 64 * 3 * 128 * 128
    for packed, bits in ((nf4, 4.5), (nested, 4.13), (int8, 8.5)):
        assert weights(whole) - weights(packed) == pytest.approx(experts * (16 - bits) / 8, rel=0.05)
        assert packed["unquantised"]["share"] < 0.05 and "experts" not in packed["unquantised"]["reasons"]
    assert weights(nested) < weights(nf4)


def test_double_quantisation_is_for_4_bits_and_stays_with_a_run(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, *ASKED["nf4_nested"], "--max_steps", "1", "--save_steps", "1"]
    assert real_runs.here(given, tmp_path / "out", *WORDS, "--bnb_4bit_use_double_quant") == 2
    assert "bnb_4bit_use_double_quant: it is for the scales of load_in_4bit" in capsys.readouterr().err
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    again = [*WORDS, *ASKED["nf4"], "--max_steps", "2", "--resume_from_checkpoint", "auto"]
    assert real_runs.here(given, tmp_path / "out", *again) == 2
    assert "bnb_4bit_use_double_quant: the run was started with True" in capsys.readouterr().err


KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {  # what is packed besides the attention's linear layers
    "qwen3_moe": (MOE, {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
    "gpt_oss": ({"num_local_experts": 4}, {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
    "mixtral": ({"num_local_experts": 4}, {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
    "granitemoe": (
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_packed_in_any_order_and_routers_are_not(kind: str) -> None:
    more, expected = KINDS[kind]
    meta_model = build(tiny_config(kind, False, **more), torch.float32)
    Adapters({"r": 2, "target_modules": TARGETS}, 1).adapt(meta_model)
    quantised.choose(meta_model, resolve({}, {"method": "lora", "load_in_4bit": True}))
    packed = {name.partition("layers.")[2].partition(".")[2] for name in quantised.names(meta_model)}
    assert {name for name in packed if "attn" not in name} == expected
    assert {f"self_attn.{way}_proj.weight" for way in "qkvo"} <= packed


WHOLE = {  # matrices inside layers that are not packed
    "aria_text": {"mlp.router.weight"},
    "dbrx": {"ffn.router.layer.weight"},
    "falcon": set(),
    "falcon_mamba": {"mixer.A_log", "mixer.conv1d.weight"},
    "jetmoe": {"mlp.router.layer.weight", "self_attention.experts.router.layer.weight"},
    "llama4_text": {"feed_forward.router.weight"},
    "longcat_flash": {"mlp.router.classifier.weight"},
    "muse_spark": {"mlp.gate.weight"},
    "zaya": {
        *(f"mlp.gate.router_mlp.{name}.weight" for name in ("fc1", "fc2", "out_proj")),
        *(f"self_attn.qkv_proj.conv_qk_{name}.weight" for name in ("depthwise", "grouped")),
    },
}


@pytest.mark.parametrize("kind", WHOLE)
def test_routers_and_what_is_no_matrix_of_a_product_stay_whole(kind: str) -> None:
    layers = build(small_config(kind), torch.float32).layers
    packed = {id(matrix) for layer in layers for matrix in quantised.find_matrices(layer)}
    every = [(name, p) for layer in layers for name, p in layer.named_parameters() if p.dim() > 1]
    assert packed and {name for name, p in every if id(p) not in packed} == WHOLE[kind]
