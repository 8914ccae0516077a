"""Norms, SwiGLU and rotary embedding by the engine's kernels, on the host here: the values and gradients of the model's
own code, in whichever class it is found, and far fewer operations and bytes in a layer's passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from hf_models import batch, random_ids, tiny_config, tiny_model
from needs import package
from spillway.base.calls import loss_kernels, native_engine
from spillway.model.adapters.lora import Adapters
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import arrange
from spillway.model.layers.fused import Rotary, norm_forward, rotary_forward
from spillway.model.layers.fused_mlp import GatedMlp, GateForm, gate_forward
from spillway.model.layers.fused_search import find_fusions, list_fusions
from spillway.model.layers.kernels import NAMES
from spillway.model.layers.residual import residual_forwards
from spillway.model.layers.saved import RECOMPUTE_ALL
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.measure.narrow import NarrowStep, narrow_of_its_kind
from spillway.model.measure.trace import Tracer
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.source.model_code import replaced_forwards
from spillway.model.stream import layer
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.saved_layers import keep_all
from spillway.model.stream.stream import Stream

TYPES = [torch.float32, torch.bfloat16, torch.float16]
UNITS = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with loss_kernels(native_engine(), "fp32") as engine:
        yield engine


def normal(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def differentiated(call: Callable[..., Any], *given: torch.Tensor) -> list[torch.Tensor]:
    """What a call gives, and the gradients of all that it was given."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    output = call(*leaves)
    seed = normal(*output.shape, dtype=output.dtype, seed=9)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed)]


def assert_near(found: list[torch.Tensor], expected: list[torch.Tensor], roundings: float = 8) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        within = roundings * UNITS[one.dtype] * float(other.abs().max())
        assert float((one.float() - other.float()).abs().max()) <= within


