"""spillway.subspace in a plain loop: against dense matrices, accumulation, clipping, resume, refits, refusals."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from spillway import subspace
from spillway.errors import InputError


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(48, 40), nn.Tanh(), nn.Linear(40, 56, bias=False), nn.Linear(56, 10)).to(dtype)


def loss_of(model: nn.Module, step: int, rows: slice = slice(None)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(24, 48, generator=generator)[rows].to(next(model.parameters()).dtype)
    y = (x[:, :10].float() * 2).argmax(1)
    return nn.functional.cross_entropy(model(x).float(), y, reduction="sum") / 24


def train(model: nn.Module, optimizer: Any, steps: Iterable[int], parts: int = 1) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            loss = loss_of(model, step, slice(part * 24 // parts, (part + 1) * 24 // parts))
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def dense(values: torch.Tensor, rows: int, rank: int, nonzeros: int) -> torch.Tensor:
    """A projector [rows, rank] from what state_dict() holds: value s of row i at s * (rows + 16) + i."""
    out = torch.zeros(rows, rank, dtype=torch.float64)
    by_value, groups = values.double().view(nonzeros, rows + 16), rank // nonzeros
    for group in range(groups):
        mine = slice(rows * group // groups, rows * (group + 1) // groups)
        out[mine, group * nonzeros : (group + 1) * nonzeros] = by_value[:, mine].T
    return out


def test_gradients_are_those_of_the_subspace_and_all_others_pytorchs() -> None:
    model, plain = network(), network()
    optimizer = subspace.AdamW(model, modules="^0$|^2$")
    train(model, optimizer, range(1))
    plain.load_state_dict(model.state_dict())
    optimizer.zero_grad()
    model.zero_grad()
    loss_of(model, 5).backward()
    loss_of(plain, 5).backward()
    assert torch.allclose(model[0].bias.grad, plain[0].bias.grad, atol=1e-6)
    assert torch.allclose(model[3].weight.grad, plain[3].weight.grad, atol=1e-6)
    assert model[0].weight.grad is None
    assert not model[0].weight.requires_grad
    for index, inside in zip((0, 2), optimizer.parameters(), strict=True):
        state, gradient = optimizer.state_dict()["state"][index // 2], plain[index].weight.grad.double()
        (m, n), d = gradient.shape, inside.shape[0]
        p, q = dense(state["p"], m, d, 4), dense(state["q"], n, d, 4)
        assert torch.allclose(p.T @ p, torch.eye(d).double(), atol=1e-5)
        assert torch.allclose(inside.grad.double(), p.T @ gradient @ q, atol=1e-6)
        error = (p @ (p.T @ gradient @ q) @ q.T - gradient).norm() / gradient.norm()
        assert 0 < error < 1


def test_micro_batches_add_up_in_the_subspace() -> None:
    """The same gradient in parts: the projectors are refitted from the first, so only later steps are compared."""
    model = network()
    optimizer = subspace.AdamW(model, modules="0|2", lr=0.0, weight_decay=0.0)
    train(model, optimizer, range(1))
    found = []
    for parts in (1, 4):
        optimizer.zero_grad()
        for part in range(parts):
            loss_of(model, 3, slice(part * 24 // parts, (part + 1) * 24 // parts)).backward()
        found.append([inside.grad.clone() for inside in optimizer.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_learns(dtype: torch.dtype) -> None:
    """The same rows by heart, from projectors that are learned once."""
    model = network(dtype)
    losses = train(model, subspace.AdamW(model, lr=1e-2), [0] * 60, parts=2)
    assert losses[-1] < 0.3 * losses[0]


def test_a_bf16_weight_moves_by_less_than_it_can_show() -> None:
    model = network(torch.bfloat16)
    optimizer = subspace.AdamW(model, lr=1e-6, weight_decay=0.0)
    before = model[0].weight.clone()
    train(model, optimizer, range(3))
    assert (before != model[0].weight).float().mean() < 0.05  # but for weights around 0
    assert (optimizer.state_dict()["state"][0]["residual"] != 0).float().mean() > 0.9


def test_clipping_counts_what_is_applied() -> None:
    model = network()
    optimizer = subspace.AdamW(model)
    loss_of(model, 1).backward()
    every = list(optimizer.parameters())
    norm = torch.stack([inside.grad.norm() for inside in every]).norm()
    assert torch.nn.utils.clip_grad_norm_(every, 1e-3) == pytest.approx(norm.item())
    error = {name: 0.0 for name in optimizer.errors()}
    assert optimizer.errors() == error
    optimizer.step()
    assert all(0 <= error < 1 for error in optimizer.errors().values())  # as if nothing had been clipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goes_on_bit_by_bit_from_a_saved_state(dtype: torch.dtype) -> None:
    options = {"lr": 1e-2, "check_every": 3, "threshold": 0.01}  # so that projectors are refitted on both sides
    whole = network(dtype)
    expected = train(whole, subspace.AdamW(whole, **options), range(12))
    first = network(dtype)
    optimizer = subspace.AdamW(first, **options)
    found = train(first, optimizer, range(7))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    second = network(dtype, seed=9)
    file.seek(0)
    saved = torch.load(file)
    second.load_state_dict(saved["model"])
    again = subspace.AdamW(second, **options)
    again.load_state_dict(saved["optimizer"])
    assert again.fits() == optimizer.fits()
    assert again.errors() == optimizer.errors()
    found += train(second, again, range(7, 12))
    assert found == expected
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_steps_are_those_of_the_paper_with_the_same_positions_and_values() -> None:
    """As the paper's code computes them (arXiv 2406.10181, algorithm 1), in double and with dense projectors: the input
    is compressed on its way forward, the output gradient on its way back, their product is S; Adam works on S, and the
    expanded delta goes onto the weight."""
    rate, beta1, beta2, epsilon = 1e-2, 0.9, 0.999, 1e-8
    model = network()
    optimizer = subspace.AdamW(model, lr=rate, betas=(beta1, beta2), eps=epsilon, weight_decay=0, modules="^2$")
    loss_of(model, 0).backward()  # learns the projectors
    optimizer.zero_grad()
    state, layer = optimizer.state_dict()["state"][0], model[2]
    (rows, columns), d = layer.weight.shape, optimizer._held[next(optimizer.parameters())].matrix.rank
    p, q = dense(state["p"], rows, d, 4), dense(state["q"], columns, d, 4)
    kept: dict[str, torch.Tensor] = {}
    layer.register_forward_pre_hook(lambda _, inputs: kept.update(compressed=q.T @ inputs[0].double().T))
    layer.register_full_backward_hook(lambda _, __, outer: kept.update(gradient=outer[0].double() @ p))
    weight, first, second = layer.weight.detach().double(), torch.zeros(d, d).double(), torch.zeros(d, d).double()
    for step in range(1, 4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        s = (kept["compressed"] @ kept["gradient"]).T
        first = beta1 * first + (1 - beta1) * s
        second = beta2 * second + (1 - beta2) * s.square()
        delta = -rate * (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
        # Ours means a rate to be that of the whole weight; the paper's is that of the delta.
        weight += (rows * columns) ** 0.5 / d * (p @ delta @ q.T)
        change = (weight - layer.weight.double()).norm() / (rate * d)
        assert change < 1e-4, f"step {step}: {change}"


def test_projectors_are_learned_again_when_they_miss_too_much() -> None:
    model = network()
    optimizer = subspace.AdamW(model, lr=1e-3, check_every=5, threshold=0.01)
    train(model, optimizer, range(11))
    assert min(optimizer.fits().values()) >= 2  # a small weight's estimate is noisy, and may pass a check
    lasting = subspace.AdamW(network(), lr=1e-3, check_every=5, threshold=1.0)
    assert set(lasting.fits().values()) == {0}


def test_a_weight_that_was_written_to_is_its_own_master() -> None:
    model = network(torch.bfloat16)
    optimizer = subspace.AdamW(model, lr=1e-6, weight_decay=0.0)
    train(model, optimizer, range(2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    train(model, optimizer, range(2, 3))
    assert torch.equal(model[0].weight, torch.ones_like(model[0].weight))  # stale remainders would have moved it


def test_refusals_name_what_is_wrong_and_change_nothing() -> None:
    model = network()
    with pytest.raises(InputError, match="modules='nothing'"):
        subspace.AdamW(model, modules="nothing")
    with pytest.raises(InputError, match=r"^0: .*lsp_rank 44.*40"):
        subspace.AdamW(model, rank=44)
    with pytest.raises(InputError, match="nonzeros"):
        subspace.AdamW(model, rank=10, nonzeros=4)
    with pytest.raises(InputError, match="check_every 0"):
        subspace.AdamW(model, check_every=0)
    tied = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(InputError, match=r"0.weight and 1.weight are one tensor"):
        subspace.AdamW(tied)
    assert all(p.requires_grad for p in model.parameters())
    optimizer = subspace.AdamW(model)
    with pytest.raises(InputError, match="rank and nonzeros"):
        optimizer.load_state_dict(subspace.AdamW(network(), rank=8).state_dict())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="autocast"):
        model[0](torch.randn(2, 48, dtype=torch.bfloat16))
    loss = loss_of(model, 1) * float("inf")
    loss.backward()
    with pytest.raises(InputError, match="not finite"):
        optimizer.step()
