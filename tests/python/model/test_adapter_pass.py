"""The pass of a linear layer with an adapter, beside PEFT's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from needs import package
from spillway.model.adapters.adapter_pass import AdaptedLinear, AdapterForward, MagnitudeForward, replace_forwards
from spillway.model.layers.linear_pass import replace_linears

peft = package("peft", "LoRA is PEFT's")
NAME = "default"
ROWS, COLUMNS, TOKENS = 24, 16, (3, 5)


class Outer(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(COLUMNS, ROWS, bias=bias)

    def forward(self, hidden: torch.Tensor) -> Any:
        return self.inner(hidden)


def adapted(dtype: torch.dtype = torch.float32, bias: bool = False, dropout: float = 0.0, **asked: Any) -> Any:
    """A PEFT `Linear` whose adapter has values in both of its matrices."""
    torch.manual_seed(3)
    options = {"r": 4, "lora_alpha": 8, "lora_dropout": dropout, "target_modules": ["inner"], **asked}
    module = peft.get_peft_model(Outer(bias).to(dtype), peft.LoraConfig(**options)).base_model.model.inner
    nn.init.normal_(module.lora_B[NAME].weight, std=0.1)
    return module.to(dtype).train()


def outcome(module: Any, forward: Any, hidden: torch.Tensor, seed: int = 11) -> dict[str, torch.Tensor]:
    """The output, and the gradients of the input and of the adapter."""
    hidden = hidden.detach().requires_grad_()
    torch.manual_seed(seed)
    out = forward(hidden)
    module.zero_grad()
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))
    assert hidden.grad is not None and module.base_layer.weight.grad is None
    gradients = {name: getattr(module, name)[NAME].weight.grad.clone() for name in ("lora_A", "lora_B")}
    return {"output": out.detach(), "input": hidden.grad, **gradients}


def hidden_of(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*TOKENS, COLUMNS, generator=torch.Generator().manual_seed(7)).to(dtype)


def own_forward(module: Any) -> Any:
    return lambda hidden: type(module).forward(module, hidden)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("more", [{}, {"lora_alpha": 7}, {"use_rslora": True}])
def test_values_and_gradients_are_those_of_peft(bias: bool, dropout: float, more: dict[str, Any]) -> None:
    module = adapted(bias=bias, dropout=dropout, **more)
    own = outcome(module, own_forward(module), hidden_of())
    replaced = outcome(module, AdapterForward(module, NAME), hidden_of())
    for name, value in own.items():
        torch.testing.assert_close(replaced[name], value, rtol=2e-6, atol=2e-6, msg=name)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_magnitudes_are_trained_as_peft_does(bias: bool, dropout: float) -> None:
    module = adapted(bias=bias, dropout=dropout, use_dora=True)
    values = []
    for forward in (own_forward(module), MagnitudeForward(module, NAME)):
        values.append(outcome(module, forward, hidden_of()))
        values[-1]["magnitude"] = module.lora_magnitude_vector[NAME].weight.grad.clone()
    for name, value in values[0].items():
        torch.testing.assert_close(values[1][name], value, rtol=4e-6, atol=4e-6, msg=name)


def test_bf16_is_no_farther_from_fp64_than_peft() -> None:
    module, exact = adapted(torch.bfloat16), adapted(torch.float64)
    exact.load_state_dict(module.state_dict())
    hidden = hidden_of(torch.bfloat16)
    truth = outcome(exact, own_forward(exact), hidden.double())
    own, replaced = (
        outcome(module, forward, hidden) for forward in (own_forward(module), AdapterForward(module, NAME))
    )

    def error(values: dict[str, torch.Tensor], name: str) -> float:
        return float((values[name].double() - truth[name]).square().mean())

    for name in truth:  # the same roundings in another order
        assert error(replaced, name) <= 1.25 * error(own, name), name


def test_layers_of_another_form_keep_peft_s_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("the pass of the plain form")

    module = adapted()
    forward = AdapterForward(module, NAME)
    assert torch.isfinite(forward(hidden_of())).all()
    monkeypatch.setattr(AdaptedLinear, "apply", never)
    with pytest.raises(AssertionError, match="plain form"):
        forward(hidden_of())
    module.enable_adapters(False)
    torch.testing.assert_close(forward(hidden_of()), module.base_layer(hidden_of()))
    module.enable_adapters(True)
    module.base_layer.weight.requires_grad_(True)
    assert forward(hidden_of()).requires_grad
    dora = adapted(use_dora=True)
    torch.testing.assert_close(AdapterForward(dora, NAME)(hidden_of()), own_forward(dora)(hidden_of()))


def test_output_that_backward_does_not_need_is_left_out_with_the_same_gradients() -> None:
    module = adapted()
    replace_forwards([module], NAME)
    whole = outcome(module, module, hidden_of())
    with replace_linears([module.base_layer, module.lora_B[NAME]]):
        left_out = outcome(module, module, hidden_of())
    assert float(left_out["output"].abs().max()) == 0
    for name in ("input", "lora_A", "lora_B"):
        assert torch.equal(left_out[name], whole[name]), name
