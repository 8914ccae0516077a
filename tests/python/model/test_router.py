"""The auxiliary loss of mixtures of experts: the library's own, micro-batch by micro-batch, wherever bytes lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import both_ways
import native
from both_ways import RATE, SHAPE, compare, load, plain_loss, save, steps_of, tensors, usual_router_loss
from breadth import some
from small_configs import kinds, small_config, wraps_models
from spillway.config import normalised
from spillway.errors import InputError
from spillway.model.meta.building import build
from spillway.model.source.source import load_config
from spillway.model.verify.equivalence import verify_equivalence

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
KINDS = {
    "mixtral": "every layer has experts",
    "qwen3_moe": "experts chosen by their normalised shares",
    "flint": "layers without experts",
    "jetmoe": "routers in attention, too",
    "gpt_oss": "routers with a bias",
    **dict.fromkeys(
        ("dbrx", "deepseek_v4", "ernie4_5_moe", "flex_olmo", "granitemoe", "granitemoe_swa", "granitemoehybrid",
         "granitemoeshared", "jamba", "laguna", "mellum", "minimax", "minimax_m2", "minimax_m3_vl_text", "olmoe",
         "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text"),
        "the same loss by another class",
    ),
}  # fmt: skip


def config_of(kind: str, coefficient: float = 0.5, **more: Any) -> Any:
    """A coefficient that shows in every digit of the loss."""
    config = small_config(kind, output_router_logits=True, **more)
    for name in COEFFICIENTS if kind != "dbrx" else ():
        if hasattr(config, name):
            setattr(config, name, coefficient)
    if kind == "dbrx":
        config.ffn_config.moe_loss_weight = coefficient
    return config


@pytest.mark.parametrize("kind", some(KINDS, ("mixtral", "gpt_oss")))
def test_equals_the_librarys_own_loss(kind: str, tmp_path: Path) -> None:
    compare(config_of(kind), tmp_path)


def test_every_type_with_the_loss_of_routers_is_compared() -> None:
    """Those of text alone; a multimodal one that asks for it is refused."""
    types = {kind for kind in kinds() if not wraps_models(kind) and usual_router_loss(small_config(kind))}
    assert types == KINDS.keys()


def test_coefficient_of_zero_equals_the_library(tmp_path: Path) -> None:
    compare(config_of("mixtral", 0.0), tmp_path)


BIASED = {
    "deepseek_v3": "a buffer", "ernie4_5_moe": "a frozen parameter", "glm4_moe": "a buffer in fp32",
    **dict.fromkeys(("dots1", "lfm2_moe", "minimax_m2", "solar_open"), "a buffer, too"),
}  # fmt: skip


@pytest.mark.parametrize("kind", some(BIASED, ("deepseek_v3", "ernie4_5_moe")))
def test_biases_that_choose_experts_count_and_stay_as_they_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in transformers, which has no rule that moves them."""
    begun: dict[str, torch.Tensor] = {}

    def save_biased(config: Any, directory: Path, seed: int) -> None:
        save(config, directory, seed)
        generator = torch.Generator().manual_seed(3)
        values = load_file(directory / "model.safetensors")
        for name, value in values.items():
            if name.rpartition(".")[2] in ("e_score_correction_bias", "expert_bias"):
                begun[name] = values[name] = torch.randn(value.shape, generator=generator).to(value.dtype)
        save_file(values, directory / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(both_ways, "save", save_biased)
    compare(small_config(kind), tmp_path)
    ended = tensors(tmp_path / "saved")
    assert begun and all(torch.equal(ended[name], value) for name, value in begun.items())


def test_z_loss_of_a_models_configuration_is_refused_by_name() -> None:
    """Bamba adds it to its loss where its coefficient is above 0."""
    build(small_config("bamba", z_loss_coefficient=0.0), torch.float32)
    with pytest.raises(InputError, match="bamba.*z_loss_coefficient is 0.01, and no z-loss is added"):
        build(small_config("bamba", z_loss_coefficient=0.01), torch.float32)


@pytest.mark.parametrize("kind", ["switch_transformers", "nllb-moe"])
def test_types_that_drop_tokens_beyond_a_capacity_are_refused(kind: str, tmp_path: Path) -> None:
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=kind):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("moe_router_bias_update_rate", "e_score_correction_bias.. keep the values of the checkpoint"),
        ("router_z_loss_coef", "no z-loss is added"),
        ("moe_expert_capacity_factor", "computes all tokens that its router sends"),
        ("moe_aux_loss_coeff", "output_router_logits. turns the loss on"),
    ],
)
def test_keys_of_other_trainers_for_routers_are_refused_by_name(key: str, words: str) -> None:
    with pytest.raises(InputError, match=f"{key}: Spillway does not take this key of other trainers. .*{words}"):
        normalised({key: 1}, "config.yaml")


def test_what_is_added_is_found_by_looking() -> None:
    for kind, experts, top_k in (("mixtral", 4, 2), ("dbrx", 4, 1)):
        config = small_config(kind, output_router_logits=True)
        routers = build(config, torch.float32).routers
        assert routers is not None and (routers.experts, routers.top_k) == (experts, top_k)
    assert build(config_of("mixtral", 0.125), torch.bfloat16).routers.coefficient == 0.125  # type: ignore[union-attr]
    assert build(small_config("mixtral"), torch.float32).routers is None
    assert build(small_config("deepseek_v3", output_router_logits=True), torch.float32).routers is None


def test_an_evaluation_weighs_micro_batches_by_their_labels(tmp_path: Path) -> None:
    save(config_of("mixtral"), tmp_path / "model", 7)
    session, plain = native.opened(tmp_path / "model", SHAPE), load(tmp_path / "model").eval()
    (work, *_) = steps_of(plain.config.vocab_size, padded=True)
    loss_sum, tokens = session.evaluate(work)
    session.close()
    with torch.no_grad():
        each = [(int((b.labels[:, 1:] != -100).sum()), b) for b in work]
        expected = sum(float(plain_loss(plain, b, n)) * n for n, b in each) / sum(n for n, _ in each)
    assert loss_sum / tokens == pytest.approx(expected, rel=1e-6)


def test_the_same_bits_wherever_bytes_lie(tmp_path: Path) -> None:
    save(config_of("qwen3_moe"), tmp_path / "model", 7)
    found = []
    for placement in ("dram", "path"):
        place = tmp_path / placement
        place.mkdir()
        storage = None if placement == "dram" else place
        session = native.opened(tmp_path / "model", SHAPE, storage=storage, placement=placement)
        losses = [session.step(step, RATE).loss_sum for step in steps_of(97, padded=True)[:2]]
        session.save_model(place)
        session.close()
        found.append((losses, tensors(place)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


def test_a_loss_of_its_own_kind_is_refused() -> None:
    with pytest.raises(InputError, match="doge.*output_router_logits adds an auxiliary loss of its own kind"):
        build(small_config("doge", output_router_logits=True), torch.float32)


def test_doge_with_experts_is_no_causal_model() -> None:
    """Its routers mix the tokens of a row, so there is no stream of it that its auxiliary loss could be added to."""
    with pytest.raises(InputError, match="doge.*tokens see later ones"):
        verify_equivalence(small_config("doge", is_moe=True, num_experts=16, num_experts_per_tok=2))


def test_the_proof_sees_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is off is noticed, whatever small coefficient the configuration has."""
    from spillway.model.layers.router import Balance

    monkeypatch.setattr(Balance, "loss", lambda self: 0.0)
    with pytest.raises(InputError, match="the loss of a small copy"):
        verify_equivalence(small_config("mixtral", output_router_logits=True))
