"""Random weights: the class's own distribution, seeded by (seed, block, slice), never the whole model at once."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fake_engine import FakeEngine
from hf_models import SIZES, tiny_config
from spillway._engine import EngineSettings
from spillway.model.checkpoint import initialise
from spillway.model.checkpoint.initialise import draw
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe


def drawn(kind: str, seed: int, tied: bool = True, layers: int = 3) -> dict[str, torch.Tensor]:
    meta_model = build(tiny_config(kind, tied, num_hidden_layers=layers), torch.bfloat16)
    fake = FakeEngine(describe(meta_model, WorkSize(1, 8), "bf16"), EngineSettings(dram_budget=1 << 30))
    draw(meta_model, fake, seed)
    assert all(parameter.is_meta for parameter in meta_model.model.parameters())
    assert meta_model.embedding.padding_idx == 0
    return {tensor.name: fake.masters[number].clone() for number, tensor in enumerate(fake.tensors)}


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_the_distribution_is_the_librarys(kind: str, tied: bool) -> None:
    config = AutoConfig.for_model(kind, **SIZES | {"tie_word_embeddings": tied, "initializer_range": 0.05})
    real = dict(AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).named_parameters())
    meta_model = build(config, torch.float32)
    fake = FakeEngine(describe(meta_model, WorkSize(1, 8), "fp32"), EngineSettings(dram_budget=1 << 30))
    draw(meta_model, fake, 1)
    for number, tensor in enumerate(fake.tensors):
        ours, theirs = fake.masters[number], real[tensor.name]
        if len(tensor.shape) == 1:
            assert torch.equal(ours, theirs.detach()), tensor.name
        else:
            assert float(ours.std()) == pytest.approx(0.05, rel=0.15), tensor.name
            assert abs(float(ours.mean())) < 0.01
    assert not fake.masters[0][0].any()  # the padding row, as nn.Embedding has it


def test_weights_follow_from_the_seed_and_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialise, "slice_rows", lambda rows, columns: 40)
    state = torch.get_rng_state()
    one, again, other = drawn("llama", 3), drawn("llama", 3), drawn("llama", 4)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one[name.replace("1", "2")])
    deeper = drawn("llama", 3, layers=5)
    assert all(torch.equal(one[name], deeper[name]) for name in one)
    table = one["model.embed_tokens.weight"]
    assert not table[0].any() and table[40].any() and not torch.equal(table[1:40], table[41:80])


class Counting(FakeEngine):
    """Counts the fp32 elements that are there whenever a tensor is stored."""

    most = 0

    def store_tensor(self, tensor: int, first: int, values: torch.Tensor) -> None:
        type(self).most = max(self.most, sum(p.numel() for p in self.model.parameters() if not p.is_meta))
        super().store_tensor(tensor, first, values)


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_drawn_at_once_is_told_before(tied: bool) -> None:
    meta_model = build(tiny_config("llama", tied, num_hidden_layers=3), torch.bfloat16)
    fake = Counting(describe(meta_model, WorkSize(1, 8), "bf16"), EngineSettings(dram_budget=1 << 30))
    fake.model, Counting.most = meta_model.model, 0
    draw(meta_model, fake, 3)
    aligned = 64 * 16  # elements: what a layer's tensors lie apart at most
    assert 0 < 4 * Counting.most <= initialise.work_bytes(meta_model) <= 4 * (Counting.most + aligned)
