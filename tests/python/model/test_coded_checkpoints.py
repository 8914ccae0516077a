"""Models that come quantised are trained as plain transformers trains what their codes stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import both_ways
import coded_models
import real_runs
import seeds
from both_ways import tensors
from coded_models import FP8_BLOCK, KINDS, Kind, code_model, fp8_parts, mxfp4_parts, nf4_parts
from needs import package
from spillway import _engine
from spillway.cli import main
from spillway.model.source.tensor_files import PIECE, Stored
from test_checkpoint_forms import compute_plain_loss, read_first_loss
from test_quantised import KILLED, LIMIT, adapters, expect_kill_changes_nothing

Tensors = dict[str, torch.Tensor]
FP32 = ("--compute_dtype", "fp32", "--weight_dtype", "fp32", "--learning_rate", "1e-3")
LORA = ("--method", "lora", "--lora_r", "4", "--lora_target_modules", "all-linear")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return real_runs.inputs(tmp_path / "given")


def make_coded(inputs: Path, kind: Kind, files: int = 1) -> Path:
    """The inputs' model becomes one of codes; returns the plain one of what they stand for."""
    if kind.model != "llama":
        both_ways.replace_model(inputs / "model", kind.model, **kind.sizes)
    return code_model(inputs / "model", kind, files)


def stored_as(place: Path, parts: Tensors, settings: dict[str, Any]) -> Stored:
    place.mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in parts.items()}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return Stored(place)


def random_weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.02


# ---- decoders


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(96, 64), (33, 50), (300, 257 * 2)])
def test_nf4_equals_its_description(tmp_path: Path, shape: tuple[int, ...], nested: bool) -> None:
    parts, values = nf4_parts("a.weight", random_weight(*shape), nested)
    stored = stored_as(tmp_path, parts, coded_models.OF_4_BITS)
    assert stored.names() == {"a.weight"}
    assert torch.equal(stored.tensor("a.weight"), values)


@pytest.mark.parametrize("nested", [False, True])
def test_nf4_equals_bitsandbytes(tmp_path: Path, nested: bool) -> None:
    """Codes, their parts and their values are its own."""
    functional = package("bitsandbytes", "its values are compared").functional
    codes, state = functional.quantize_4bit(random_weight(96, 128), compress_statistics=nested, quant_type="nf4")
    parts = {"a.weight": codes, **{f"a.weight.{name}": it for name, it in state.as_dict(packed=True).items()}}
    stored = stored_as(tmp_path, parts, coded_models.OF_4_BITS)
    assert torch.equal(stored.tensor("a.weight"), functional.dequantize_4bit(codes, state))


@pytest.mark.parametrize("exponents", [False, True])
def test_fp8_equals_transformers(tmp_path: Path, exponents: bool) -> None:
    parts, values = fp8_parts("a.weight", random_weight(64, 72), FP8_BLOCK, exponents)
    theirs = Fp8Dequantize(None)._dequantize_one(*parts.values(), output_dtype=torch.float32)
    assert torch.equal(theirs, values)
    assert torch.equal(stored_as(tmp_path, parts, KINDS["fp8"].settings).tensor("a.weight"), theirs)


@pytest.mark.parametrize("shape", [(50, 31), (16, 24), (17, 25)])
def test_fp8_with_blocks_that_end_early(tmp_path: Path, shape: tuple[int, int]) -> None:
    parts, values = fp8_parts("a.weight", random_weight(*shape), FP8_BLOCK)
    assert torch.equal(stored_as(tmp_path, parts, KINDS["fp8"].settings).tensor("a.weight"), values)


def test_fp8_with_one_scale_of_a_weight(tmp_path: Path) -> None:
    codes = random_weight(6, 5).mul(100).to(torch.float8_e4m3fn)
    parts = {"a.weight": codes, "a.weight_scale_inv": torch.tensor(0.25), "a.activation_scale": torch.tensor(3.0)}
    stored = stored_as(tmp_path, parts, {**coded_models.OF_8_BITS, "weight_block_size": None})
    assert stored.names() == {"a.weight"} and torch.equal(stored.tensor("a.weight"), codes.float() * 0.25)


