"""Linear layers left out in backward: found by trying, and the gradients are the same bits without them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hf_models import batch, random_ids, tiny_config, tiny_model
from spillway.model.batches.microbatch import arrange
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.layer_arguments import Arguments
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.stream import Stream
from spillway.model.stream.unneeded import find_unneeded
from spillway.model.verify.equivalence import verify_equivalence


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "qwen3"])
def test_the_down_projection_is_found(kind: str) -> None:
    assert verify_equivalence(tiny_config(kind)).unneeded == {"mlp.down_proj"}


def test_what_a_later_norm_reads_is_needed() -> None:
    """olmo2 normalises the MLP's output before it is added."""
    assert verify_equivalence(tiny_config("olmo2")).unneeded == frozenset()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_are_the_same_bits(dtype: str) -> None:
    config = tiny_config("llama", mlp_bias=True)
    model = tiny_model(copy.deepcopy(config))
    work = arrange([batch(random_ids(2, 12, 1)), batch(random_ids(1, 9, 2))])
    found = []
    for unneeded in ((), ("mlp.down_proj",)):
        meta_model = build(copy.deepcopy(config), torch.float32 if dtype == "fp32" else torch.bfloat16)
        engine = PlainEngine(describe(meta_model, WorkSize(2, work.tokens), dtype))
        weights = dict(model.named_parameters())
        for number, tensor in enumerate(engine.tensors):
            engine.weight(number).copy_(weights[tensor.name].detach())
        Stream(meta_model, engine, 0, unneeded).step(work)
        found.append(engine.gradients)
    assert found[0].keys() == found[1].keys() and len(found[0]) == len(list(model.parameters()))
    assert all(torch.equal(found[0][number], found[1][number]) for number in found[0])


class Layer(nn.Module):
    """Two products whose values the other's gradient needs, one that is read again, one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: torch.Tensor, twice: bool) -> torch.Tensor:
        inner = self.down(self.gate(hidden) * self.up(hidden))
        return hidden + self.last(inner.relu_() if twice else inner)


@pytest.mark.parametrize("twice", [True, False])
def test_only_what_nothing_reads_is_left_out(twice: bool) -> None:
    torch.manual_seed(1)
    layers = [Layer(), Layer()]
    found = find_unneeded(layers, [Arguments(None, (twice,), {})] * 2, torch.randn(2, 5, 8))
    assert found == {"last"}
