"""Weight gradients that products add to the engine's fp32 sums. Here a product of the host stands for the GPU's."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import real_runs
from hf_models import batch, random_ids, tiny_config, tiny_model
from real_runs import here, metrics, result
from spillway.base.calls import loss_kernels, native_engine
from spillway.machine.place import HOST, Place
from spillway.model.batches.microbatch import arrange
from spillway.model.layers import weight_sums
from spillway.model.layers.kernels import NAMES
from spillway.model.layers.linear_pass import replace_linears
from spillway.model.layers.saved import RECOMPUTE_ALL
from spillway.model.layers.token_tiles import ALL_AT_ONCE, Parts, TokenTiles
from spillway.model.layers.weight_sums import (
    AddProduct,
    StageSums,
    WeightSums,
    add_product,
    choose_product,
    has_operation,
)
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.stream import stream as stream_module
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.saved_layers import keep_all
from spillway.model.stream.stream import Stream
from sum_products import add_in_fp32, add_rounded

GPU = Place(torch.device("cuda", 0))
TILES = TokenTiles(5, frozenset({"mlp", "input_layernorm", "post_attention_layernorm"}), frozenset({"mlp"}))
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


# ---- PyTorch's operation


def test_the_operation_has_the_expected_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_operation("2.12.0") and has_operation("2.13.1+cu130") and not has_operation("2.11.0")
    monkeypatch.setattr(weight_sums, "SCHEMA", weight_sums.SCHEMA.replace("beta=1", "beta=2"))
    assert not has_operation("2.12.0")


def test_the_product_takes_shapes_and_types_of_the_operation() -> None:
    """On `meta`, which checks both and computes nothing."""
    sum, dy, x = (torch.empty(s, device="meta", dtype=t) for s, t in SHAPES)
    for first in (True, False):
        add_product(sum, dy, x, first)
    with pytest.raises(RuntimeError):
        add_product(sum, dy, x[:, 1:], False)


SHAPES = (((3, 4), torch.float32), ((5, 3), torch.bfloat16), ((5, 4), torch.bfloat16))


def test_a_gpu_and_narrow_types_have_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert choose_product(GPU, dtype) is add_product and choose_product(HOST, dtype) is None
    assert choose_product(GPU, torch.float32) is None
    monkeypatch.setattr(weight_sums, "has_operation", lambda: False)
    assert choose_product(GPU, torch.bfloat16) is None


# ---- one linear layer


@dataclass
class Sums:
    """Stands for the engine: sums by tensor, and the calls."""

    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    lent: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)

    def can_lend_sums(self) -> bool:
        return True

    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[torch.Tensor, bool]:
        self.lent.append((tensor, micro_batch))
        first = tensor not in self.sums
        return self.sums.setdefault(tensor, torch.full((12,), float("nan"))), first

    def end_sum(self, tensor: int, micro_batch: int) -> None:
        self.ended.append((tensor, micro_batch))


def sums_of(linear: nn.Module, engine: Sums) -> StageSums:
    sums = WeightSums(engine, Parts(), add_rounded)
    sums.begin(training=True)
    return StageSums(sums, {linear: 7})


def narrow_linear() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(4, 3).bfloat16()


def differentiate(linear: nn.Linear, sums: StageSums | None, times: int) -> list[torch.Tensor | None]:
    """Gradients of input, weight and bias of a layer that runs so often."""
    linear.zero_grad()
    hidden = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    with replace_linears([], sums=sums):
        output = torch.stack([linear(hidden * (number + 1)) for number in range(times)]).sum(0)
    output.backward(torch.linspace(-1, 1, 30).view(2, 5, 3).bfloat16())
    assert "forward" not in vars(linear)
    return [hidden.grad, linear.weight.grad, linear.bias.grad]


def test_a_layer_gives_its_weight_gradient_to_the_sum_alone() -> None:
    linear, engine = narrow_linear(), Sums()
    of_hidden, of_weight, of_bias = differentiate(linear, None, 1)
    summed = differentiate(linear, sums_of(linear, engine), 1)
    assert summed[1] is None and of_weight is not None
    assert torch.equal(summed[0], of_hidden) and torch.equal(summed[2], of_bias)  # type: ignore[arg-type]
    assert torch.equal(engine.sums[7].view(3, 4), of_weight.float())
    assert engine.lent == engine.ended == [(7, 0)]


def test_a_layer_that_runs_twice_gives_its_gradient_to_autograd() -> None:
    linear, engine = narrow_linear(), Sums()
    expected = differentiate(linear, None, 2)
    found = differentiate(linear, sums_of(linear, engine), 2)
    assert not engine.lent and all(map(torch.equal, found, expected))  # type: ignore[arg-type]


def test_hooks_of_a_layer_run_once() -> None:
    linear, engine = narrow_linear(), Sums()
    seen: list[torch.Size] = []
    linear.register_forward_hook(lambda module, given, output: seen.append(output.shape))
    differentiate(linear, sums_of(linear, engine), 1)
    assert seen == [torch.Size((2, 5, 3))] and engine.lent


def test_a_frozen_weight_has_no_product() -> None:
    linear, engine = narrow_linear(), Sums()
    linear.weight.requires_grad_(False)
    assert differentiate(linear, sums_of(linear, engine), 1)[1] is None
    assert not engine.lent


def test_values_of_another_type_leave_the_layer_as_it_is() -> None:
    linear, engine = nn.Linear(4, 3), Sums()
    hidden = torch.randn(5, 4).double()
    with replace_linears([], sums=sums_of(linear, engine)), pytest.raises(RuntimeError):
        linear(hidden)
    with replace_linears([], sums=sums_of(linear, engine)):
        linear(hidden[0].float()).sum().backward()
    assert not engine.lent and linear.weight.grad is not None


# ---- steps of a stream


class LendingEngine(PlainEngine):
    """Lends its sums where a step has more parts than virtual ranks."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.parts = 0
        self.lent: list[tuple[int, int]] = []
        self.given: list[tuple[int, int]] = []

    def begin_step(self, ids: torch.Tensor, counts: list[int], *given: Any, **more: Any) -> None:
        super().begin_step(ids, counts, *given, **more)
        self.parts = len(counts)

    def can_lend_sums(self) -> bool:
        return self.parts > self.description.virtual_ranks

    def lend_sum(self, tensor: int, micro_batch: int) -> tuple[torch.Tensor, bool]:
        self.lent.append((tensor, micro_batch))
        first = tensor not in self.gradients
        return self._sum_of(tensor).view(-1), first

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        self.given.append((tensor, micro_batch))
        super().gradient(tensor, values, micro_batch)