# ---- parts alone


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm, Olmo2RMSNorm])
@pytest.mark.parametrize("columns", [7, 64, 300])
def test_a_norm_is_that_of_its_class(kernels: Any, kind: type[nn.Module], columns: int, dtype: torch.dtype) -> None:
    norm = kind(columns, eps=1e-5)
    norm.weight = nn.Parameter(normal(columns, dtype=dtype))
    ((module, form),) = find_fusions(norm).norms.items()
    assert module is norm and form.epsilon == 1e-5 and form.offset == (1.0 if kind is Gemma2RMSNorm else 0.0)
    assert form.rounds_early == (kind is LlamaRMSNorm)
    fused = norm_forward(norm, form, kernels)

    def run(forward: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        norm.zero_grad()
        found = differentiated(forward, normal(3, 19, columns, dtype=dtype, seed=2) * 3)
        seed = normal(3, 19, columns, dtype=dtype, seed=9)
        forward(normal(3, 19, columns, dtype=dtype, seed=2) * 3).backward(seed)
        assert norm.weight.grad is not None
        return [*found, norm.weight.grad.clone()]

    assert_near(run(fused), run(norm.forward), 16)


FORM = GateForm("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_an_mlp_is_that_of_its_class(kernels: Any, dtype: torch.dtype, bias: bool) -> None:
    mlp = LlamaMLP(tiny_config("llama", mlp_bias=bias)).to(dtype)
    ((module, form),) = find_fusions(mlp).gates.items()
    assert module is mlp and form == FORM

    def run(forward: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        mlp.zero_grad()
        hidden = normal(2, 9, 32, dtype=dtype).requires_grad_()
        output = forward(hidden)
        output.backward(normal(*output.shape, dtype=dtype, seed=9))
        gradients = [parameter.grad for parameter in (hidden, *mlp.parameters())]
        return [output.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]

    found, expected = run(gate_forward(mlp, form, kernels)), run(mlp.forward)
    assert len(found) == (8 if bias else 5)
    assert_near(found, expected)


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
def test_a_frozen_layer_of_an_mlp_has_no_gradient(kernels: Any, name: str) -> None:
    mlp = LlamaMLP(tiny_config("llama"))
    getattr(mlp, name).weight.requires_grad_(False)
    hidden = normal(2, 9, 32, dtype=torch.float32)
    assert_near(differentiated(gate_forward(mlp, FORM, kernels), hidden), differentiated(mlp.forward, hidden))
    gate_forward(mlp, FORM, kernels)(hidden).sum().backward()
    assert {key for key, parameter in mlp.named_parameters() if parameter.grad is None} == {f"{name}.weight"}


def test_an_mlp_keeps_its_input_and_two_outputs_alone(kernels: Any) -> None:
    mlp = LlamaMLP(tiny_config("llama"))
    weights, saved = {parameter.data_ptr() for parameter in mlp.parameters()}, list[tuple[int, ...]]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gate_forward(mlp, FORM, kernels)(normal(2, 9, 32, dtype=torch.float32).requires_grad_())
    inner = mlp.gate_proj.out_features
    assert saved == [(2, 9, 32), (2, 9, inner), (2, 9, inner)]


def test_a_layer_with_a_hook_is_called(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, called = LlamaMLP(tiny_config("llama")), list[str]()
    mlp.up_proj.register_forward_hook(lambda *_: called.append("up"))
    monkeypatch.setattr(GatedMlp, "apply", lambda *_: pytest.fail("the layer was passed over"))
    hidden = normal(2, 9, 32, dtype=torch.float32)
    assert_near([gate_forward(mlp, FORM, kernels)(hidden).detach()], [mlp(hidden).detach()])
    assert called == ["up", "up"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sequences", [1, 2])
def test_a_rotation_has_the_bits_of_transformers(kernels: Any, sequences: int, dtype: torch.dtype) -> None:
    heads = normal(2, 7, 3, 12, dtype=dtype).transpose(1, 2)
    cosines, sines = (normal(sequences, 7, 12, dtype=dtype, seed=seed) for seed in (3, 4))
    calls = rotary_forward(apply_rotary_pos_emb, kernels), apply_rotary_pos_emb

    def run(call: Callable[..., Any], which: int) -> list[torch.Tensor]:
        return differentiated(lambda given: call(given, given, cosines, sines)[which], heads)

    for which in (0, 1):
        assert all(map(torch.equal, *(run(call, which) for call in calls)))


def test_what_no_kernel_knows_runs_as_it_is(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables for a part of each head, and values of another type than the weight's."""
    monkeypatch.setattr(Rotary, "apply", lambda *_: pytest.fail("a kernel was called"))
    heads, tables = normal(1, 2, 5, 8, dtype=torch.float32), normal(1, 5, 8, dtype=torch.float64)
    calls = rotary_forward(apply_rotary_pos_emb, kernels), apply_rotary_pos_emb
    assert torch.equal(*(call(heads, heads, tables, tables)[0] for call in calls))
    norm = LlamaRMSNorm(8)
    ((_, form),) = find_fusions(norm).norms.items()
    hidden = heads.bfloat16()
    assert torch.equal(norm_forward(norm, form, kernels)(hidden), norm(hidden))


# ---- what is found


ALL = ["RMSNorm", "SwiGLU", "rotary embedding"]
FOUND = {
    "llama": ALL,
    "qwen2": ALL,
    "qwen3": ALL,
    "olmo2": ALL,
    "gemma2": ["RMSNorm", "rotary embedding"],
    "gemma3_text": ["RMSNorm", "rotary embedding"],
    "gpt2": [],
}


@pytest.mark.parametrize("kind", FOUND)
def test_parts_are_found_by_what_they_compute(kind: str) -> None:
    more = {"n_inner": 48} if kind == "gpt2" else {}
    assert list_fusions(build(tiny_config(kind, **more), torch.bfloat16).layers) == FOUND[kind]


class AlmostNorm(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        mean = hidden_states.float().mean(-1, keepdim=True)
        return super().forward(hidden_states - mean.to(hidden_states.dtype))


class AlmostMLP(LlamaMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=0.5) * self.up_proj(x))


def test_parts_that_compute_otherwise_are_not_taken() -> None:
    for module in (AlmostNorm(16), AlmostMLP(tiny_config("llama")), nn.LayerNorm(16)):
        found = find_fusions(module)
        assert not found.norms and not found.gates


# ---- a step


@dataclass
class Step:
    gradients: dict[int, torch.Tensor]
    loss: float
    calls: set[str]  # of kernels
    options: set[str]  # that calls named


def stepped(
    kernels: Any,
    kind: str,
    fused: bool,
    dtype: str = "fp32",
    keeps: bool = False,
    tiles: TokenTiles = ALL_AT_ONCE,
    frozen: bool = False,
) -> Step:
    """A step of a tiny model."""
    config = tiny_config(kind)
    weights = dict(tiny_model(copy.deepcopy(config)).named_parameters())
    meta_model = build(copy.deepcopy(config), torch.float32 if dtype == "fp32" else torch.bfloat16)
    if frozen:
        for layer in meta_model.layers:
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_("norm" not in name)
    work = arrange([batch(random_ids(2, 12, 1)), batch(random_ids(1, 9, 2))])
    engine = PlainEngine(describe(meta_model, WorkSize(2, work.tokens), dtype), chunk_elements=1024)
    calls, options = set[str](), set[str]()

    def counted(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> None:
            calls.add(name)
            options.update(named)
            getattr(kernels, name)(*given, **named)

        return call

    for name in NAMES:
        setattr(engine, name, counted(name))
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(weights[tensor.name].detach())
    saved = keep_all(meta_model) if keeps else RECOMPUTE_ALL
    stream = Stream(meta_model, engine, 3, {"mlp.down_proj"}, saved=saved, tiles=tiles, fused=fused)
    loss = stream.step(work).loss_sum
    stream.close()
    return Step(engine.gradients, loss, calls, options)


def assert_alike(one: Step, other: Step) -> None:
    assert one.gradients.keys() == other.gradients.keys() and len(one.gradients) > 3
    assert abs(one.loss - other.loss) <= 1e-5 * abs(other.loss)
    largest = max(float(gradient.abs().max()) for gradient in other.gradients.values())
    for number, gradient in other.gradients.items():
        assert float((one.gradients[number] - gradient).abs().max()) <= 2e-6 * largest, number


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "olmo2"])
def test_a_step_with_kernels_is_a_step_without(kernels: Any, kind: str) -> None:
    fused, plain = (stepped(kernels, kind, fused) for fused in (True, False))
    gated = {"swiglu", "swiglu_backward"} if kind != "gemma3_text" else set()
    assert fused.calls == {"rms_norm", "rms_norm_backward", "rotate"} | gated and not plain.calls
    assert_alike(fused, plain)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "olmo2", "qwen3_moe", "cohere2"])
def test_sums_around_norms_have_the_bits_of_separate_additions(
    kernels: Any, kind: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms before blocks, around blocks, after blocks, in a mixture of experts, and two blocks beside each other."""
    summed = stepped(kernels, kind, True, "bf16", keeps)
    monkeypatch.setattr(layer, "residual_forwards", lambda *_: {})
    separate = stepped(kernels, kind, True, "bf16", keeps)
    assert summed.loss == separate.loss and summed.gradients.keys() == separate.gradients.keys()
    assert all(torch.equal(summed.gradients[number], one) for number, one in separate.gradients.items())
    fused_sums = {"addend", "sum", "skip_gradient"} if kind not in ("olmo2", "cohere2") else set()
    assert summed.options == fused_sums and not separate.options


class OddLayer(nn.Module):
    """Uses its hidden state in many ways around a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(8)
        self.block = nn.Sequential(nn.Linear(8, 8))

    def forward(self, hidden_states: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, int]:
        rows, length, _ = hidden_states.shape
        residual = hidden_states + self.block(hidden_states)
        first = residual[:, :1].expand(rows, length, 8)
        normed = self.norm(residual)
        mean = torch.stack([residual, first]).mean(0) * scale
        mean = mean + (2 - residual * 0.5) / (residual**2 + 1) + -residual @ torch.eye(8) - residual[0] * len(residual)
        out = normed + residual
        out = torch.cat([out, mean], -1).view(rows, length, 2, 8).sum(2)
        out += residual
        return self.norm(out - residual) + 2, length


@pytest.mark.parametrize("named", [False, True])
def test_a_layer_may_use_its_hidden_state_in_any_way(kernels: Any, named: bool) -> None:
    odd = OddLayer()
    fusions = find_fusions(odd)
    forwards = fusions.forwards(kernels)
    replaced = forwards | residual_forwards(odd, forwards, fusions.norms)
    assert odd in replaced and odd.norm in replaced

    def run(hidden: torch.Tensor) -> torch.Tensor:
        out, length = odd(hidden_states=hidden, scale=0.5) if named else odd(hidden, 0.5)
        assert type(out) is torch.Tensor and length == 5
        return out

    hidden = normal(2, 5, 8, dtype=torch.float32)
    expected = differentiated(run, hidden)
    with replaced_forwards(replaced):
        assert_near(differentiated(run, hidden), expected)


def test_a_layer_with_a_linear_layer_of_its_own_sums_by_itself(kernels: Any) -> None:
    odd = OddLayer()
    odd.block = nn.Linear(8, 8)
    fusions = find_fusions(odd)
    assert fusions.norms and residual_forwards(odd, fusions.forwards(kernels), fusions.norms) == {}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_kept_layers_have_the_bits_of_recomputed_ones(kernels: Any, dtype: str) -> None:
    kept, recomputed = (stepped(kernels, "llama", True, dtype, keeps) for keeps in (True, False))
    assert kept.loss == recomputed.loss and kept.gradients.keys() == recomputed.gradients.keys()
    assert all(torch.equal(kept.gradients[number], one) for number, one in recomputed.gradients.items())


def test_kernels_run_inside_of_tiles(kernels: Any) -> None:
    tiles = TokenTiles(5, frozenset({"mlp", "input_layernorm", "post_attention_layernorm"}), frozenset({"mlp"}))
    tiled = stepped(kernels, "llama", True, tiles=tiles)
    assert {"swiglu_backward", "rms_norm_backward"} <= tiled.calls
    assert_alike(tiled, stepped(kernels, "llama", False))


def test_frozen_norms_have_no_gradient(kernels: Any) -> None:
    fused, plain = (stepped(kernels, "llama", fused, frozen=True) for fused in (True, False))
    assert_alike(fused, plain)


def test_a_model_is_left_as_it_was(kernels: Any) -> None:
    from transformers.models.llama import modeling_llama

    own = modeling_llama.apply_rotary_pos_emb
    meta_model = build(tiny_config("llama"), torch.float32)
    engine = PlainEngine(describe(meta_model, WorkSize(1, 9), "fp32"), chunk_elements=1024)
    for name in NAMES:
        setattr(engine, name, getattr(kernels, name))
    stream = Stream(meta_model, engine, 0, fused=True)
    stream.step(arrange([batch(random_ids(1, 9, 2))]))
    stream.close()
    assert modeling_llama.apply_rotary_pos_emb is own
    assert not any("forward" in vars(module) for module in meta_model.model.modules())


# ---- operations and bytes of a layer's passes

QWEN_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


@dataclass
class Counts:
    """Of a layer's forward pass, and its recomputation with backward, over 8192 tokens."""

    operations: float
    gigabytes: float


def count_operations(fused: bool, micro_batches: int = 1, adapters: Adapters | None = None) -> Counts:
    model = build(AutoConfig.for_model("qwen2", **QWEN_7B), torch.bfloat16)
    if adapters is not None:
        adapters.adapt(model)
    shape = WorkShape(micro_batches, 4, 2048, 0, 0)
    small = narrow_of_its_kind(model, False, 1)
    step = NarrowStep(small, shape, "bf16", frozenset({"mlp.down_proj"}), fused=fused)
    passes = Tracer(step).trace(4, 2048, again=True).passes
    elements = [it for kind in ("forward", "backward") for it in passes[kind].each.elements]
    return Counts(sum(it.calls for it in elements), sum(it.calls * it.bytes for it in elements) / 1e9)


def test_a_layer_of_7b_touches_a_third_of_the_bytes() -> None:
    """Products and attention are not counted. Gradients of weights on their way to the engine are: 0.9 GB."""
    plain, fused = count_operations(False), count_operations(True)
    assert plain.operations == 136 and plain.gigabytes == pytest.approx(20.7, abs=0.1)
    assert fused.operations <= 42 and fused.gigabytes <= 6.54, fused


def test_products_that_add_to_sums_leave_35_operations_and_less_than_6_gb() -> None:
    lent = count_operations(True, micro_batches=4)
    assert lent.operations <= 35 and lent.gigabytes <= 5.6, lent


@pytest.mark.parametrize(("dropout", "operations", "gigabytes"), [(0.0, 61, 6.4), (0.05, 89, 13.4)])
def test_adapters_touch_memory_as_large_as_an_output_once(dropout: float, operations: int, gigabytes: float) -> None:
    """With PEFT's own forward: 82 operations on 18.1 GB, and with dropout 131 on 26.7 GB."""
    package("peft", "LoRA is PEFT's")
    asked = {"r": 16, "lora_alpha": 32, "lora_dropout": dropout, "target_modules": "all-linear"}
    counts = count_operations(True, adapters=Adapters(asked, 5))
    assert counts.operations <= operations and counts.gigabytes <= gigabytes, counts
