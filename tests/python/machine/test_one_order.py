"""Kernels in one order: what PyTorch is asked for, and what becomes of a process that multiplied before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from spillway.machine import one_order
from spillway.machine.one_order import CUBLAS, agree_with_cublas

CPU = torch.device("cpu")
STRICT, LENIENT, FREE = (True, False), (True, True), (False, False)


def mode() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 0)
    monkeypatch.delenv(CUBLAS, raising=False)
    agree_with_cublas.cache_clear()
    yield
    agree_with_cublas.cache_clear()
    assert mode() == FREE


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's answer to products in a process that multiplied without the variable."""
    product = torch.mm

    def refuse(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if mode() == STRICT:
            raise RuntimeError(f"Deterministic behavior was enabled ... you must set ... {CUBLAS}=:4096:8")
        return product(one, other)

    monkeypatch.setattr(torch, "mm", refuse)


def test_pytorch_is_asked_for_one_order_and_left_as_it_was() -> None:
    of_memory = torch.utils.deterministic
    before = of_memory.fill_uninitialized_memory
    with one_order.one_order(CPU):
        assert mode() == STRICT and not of_memory.fill_uninitialized_memory
    assert of_memory.fill_uninitialized_memory == before


@pytest.mark.parametrize("given", ["", ":16:8"])
def test_cublas_is_spoken_of_at_one_product_alone(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """A variable of the user's stays."""
    seen: list[str | None] = []
    product = torch.mm

    def looked(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen.append(os.environ.get(CUBLAS))
        return product(one, other)

    monkeypatch.setattr(torch, "mm", looked)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: seen.append(os.environ.get(CUBLAS)))
    if given:
        monkeypatch.setenv(CUBLAS, given)
    assert agree_with_cublas(CPU)
    assert (seen, os.environ.get(CUBLAS)) == (([given], given) if given else ([None, ":4096:8"], None))


@pytest.mark.parametrize("late", ["", ":4096:8"])
def test_a_process_that_multiplied_before_goes_on(monkeypatch: pytest.MonkeyPatch, multiplied: None, late: str) -> None:
    """With the variable, which it has set too late, or without."""
    if late:
        monkeypatch.setenv(CUBLAS, late)
    with one_order.one_order(CPU):
        assert not agree_with_cublas(CPU) and mode() == LENIENT
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert os.environ.get(CUBLAS, "") == late


def test_another_refusal_of_a_product_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "mm", refuse)
    with pytest.raises(RuntimeError, match="out of memory"), one_order.one_order(CPU):
        pass
    assert CUBLAS not in os.environ


class Attention(torch.autograd.Function):
    """A kernel that notes how it is asked for."""

    modes: list[tuple[bool, bool]] = []

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        Attention.modes.append(mode())
        return query * key * value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        Attention.modes.append(mode())
        return gradient, gradient, gradient


def test_attention_alone_is_asked_for_one_order_there(monkeypatch: pytest.MonkeyPatch, multiplied: None) -> None:
    """Two layers, each a product, attention and a gate beside it."""
    products: list[tuple[bool, bool]] = []
    Attention.modes = []
    monkeypatch.setattr(functional, "scaled_dot_product_attention", Attention.apply)
    weights = [torch.rand(3, 3, requires_grad=True) for _ in range(2)]
    for weight in weights:
        weight.register_hook(lambda _: products.append(mode()))
    with one_order.one_order(CPU):
        hidden = torch.rand(3, 3)
        for weight in weights:
            states = torch.mm(hidden, weight)
            attended = functional.scaled_dot_product_attention(states, states.sin(), states.cos())
            hidden = attended * torch.mm(hidden, weight).sigmoid()
        hidden.sum().backward()
    assert Attention.modes == [STRICT] * 4
    assert products == [LENIENT] * 2


def test_attention_made_of_products_is_let_through(monkeypatch: pytest.MonkeyPatch, multiplied: None) -> None:
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda query, key, value: torch.mm(torch.mm(query, key.T), value)
    )
    states = torch.rand(3, 3, requires_grad=True)
    with one_order.one_order(CPU):
        functional.scaled_dot_product_attention(states, states, states).sum().backward()
    assert states.grad is not None