def test_every_code_of_fp8_is_that_of_pytorch(tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).view(16, 16)
    parts = {"a.weight": codes, "a.weight_scale_inv": torch.ones(1, 1)}
    found = stored_as(tmp_path, parts, coded_models.OF_8_BITS).tensor("a.weight")
    torch.testing.assert_close(found, codes.float(), rtol=0, atol=0, equal_nan=True)


def test_mxfp4_equals_transformers(tmp_path: Path) -> None:
    parts, values = mxfp4_parts("a.gate_up_proj", random_weight(3, 64, 40))
    theirs = convert_moe_packed_tensors(*parts.values(), dtype=torch.float32)
    assert torch.equal(theirs, values)
    assert torch.equal(stored_as(tmp_path, parts, {"quant_method": "mxfp4"}).tensor("a.gate_up_proj"), theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_any_span_of_a_weight_is_that_of_the_whole(kind: str, tmp_path: Path) -> None:
    shape = (3, 64, 40) if kind == "mxfp4" else (70, 96)
    parts, values = KINDS[kind].parts("a.weight", random_weight(*shape))
    stored = stored_as(tmp_path, parts, KINDS[kind].settings)
    flat, chance = values.flatten(), seeds.instants(kind)
    for _ in range(50):
        first = chance.randrange(flat.numel())
        count = chance.randint(1, flat.numel() - first)
        out = torch.empty(count * 4, dtype=torch.uint8)
        stored._reader.read("a.weight", out.numpy(), first)
        assert torch.equal(out.view(torch.float32), flat[first : first + count]), (first, count, seeds.said())


# ---- runs


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_equal_those_of_transformers_on_the_decoded_weights(
    kind: str, files: int, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    decoded, out, plain = make_coded(inputs, KINDS[kind], files), tmp_path / "out", tmp_path / "plain"
    assert real_runs.here(inputs, out, *FP32, "--max_steps", "3") == 0
    shown = " ".join(" ".join(capfd.readouterr()).split())
    assert f"the weights come quantised ({KINDS[kind].words})" in shown
    assert real_runs.here(inputs, plain, *FP32, "--max_steps", "3", "--model", str(decoded)) == 0
    assert real_runs.metrics(out) == real_runs.metrics(plain)
    (inputs / "model").rename(inputs / "codes")
    decoded.rename(inputs / "model")
    assert read_first_loss(out) == pytest.approx(compute_plain_loss(inputs, out), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_check_trains_transformers_on_what_the_codes_stand_for(kind: str, inputs: Path, tmp_path: Path) -> None:
    make_coded(inputs, KINDS[kind])
    for more in ((), ("--layers", "1")):
        assert real_runs.here(inputs, tmp_path / "out", *FP32, "--max_steps", "2", *more, verb="check") == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_model_is_plain(kind: str, dtype: str, inputs: Path, tmp_path: Path) -> None:
    decoded, out = make_coded(inputs, KINDS[kind]), tmp_path / "out"
    words = ("--weight_dtype", dtype, "--compute_dtype", dtype, "--max_steps", "1", "--save_steps", "1")
    assert real_runs.here(inputs, out, *words) == 0
    for place in (out, out / "checkpoint-1"):
        saved = tensors(place)
        assert saved.keys() == tensors(decoded).keys()
        assert {it.dtype for it in saved.values()} == {torch.bfloat16 if dtype == "bf16" else torch.float32}
        assert "quantization_config" not in json.loads((place / "config.json").read_text())
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() > 0


@pytest.mark.parametrize("kind", ["fp8", "mxfp4"])
def test_killed_and_resumed_on_a_path_ends_as_in_memory(
    kind: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_coded(inputs, KINDS[kind])
    words = ("--max_steps", "8", "--save_steps", "3", "--resume_from_checkpoint", "auto")
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("coded").uniform(0.005, 0.2)))
    assert real_runs.here(inputs, tmp_path / "whole", *words) == 0
    on_path = (*words, *real_runs.on_path(tmp_path / "path"))
    process = real_runs.apart("-c", KILLED, *real_runs.words(inputs, tmp_path / "out", *on_path))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode in (0, -14), (error, seeds.said())
    assert real_runs.here(inputs, tmp_path / "out", *on_path) == 0
    ours, whole = tensors(tmp_path / "out"), tensors(tmp_path / "whole")
    assert ours.keys() == whole.keys() and all(torch.equal(it, whole[name]) for name, it in ours.items()), seeds.said()
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "whole")


def test_tensors_without_a_place_are_carried_decoded(inputs: Path, tmp_path: Path) -> None:
    """As the layers of DeepSeek-V3 that predict further tokens."""
    decoded = make_coded(inputs, KINDS["fp8"])
    name = "model.layers.3.eh_proj.weight"
    parts, values = fp8_parts(name, random_weight(32, 48), FP8_BLOCK)
    save_file({**load_file(inputs / "model" / "model.safetensors"), **parts}, inputs / "model" / "model.safetensors")
    assert real_runs.here(inputs, tmp_path / "out", "--max_steps", "1", "--weight_dtype", "bf16") == 0
    saved = tensors(tmp_path / "out")
    assert saved.keys() == tensors(decoded).keys() | {name} and torch.equal(saved[name], values.bfloat16())


# ---- a base that stays codes


@pytest.mark.parametrize("nested", [False, True])
def test_base_of_4_bits_keeps_the_codes_of_the_checkpoint(tmp_path: Path, nested: bool) -> None:
    parts, _ = nf4_parts("a.weight", random_weight(96, 64), nested)
    values = stored_as(tmp_path, parts, coded_models.OF_4_BITS).tensor("a.weight").flatten()
    packed = torch.frombuffer(bytearray(_engine.pack("nf4", values.numpy())), dtype=torch.uint8)
    assert torch.equal(packed[: values.numel() // 2], parts["a.weight"].flatten())
    if not nested:
        assert torch.equal(packed[values.numel() // 2 :].view(torch.float32), parts["a.weight.absmax"])
    again = values.clone()
    _engine.round_packed("nf4", again.numpy())
    assert torch.equal(again, values)


@pytest.mark.parametrize("kind", ["nf4", "nested"])
def test_adapters_over_kept_codes_equal_those_over_decoded_weights(
    kind: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same losses and adapters come of codes that are kept, and of fp32 weights."""
    decoded = make_coded(inputs, KINDS[kind])
    words = (*FP32, *LORA, "--max_steps", "3")
    assert real_runs.here(inputs, tmp_path / "codes", *words, "--load_in_4bit") == 0
    assert "load_in_4bit keeps the same codes" in " ".join(" ".join(capfd.readouterr()).split())
    assert real_runs.here(inputs, tmp_path / "plain", *words, "--model", str(decoded)) == 0
    assert real_runs.metrics(tmp_path / "codes") == real_runs.metrics(tmp_path / "plain")
    assert adapters(tmp_path / "codes") == adapters(tmp_path / "plain")


def test_kept_codes_are_killed_and_resumed_to_the_same_bits(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_coded(inputs, KINDS["nested"])
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("coded base").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(inputs, tmp_path, [*LORA, "--load_in_4bit", "--max_steps", "8"], capfd)


# ---- what a person is told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "a run keeps and saves them in bf16"),
        (LORA, "load_in_4bit keeps their codes"),
        ((*LORA, "--load_in_4bit"), "load_in_4bit keeps the same codes, with scales in fp32"),
        ((*LORA, "--load_in_4bit", "--bnb_4bit_use_double_quant"), "rounds their scales anew"),
        ((*LORA, "--load_in_8bit"), "their values are rounded again"),
    ],
)
def test_plan_says_what_becomes_of_codes(
    more: tuple[str, ...], words: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_coded(inputs, KINDS["nested"])
    assert real_runs.here(inputs, tmp_path / "out", *more, "--weight_dtype", "bf16", verb="plan") == 0
    shown = " ".join(" ".join(capfd.readouterr()).split())
    assert "the weights come quantised (NF4 of bitsandbytes)" in shown and words in shown


@pytest.mark.parametrize("kind", KINDS)
def test_doctor_says_what_a_model_holds(kind: str, inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_coded(inputs, KINDS[kind])
    assert main(["doctor", str(inputs / "model")]) == 0
    assert f"quantised ({KINDS[kind].words})" in " ".join(capsys.readouterr().out.split())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("quantization_config", {"quant_method": name, "bits": 4}, name) for name in ("gptq", "awq", "hqq", "aqlm")),
    ("quantization_config", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
    ("quantization_config", {"load_in_4bit": True}, "bitsandbytes, fp4"),
    ("quantization_config", {"quant_method": "fp8", "fmt": "e5m2"}, "fp8, e5m2"),
    ("quantization", {"group_size": 64, "bits": 4}, "a format without a name"),
]


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(("key", "settings", "name"), REFUSED, ids=[name for *_, name in REFUSED])
def test_other_kinds_are_refused_by_name_with_what_to_do(
    key: str,
    settings: dict[str, Any],
    name: str,
    method: str,
    inputs: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = inputs / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: settings}))
    for verb in ("plan", "train"):
        capfd.readouterr()
        assert real_runs.here(inputs, tmp_path / "out", "--method", method, verb=verb) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1 and not (tmp_path / "out").exists()
        assert f"the weights are quantised ({name})" in error
        assert "name the unquantised release" in error and "load_in_4bit" in error


def remove_part(end: str) -> Any:
    return lambda parts: {name: it for name, it in parts.items() if not name.endswith(end)}


def cut_part(end: str) -> Any:
    return lambda parts: {name: it[:-1] if name.endswith(end) else it for name, it in parts.items()}


@pytest.mark.parametrize(
    ("kind", "damage", "words"),
    [
        ("nf4", remove_part("q_proj.weight.absmax"), "there is no model.layers.0.self_attn.q_proj.weight.absmax"),
        ("nf4", cut_part("q_proj.weight.absmax"), "values need"),
        ("nf4", cut_part("q_proj.weight.quant_state.bitsandbytes__nf4"), "cannot be read"),
        ("nested", remove_part("q_proj.weight.nested_quant_map"), "there is no"),
        ("fp8", cut_part("q_proj.weight_scale_inv"), "do not divide"),
        ("fp8", remove_part("q_proj.weight_scale_inv"), "float8_e4m3fn, as of codes"),
        ("mxfp4", cut_part("down_proj_scales"), "are no blocks"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    kind: str, damage: Any, words: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_coded(inputs, KINDS[kind])
    file = inputs / "model" / "model.safetensors"
    save_file({name: it.contiguous() for name, it in damage(load_file(file)).items()}, file, {"format": "pt"})
    capfd.readouterr()
    assert real_runs.here(inputs, tmp_path / "out", *FP32, "--max_steps", "1") == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and words in error and "_proj" in error


def test_weight_of_many_pieces_is_decoded(tmp_path: Path) -> None:
    """A weight is never in memory twice: it is decoded by pieces."""
    codes = torch.randint(0, 255, (PIECE // 1024 + 3, 1024), dtype=torch.uint8)
    codes[codes % 128 == 127] = 0  # NaN
    scales = torch.rand(-(-codes.shape[0] // 128), 8) + 0.5
    parts = {"a.weight": codes.view(torch.float8_e4m3fn), "a.weight_scale_inv": scales}
    stored = stored_as(tmp_path, parts, {**coded_models.OF_8_BITS, "weight_block_size": [128, 128]})
    each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: codes.shape[0]]
    expected = (parts["a.weight"].float() * each).flatten()
    pieces = list(stored.pieces("a.weight"))
    assert len(pieces) > 1 and torch.equal(torch.cat(pieces), expected)
