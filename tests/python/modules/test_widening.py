"""spillway.optim.widen: bf16 parameters of a plain loop, multiplied in fp32."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import test_optim
from hf_models import random_ids, tiny_config, tiny_model
from spillway import optim
from spillway.errors import InputError
from spillway.machine import products
from spillway.machine.products import Products

STEPS = 30


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    ids = random_ids(2, 12, step)
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def train(model: torch.nn.Module, **more: Any) -> list[float]:
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, **more)
    return test_optim.train(model, optimizer, range(STEPS), loss_of)


def llama(tied: bool) -> PreTrainedModel:
    return tiny_model(tiny_config("llama", tied), torch.bfloat16)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gemma3_text"])
def test_loss_and_gradients_are_those_of_fp32_parameters(kind: str, tied: bool) -> None:
    more = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
    model = tiny_model(tiny_config(kind, tied, **more), torch.bfloat16)
    wide = copy.deepcopy(model).float()
    names = list(model.state_dict())
    assert optim.widen(model, "fp32").compute_dtype == "fp32"
    loss, exact = loss_of(model, 0), loss_of(wide, 0)
    assert loss.dtype == torch.float32 and loss.item() == exact.item()
    loss.backward()
    exact.backward()
    shared = wide.get_input_embeddings().weight if tied else None
    for ours, theirs in zip(model.parameters(), wide.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
            continue
        assert ours.dtype == torch.bfloat16 and ours.grad is not None and ours.grad.dtype == torch.bfloat16
        if theirs is shared:  # rounded for each of its uses
            assert (ours.grad.float() - theirs.grad).abs().max() < 2**-7 * theirs.grad.abs().max()
        else:
            assert torch.equal(ours.grad, theirs.grad.bfloat16())
    assert list(model.state_dict()) == names and {it.dtype for it in model.state_dict().values()} == {torch.bfloat16}


def test_places_and_checkpointing_change_no_bit(tmp_path: Path) -> None:
    curves = []
    for checkpointing, more in ((False, {}), (True, {"tier": f"path:{tmp_path}", "staging": 1 << 20})):
        model = llama(tied=True)
        optim.widen(model, "fp32")
        if checkpointing:
            model.gradient_checkpointing_enable()
        curves.append((train(model, **more), {name: it.clone() for name, it in model.state_dict().items()}))
    (losses, weights), (again, others) = curves
    assert losses == again and all(torch.equal(weights[name], others[name]) for name in weights)


def test_losses_are_closer_to_fp32_than_those_of_bf16() -> None:
    exact = train(llama(tied=False).float())
    far = []
    for computes in ("bf16", "fp32"):
        model = llama(tied=False)
        optim.widen(model, computes)
        far.append(sum(abs(ours - theirs) for ours, theirs in zip(train(model), exact, strict=True)))
    assert far[1] < far[0]


def test_what_was_widened_is_so_no_longer() -> None:
    model = llama(tied=True)
    before = loss_of(model, 0).item()
    widened = optim.widen(model, "fp32")
    assert loss_of(model, 0).item() != before
    with pytest.raises(TypeError):
        model(input_ids="these")
    assert all(it.dtype == torch.bfloat16 for module in model.modules() for it in vars(module).values()
               if isinstance(it, torch.Tensor))  # fmt: skip
    widened.remove()
    assert loss_of(model, 0).item() == before


def test_auto_takes_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for narrow, expected in ((2e9, "fp32"), (90e9, "bf16")):
        monkeypatch.setattr(products, "measured", lambda kept, narrow=narrow: Products(narrow, 60e9))
        widened = optim.widen(llama(tied=True))
        assert widened.compute_dtype == expected and "GFLOP/s in bf16 and 60 in fp32" in widened.why
    assert optim.widen(llama(tied=True).float()).compute_dtype == "fp32"


def test_what_is_refused() -> None:
    with pytest.raises(
        InputError, match="compute_dtype: got 'fp16' for parameters of bf16, expects auto, fp32 or bf16"
    ):
        optim.widen(llama(tied=True), "fp16")
    model = llama(tied=True)
    model.model.norm.half()
    with pytest.raises(InputError, match="parameters of bf16 and fp16"):
        optim.widen(model)
