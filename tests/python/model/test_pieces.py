"""Experts that are converted a few at a time: the bits of converting their layer at once, in less memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import both_ways
import real_runs
import tiny
from breadth import some
from hf_models import tiny_config
from needs import package
from spillway import _engine
from spillway.cli import main
from spillway.config import resolve
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import Adapters
from spillway.model.layers import pieces
from spillway.model.layers.few_rows import fill_rows
from spillway.model.layers.pieces import AT_ONCE, Experts, Part, Place, list_runs
from spillway.model.meta.building import build

package("peft", "LoRA is PEFT's")
EXPERTS = 10
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": EXPERTS, "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    "olmoe": {"num_experts": EXPERTS},
    "mixtral": {"num_local_experts": EXPERTS},
    "gpt_oss": {"num_local_experts": EXPERTS, "intermediate_size": 64},  # [columns, rows], and biases
}
FORMS = {
    "nf4": ["--load_in_4bit"],
    "nf4_nested": ["--load_in_4bit", "--bnb_4bit_use_double_quant"],
    "int8": ["--load_in_8bit"],
}
TARGETS = ["--lora_target_modules", "q_proj", "--lora_target_modules", "v_proj"]
WORDS = ["--method", "lora", "--lora_r", "4", *TARGETS, "--max_steps", "3"]
PLACES = {
    "dram": [],
    "path": ["--placement", "path"],
    "device": ["--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"],
}
SAVED = {"recompute": ["--activation_recompute", "all"], "kept": ["--activation_recompute", "none"]}


@pytest.fixture(scope="module")
def given_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A mixture of experts of a kind beside the rows, tokenizer and profile of every run."""
    made: dict[str, Path] = {}

    def given(kind: str) -> Path:
        if kind not in made:
            directory = made[kind] = real_runs.inputs(tmp_path_factory.mktemp(kind))
            for name in ("config.json", "model.safetensors"):
                (directory / "model" / name).unlink()
            sizes = {"num_experts_per_tok": 2, "num_hidden_layers": 2, "vocab_size": len(tiny.tokenizer())}
            both_ways.save(tiny_config(kind, False, **{**sizes, **KINDS[kind]}), directory / "model", 7)
        return made[kind]

    return given