@dataclass(frozen=True)
class Case:
    kind: str = "llama"
    dtype: str = "bf16"
    tiles: TokenTiles = ALL_AT_ONCE
    keeps: bool = False
    fused: bool = False
    micro_batches: int = 3
    virtual_ranks: int = 1
    frozen: str = ""  # a word of names that are not trained


@dataclass
class Step:
    gradients: dict[int, torch.Tensor]
    names: list[str]
    lent: list[tuple[int, int]]
    given: list[tuple[int, int]]
    factors: dict[int, list[tuple[torch.Tensor, torch.Tensor]]]  # dY and X by tensor


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with loss_kernels(native_engine(), "bf16") as engine:
        yield engine


def stepped(case: Case, product: AddProduct | None, kernels: Any = None) -> Step:
    more = {"n_inner": 48} if case.kind == "gpt2" else {}
    config = tiny_config(case.kind, **more)
    weights = dict(tiny_model(copy.deepcopy(config)).named_parameters())
    meta_model = build(copy.deepcopy(config), torch.bfloat16 if case.dtype == "bf16" else torch.float32)
    for name, parameter in meta_model.model.named_parameters():
        parameter.requires_grad_(not case.frozen or case.frozen not in name)
    batches = [batch(random_ids(1 + number % 2, 12 - number, number)) for number in range(case.micro_batches)]
    work = arrange(batches, virtual_ranks=case.virtual_ranks)
    size = WorkSize(case.micro_batches, work.tokens, case.virtual_ranks)
    engine = LendingEngine(describe(meta_model, size, case.dtype), chunk_elements=1024)
    for name in NAMES if case.fused else ():
        setattr(engine, name, getattr(kernels, name))
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(weights[tensor.name].detach())
    factors: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def watched(sum: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, first: bool) -> None:
        assert product is not None and sum.dtype == torch.float32 and dy.dtype == x.dtype == torch.bfloat16
        factors.setdefault(engine.lent[-1][0], []).append((dy.clone(), x.clone()))
        product(sum, dy, x, first)

    saved = keep_all(meta_model) if case.keeps else RECOMPUTE_ALL
    chosen = None if product is None else watched
    stream = Stream(meta_model, engine, 3, {"mlp.down_proj"}, saved=saved, tiles=case.tiles, fused=case.fused,
                    product=chosen)  # fmt: skip
    stream.step(work)
    stream.close()
    names = [tensor.name for tensor in engine.tensors]
    return Step(engine.gradients, names, engine.lent, engine.given, factors)


