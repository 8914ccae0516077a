"""spillway.subspace with the projectors of the LSP paper: against PyTorch's descent, resume, checks, refusals."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from spillway import _engine, subspace
from spillway.errors import InputError
from test_subspace import loss_of, network, train

ROWS, COLUMNS, RANK, NONZEROS = 40, 48, 12, 4
PUBLISHED: dict[str, Any] = {"projectors": "published"}


def matrix(threshold: float = 0.9, penalty: float = 0.0) -> _engine.PublishedMatrix:
    return _engine.PublishedMatrix(ROWS, COLUMNS, RANK, NONZEROS, threshold, penalty, 5, 1)


def unpacked(packed: Any, nonzeros: int = NONZEROS) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and places of a projector, [rows, nonzeros] each."""
    values, places = torch.as_tensor(packed).double().view(2, -1, nonzeros)
    return values, places.long()


def dense(values: torch.Tensor, places: torch.Tensor, rank: int = RANK) -> torch.Tensor:
    return torch.zeros(len(values), rank, dtype=torch.float64).scatter(1, places, values)


def missed(p: torch.Tensor, q: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return (p @ (p.T @ gradient @ q) @ q.T - gradient).norm() / gradient.norm()


def gradient_like(seed: int) -> torch.Tensor:
    """Two directions in noise."""
    drawn = torch.Generator().manual_seed(seed)
    strong = torch.randn(ROWS, 2, generator=drawn) @ torch.randn(2, COLUMNS, generator=drawn)
    return strong + torch.randn(ROWS, COLUMNS, generator=drawn)


@pytest.mark.parametrize("penalty", [0.0, 0.02])
def test_values_are_those_of_adamw_on_the_papers_loss(penalty: float) -> None:
    """In double, from the same values at the same places."""
    gradient = gradient_like(1)
    drawn, learned = matrix(penalty=penalty), matrix(penalty=penalty)
    drawn.refit(np.zeros(ROWS * COLUMNS, np.float32))  # nothing is learned from it
    learned.refit(gradient.flatten().numpy())
    sides = [unpacked(drawn.values(side)) for side in (0, 1)]
    values = [side[0].clone().requires_grad_() for side in sides]
    optimizer = torch.optim.AdamW(values, lr=0.1)  # decay 0.01
    for _ in range(100):
        optimizer.zero_grad()
        p, q = (dense(value, places) for value, (_, places) in zip(values, sides, strict=True))
        loss = missed(p, q, gradient.double()) + penalty * sum(value.norm() for value in values)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    p, q = (dense(value.detach(), places) for value, (_, places) in zip(values, sides, strict=True))
    expected = float(missed(p, q, gradient.double()))
    assert learned.error == pytest.approx(expected, rel=1e-4)
    assert learned.error < 0.9 < float(missed(*(dense(*side) for side in sides), gradient.double()))
    for value, side in zip(values, (0, 1), strict=True):
        found, places = unpacked(learned.values(side))
        assert torch.equal(places, sides[side][1])
        assert float((found - value.detach()).abs().median()) < 1e-4 * float(found.abs().median())


def test_gradients_are_those_through_the_projectors() -> None:
    model, plain = network(), network()
    optimizer = subspace.AdamW(model, modules="^0$", **PUBLISHED)
    loss_of(model, 5).backward()
    loss_of(plain, 5).backward()
    state, gradient = optimizer.state_dict()["state"][0], plain[0].weight.grad.double()
    (inside,) = optimizer.parameters()
    p, q = (dense(*unpacked(state[name]), inside.shape[0]) for name in ("p", "q"))
    assert ((p != 0).sum(1) == NONZEROS).all() and len({tuple(row.nonzero().flatten().tolist()) for row in p}) > 20
    torch.testing.assert_close(inside.grad.double(), p.T @ gradient @ q, rtol=1e-4, atol=1e-6)
    assert optimizer.errors()["0"] == pytest.approx(float(missed(p, q, gradient)), rel=1e-4)


def test_places_and_values_are_a_function_of_the_seed() -> None:
    found = []
    for seed in (1, 1, 2):
        model = network()
        optimizer = subspace.AdamW(model, seed=seed, **PUBLISHED)
        losses = train(model, optimizer, range(3))
        found.append((losses, optimizer.state_dict()["state"][0]["p"].tolist()))
    assert found[0] == found[1] and found[0][1] != found[2][1]


def test_projectors_are_learned_again_beyond_the_threshold_alone() -> None:
    model = network()
    optimizer = subspace.AdamW(model, lr=1e-3, check_every=5, threshold=0.1, **PUBLISHED)
    train(model, optimizer, range(5))
    assert set(optimizer.fits().values()) == {1}
    train(model, optimizer, range(5, 12))
    assert set(optimizer.fits().values()) == {3}
    lasting = network()
    optimizer = subspace.AdamW(lasting, lr=1e-3, check_every=5, threshold=10.0, **PUBLISHED)
    train(lasting, optimizer, range(12))
    assert set(optimizer.fits().values()) == {1} and all(error > 0 for error in optimizer.errors().values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_learns(dtype: torch.dtype) -> None:
    model = network(dtype)
    losses = train(model, subspace.AdamW(model, lr=1e-2, **PUBLISHED), [0] * 60, parts=2)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goes_on_bit_by_bit_from_a_saved_state(dtype: torch.dtype) -> None:
    options = {"lr": 1e-2, "check_every": 3, "threshold": 0.1, **PUBLISHED}  # learned again on both sides
    whole = network(dtype)
    expected = train(whole, subspace.AdamW(whole, **options), range(12))
    first = network(dtype)
    optimizer = subspace.AdamW(first, **options)
    found = train(first, optimizer, range(7))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    second = network(dtype, seed=9)
    second.load_state_dict(saved["model"])
    again = subspace.AdamW(second, **options)
    again.load_state_dict(saved["optimizer"])
    assert again.fits() == optimizer.fits() and again.errors() == optimizer.errors()
    found += train(second, again, range(7, 12))
    assert found == expected
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_refusals_name_what_is_wrong() -> None:
    model = network()
    with pytest.raises(InputError, match="projectors is 'learned'"):
        subspace.AdamW(model, projectors="learned")
    with pytest.raises(InputError, match="rotate_every"):
        subspace.AdamW(model, rotate_every=20, **PUBLISHED)
    for penalty, more in ((0.1, {}), (-1.0, PUBLISHED)):
        with pytest.raises(InputError, match="penalty"):
            subspace.AdamW(model, penalty=penalty, **more)
    with pytest.raises(InputError, match=r"^0: .*lsp_rank 44.*40"):
        subspace.AdamW(model, rank=44, **PUBLISHED)
    assert all(p.requires_grad for p in model.parameters())
    optimizer = subspace.AdamW(model, **PUBLISHED)
    with pytest.raises(InputError, match="projectors"):
        optimizer.load_state_dict(subspace.AdamW(network()).state_dict())
    (loss_of(model, 1) * float("inf")).backward()
    with pytest.raises(InputError, match="not finite"):
        optimizer.step()