class Count:
    """Pieces that an engine converts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces = 0
        convert = _engine.Engine.convert_pieces

        def counted(engine: Any, tensor: int, first: int, count: int) -> None:
            self.pieces += count
            convert(engine, tensor, first, count)

        monkeypatch.setattr(_engine.Engine, "convert_pieces", counted)


def result(out: Path) -> Any:
    return real_runs.metrics(out), (out / "adapter_model.safetensors").read_bytes()


CASES = [(kind, form, place, saved) for kind in KINDS for form in FORMS for place in PLACES for saved in SAVED]
CHOSEN = [
    ("qwen3_moe", "nf4", "dram", "recompute"),
    ("qwen3_moe", "nf4_nested", "device", "kept"),
    ("olmoe", "int8", "dram", "kept"),
    ("mixtral", "nf4_nested", "path", "recompute"),
    ("mixtral", "int8", "device", "recompute"),
    ("gpt_oss", "nf4", "device", "kept"),
]


@pytest.mark.parametrize(("kind", "form", "place", "saved"), some(CASES, CHOSEN))
def test_pieces_give_the_bits_of_converting_whole_layers(
    kind: str,
    form: str,
    place: str,
    saved: str,
    given_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = real_runs.storage_in(tmp_path / "storage") if place == "path" else []
    words = [*FORMS[form], *PLACES[place], *SAVED[saved], *storage]
    plan = expect_bits_of_whole_layers(given_of(kind), tmp_path, monkeypatch, words)
    assert saved == "recompute" or plan["saved_activations"]["blocks"]


@pytest.mark.parametrize("place", ["dram", "device"])
def test_tiles_of_tokens_and_evaluations_convert_pieces(
    place: str, given_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = given_of("qwen3_moe")
    held_out = ["--eval_dataset", str(given / "held_out.jsonl"), "--eval_strategy", "steps", "--eval_steps", "1"]
    words = [*FORMS["nf4_nested"], *PLACES[place], "--token_tile", "24", *held_out]
    expect_bits_of_whole_layers(given, tmp_path, monkeypatch, words)


def expect_bits_of_whole_layers(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> dict[str, Any]:
    """Gives the plan of the run that converts pieces."""
    count = Count(monkeypatch)
    words = [*WORDS, *words, "--overwrite"]
    assert real_runs.here(given, tmp_path / "pieces", *words) == 0
    assert count.pieces > 0
    count.pieces = 0
    monkeypatch.setattr(quantised, "count_pieces", lambda *_: 0)
    assert real_runs.here(given, tmp_path / "whole", *words) == 0
    assert count.pieces == 0
    assert result(tmp_path / "pieces") == result(tmp_path / "whole")
    return dict(json.loads((tmp_path / "pieces" / "plan.json").read_text()))


def place_of(weights: torch.Tensor, asked: list[tuple[int, int]]) -> Place:
    """Pieces of `weights`, converted by a copy."""
    arena = torch.full((AT_ONCE * weights[0].numel(),), float("nan"), dtype=weights.dtype)

    def convert(_: int, first: int, count: int) -> None:
        asked.append((first, count))
        arena.fill_(float("nan"))
        arena[: weights[first : first + count].numel()] = weights[first : first + count].flatten()

    place = Place(0, weights.to("meta"), convert, torch.device("cpu"))
    place.bind(arena, 0)
    return place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "counts", [[128, 0, 0, 0, 0, 256, 144, 0, 160, 0], [3, 0, 0, 0, 1, 40, 0, 0, 129, 16], [0] * 10]
)
def test_grouped_products_convert_the_experts_that_rows_ask_for(
    counts: list[int], transposed: bool, dtype: torch.dtype
) -> None:
    """Products of many rows, which are PyTorch's own, and of few, which get rows of zeros."""
    torch.manual_seed(1)
    weights = torch.randn(EXPERTS, 64, 96, dtype=dtype)
    rows, inner = sum(counts), 64 if transposed else 96
    x, gradient = torch.randn(rows, inner, dtype=dtype), torch.randn(rows, 160 - inner, dtype=dtype)
    offs = torch.tensor(counts).cumsum(0).to(torch.int32)
    asked: list[tuple[int, int]] = []

    def run(experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.clone().requires_grad_()
        with fill_rows(torch.device("cpu")):
            turned = experts if transposed else experts.transpose(-2, -1)
            product = nn.functional.grouped_mm(leaf, turned, offs=offs)
        product.backward(gradient)
        assert leaf.grad is not None
        return product.detach(), leaf.grad

    found, expected = run(Experts(Part(place_of(weights, asked)))), run(weights)
    assert all(torch.equal(ours, plain) for ours, plain in zip(found, expected, strict=True))
    met = {number for number, count in enumerate(counts) if count}
    assert met <= {number for first, count in asked for number in range(first, first + count)}
    assert all(first in met and first + count - 1 in met for first, count in asked), "no run ends beside the asked"


@pytest.mark.parametrize("name", ["grouped_mm", "grouped_mm_fallback"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("counts", [[128, 0, 0, 0, 0, 256, 144, 0, 160, 0], [3, 0, 0, 0, 1, 40, 0, 0, 129, 16]])
def test_trained_experts_get_the_gradients_of_plain_weights(counts: list[int], transposed: bool, name: str) -> None:
    torch.manual_seed(2)
    weights = torch.randn(EXPERTS, 64, 96)
    rows, inner = sum(counts), 64 if transposed else 96
    x, gradient = torch.randn(rows, inner), torch.randn(rows, 160 - inner)
    offs = torch.tensor(counts).cumsum(0).to(torch.int32)
    multiply: Any = nn.functional.grouped_mm if name == "grouped_mm" else torch.ops.transformers.grouped_mm_fallback

    def find_gradient(experts: torch.Tensor) -> torch.Tensor:
        leaf = experts.requires_grad_()
        with fill_rows(torch.device("cpu")):
            multiply(x, leaf if transposed else leaf.transpose(-2, -1), offs=offs).backward(gradient)
        assert leaf.grad is not None
        return leaf.grad

    place = place_of(weights, [])
    place.trains = True
    found, expected = find_gradient(Experts(Part(place))), find_gradient(weights.clone())
    assert torch.equal(found, expected)
    for number, count in enumerate(counts):
        assert bool(found[number].any()) == (count > 0)


def test_a_grouped_product_of_each_run_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As devices multiply runs of experts, by the CPU's own grouped product."""

    def at_once(x: torch.Tensor, values: torch.Tensor, ends: list[int], out: torch.Tensor) -> None:
        offs = torch.tensor(ends[1:], dtype=torch.int32)
        pieces.multiply_at_once(torch.ops.aten._grouped_mm.default, x, values, offs, out)

    monkeypatch.setattr(pieces, "multiply_one_by_one", at_once)
    test_grouped_products_convert_the_experts_that_rows_ask_for(
        [128, 0, 0, 0, 0, 256, 144, 0, 160, 0], False, torch.bfloat16
    )


def test_runs_hold_at_most_four_experts() -> None:
    assert list(list_runs([0, 0, 2, 3, 3, 3, 3, 7, 7])) == [(1, 2), (6, 1)]
    assert list(list_runs([0, 1, 1, 1, 2, 3])) == [(0, 4), (4, 1)]
    assert list(list_runs([0, 1, 1, 1, 2, 3], gaps=False)) == [(0, 1), (3, 2)]
    assert list(list_runs([0, 1, 2, 3, 4, 5, 5, 6], gaps=False)) == [(0, 4), (4, 1), (6, 1)]
    assert list(list_runs([0, 0])) == []


def test_experts_refuse_what_would_convert_all_of_them() -> None:
    experts = Experts(Part(place_of(torch.randn(6, 8, 16), [])))
    for operation in (lambda: experts + 1, lambda: experts.transpose(0, 1), lambda: experts[0, 1], experts.clone):
        with pytest.raises(NotImplementedError, match="experts that are converted in pieces"):
            operation()


def pieces_of(kind: str, **more: Any) -> dict[str, int]:
    meta_model = build(tiny_config(kind, False, **{**KINDS.get(kind, {}), **more}), torch.float32)
    Adapters({"r": 2, "target_modules": ["q_proj"]}, 1).adapt(meta_model)
    quantised.choose(meta_model, resolve({}, {"method": "lora", "load_in_4bit": True}))
    found = {meta_model.names[key]: count for key, count in meta_model.pieces.items()}
    return {name.partition("layers.0.")[2]: count for name, count in found.items() if "layers.0." in name}


def test_experts_of_the_librarys_grouped_product_have_pieces() -> None:
    for kind in KINDS:
        assert pieces_of(kind) == {f"mlp.experts.{name}_proj": EXPERTS for name in ("gate_up", "down")}, kind
    assert pieces_of("llama4_text", num_local_experts=4) == {}, "it multiplies by all experts in one product of its own"
    assert pieces_of("mixtral", hidden_size=36, intermediate_size=7) == {}, "an expert ends within a block of codes"


def test_an_older_pytorch_converts_whole_layers() -> None:
    meta_model = build(tiny_config("mixtral", False, **KINDS["mixtral"]), torch.float32)
    experts: Any = next(it for it in meta_model.layers[0].modules() if "gate_up_proj" in it._parameters)
    assert pieces.count_pieces(experts, experts.gate_up_proj, "2.11.0+cpu") == EXPERTS
    assert pieces.count_pieces(experts, experts.gate_up_proj, "2.10.1") == 0


def test_plan_has_room_for_a_few_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"num_experts": 64, "moe_intermediate_size": 128, "hidden_size": 128, "num_hidden_layers": 2}
    tiny_config("qwen3_moe", False, **{**KINDS["qwen3_moe"], **sizes}).save_pretrained(tmp_path)

    def plan() -> dict[str, Any]:
        words = ["plan", "--model", str(tmp_path), "--profile", "workstation", "--max_length", "64", *WORDS]
        assert main([*words, "--json", "--load_in_4bit"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def scratch(plan: dict[str, Any]) -> int:
        return sum(int(row["bytes"]) for row in plan["bytes"] if row["class"] == "scratch")

    few = plan()
    monkeypatch.setattr(quantised, "count_pieces", lambda *_: 0)
    whole = plan()
    expert = 2 * 128 * 128 * 2  # the larger of its matrices, in bf16
    assert scratch(whole) - scratch(few) == pytest.approx((64 * 1.5 - AT_ONCE) * expert, rel=0.01)
    assert few["seconds"]["compute"] == whole["seconds"]["compute"]