CASES = {
    "llama": Case(),
    "biases": Case("qwen2"),
    "norms of heads": Case("qwen3"),
    "kept": Case(keeps=True),
    "tiles": Case(tiles=TILES, micro_batches=2),
    "tiles of one micro-batch": Case(tiles=TILES, micro_batches=1),
    "tiles, kept": Case(tiles=TILES, keeps=True),
    "kernels": Case(fused=True),
    "kernels in tiles": Case(fused=True, tiles=TILES),
    "kernels, kept": Case(fused=True, keeps=True),
    "two virtual ranks": Case(virtual_ranks=2),
    "some frozen": Case(frozen="layers.1"),
    "gates frozen": Case(frozen="gate_proj", fused=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_has_the_sums_of_gradients_that_are_handed_over(kernels: Any, name: str) -> None:
    """With parts that are rounded alike; and each weight of a linear layer comes by one way in each of its parts."""
    summed, handed = (stepped(CASES[name], product, kernels) for product in (add_rounded, None))
    assert summed.gradients.keys() == handed.gradients.keys() and not handed.lent
    assert all(torch.equal(summed.gradients[number], one) for number, one in handed.gradients.items())
    assert Counter(summed.lent) + Counter(summed.given) == Counter(handed.given)
    of_linears = [
        number
        for number in {number for number, _ in handed.given}
        if summed.names[number].endswith("weight") and summed.names[number].split(".")[-2] in PROJECTIONS
    ]
    assert of_linears and {number for number, _ in summed.lent} == set(of_linears)


@pytest.mark.parametrize("name", ["llama", "tiles", "kernels", "two virtual ranks"])
def test_sums_have_the_accuracy_of_fp32(kernels: Any, name: str) -> None:
    """Parts that are rounded lie 100 times as far away."""
    summed, rounded = (stepped(CASES[name], product, kernels) for product in (add_in_fp32, add_rounded))
    for number, pairs in summed.factors.items():
        exact = sum(dy.double().t() @ x.double() for dy, x in pairs)
        assert isinstance(exact, torch.Tensor)
        distance, of_rounded = (
            float((it.gradients[number].double() - exact).abs().max() / exact.abs().max()) for it in (summed, rounded)
        )
        assert distance <= 1e-6 and of_rounded > 1e-4


@pytest.mark.parametrize("name", ["tiles", "kernels", "kernels in tiles"])
def test_kept_activations_change_no_bit(kernels: Any, name: str) -> None:
    kept, recomputed = (stepped(replace(CASES[name], keeps=keeps), add_in_fp32, kernels) for keeps in (True, False))
    assert kept.lent == recomputed.lent and kept.lent
    assert all(torch.equal(kept.gradients[number], one) for number, one in recomputed.gradients.items())


@pytest.mark.parametrize(
    "case",
    [
        Case(micro_batches=1),
        Case(micro_batches=2, virtual_ranks=2),
        Case(dtype="fp32"),
        Case("gpt2"),
        Case(frozen="proj"),
    ],
)
def test_other_steps_hand_every_gradient_over(case: Case) -> None:
    """One part in each virtual rank, fp32, GPT-2's Conv1D, frozen linear layers."""
    summed, handed = (stepped(case, product) for product in (add_in_fp32, None))
    assert not summed.lent and summed.given == handed.given
    assert all(torch.equal(summed.gradients[number], one) for number, one in handed.gradients.items())


# ---- runs of the engine

STEPS = ("--max_steps", "4", "--save_steps", "4", "--compute_dtype", "bf16", "--gradient_accumulation_steps", "4")
RUNS = {
    "full": (),
    "tiles": ("--token_tile", "24"),
    "virtual ranks": ("--virtual_ranks", "2"),
    "lora": ("--method", "lora", "--lora_r", "4"),
    "replayed": ("--replay_steps", "1"),
}
PLACES = {
    "kept": ("--activation_recompute", "none"),
    "recomputed": ("--activation_recompute", "all"),
    "path": ("--placement", "path", "--durability", "step"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("sums"))


def use(monkeypatch: pytest.MonkeyPatch, product: AddProduct) -> Counter[bool]:
    """Runs have the product from here on. Counts products that overwrite a sum, and others."""
    counts: Counter[bool] = Counter()

    def counted(sum: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, first: bool) -> None:
        counts[first] += 1
        product(sum, dy, x, first)

    choices = dict.fromkeys(weight_sums.TYPES, counted)
    monkeypatch.setattr(stream_module, "choose_product", lambda place, dtype: choices.get(dtype))
    return counts


def bits(out: Path) -> Any:
    """Rows and files; the session's own record differs between tiers where adapters are trained."""
    found, files, log = result(out)
    return found, {name: content for name, content in files.items() if name != "spillway/session.json"}, log


@pytest.mark.parametrize("name", RUNS)
def test_placement_changes_no_bit(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    keys = (*STEPS, *RUNS[name])
    assert here(inputs, tmp_path / "handed over", *keys) == 0
    counts = use(monkeypatch, add_in_fp32)
    assert here(inputs, tmp_path / "dram", *keys) == 0
    assert counts[True] and counts[False]
    for place, more in PLACES.items():
        storage = ("--storage", f"{tmp_path},capacity=256MiB") if place == "path" else ()
        assert here(inputs, tmp_path / place, *keys, *more, *storage) == 0
        assert bits(tmp_path / place) == bits(tmp_path / "dram")
    losses, others = ([row["loss"] for row in metrics(tmp_path / run)] for run in ("dram", "handed over"))
    assert losses == pytest.approx(others, rel=2e-2) and bits(tmp_path / "dram") != bits(tmp_path / "handed over")


@pytest.mark.parametrize("name", RUNS)
def test_runs_have_the_bits_of_gradients_that_are_handed_over(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With parts that are rounded alike: norms, clipping and updates are those of every other run."""
    keys = (*STEPS, *RUNS[name])
    assert here(inputs, tmp_path / "handed over", *keys) == 0
    counts = use(monkeypatch, add_rounded)
    assert here(inputs, tmp_path / "summed", *keys) == 0
    assert counts[True] and counts[False]
    assert result(tmp_path / "summed") == result(tmp_path / "handed over")
