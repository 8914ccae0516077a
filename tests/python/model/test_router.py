"""The auxiliary loss of mixtures of experts: the library's own, micro-batch by micro-batch, wherever bytes lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import native
from both_ways import RATE, SHAPE, compare, load, plain_loss, save, steps_of, tensors
from breadth import some
from small_configs import small_config
from spillway.errors import InputError
from spillway.model.meta.building import build
from spillway.model.verify.equivalence import verify_equivalence

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
KINDS = {
    "mixtral": "every layer has experts",
    "qwen3_moe": "experts chosen by their normalised shares",
    "flint": "layers without experts",
    "jetmoe": "routers in attention, too",
    "gpt_oss": "routers with a bias",
}


def config_of(kind: str, coefficient: float = 0.5, **more: Any) -> Any:
    """A coefficient that shows in every digit of the loss."""
    config = small_config(kind, output_router_logits=True, **more)
    (name,) = (name for name in COEFFICIENTS if hasattr(config, name))
    setattr(config, name, coefficient)
    return config


@pytest.mark.parametrize("kind", some(KINDS, ("mixtral", "gpt_oss")))
def test_equals_the_librarys_own_loss(kind: str, tmp_path: Path) -> None:
    compare(config_of(kind), tmp_path)


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
