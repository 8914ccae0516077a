"""spillway.optim in a plain loop: equal to torch.optim where it should be, and what only it can do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from breadth import some
from needs import package
from spillway import optim
from spillway.errors import InputError

FORMATS = ("exact", "bf16", "int8")
LARGE = (1 << 21) + 4097  # more than a chunk, so that with storage a part of the state streams


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 96), torch.nn.Linear(96, 80), torch.nn.Tanh())
    model.append(torch.nn.Linear(80, 50, bias=False))
    return model.to(dtype)


Loss = Callable[[torch.nn.Module, int], torch.Tensor]  # of a model and the step


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(50, (16,), generator=generator)
    return torch.nn.functional.cross_entropy(model(tokens).float(), (tokens * 7 + 3) % 50)


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weights and biases apart, as most loops have it."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    return [
        {"params": decay, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3},
    ]


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, loss_of: Loss = loss_of
) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_equal(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_fp32_gives_the_bits_of_torch() -> None:
    ours, theirs = network(), network()
    pairs = [
        (ours, optim.AdamW(groups_of(ours), lr=1e-2, weight_decay=0.01)),
        (theirs, torch.optim.AdamW(groups_of(theirs), lr=1e-2, weight_decay=0.01, fused=True)),
    ]
    for model, optimizer in pairs:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        for step in range(30):
            train(model, optimizer, range(step, step + 1))
            schedule.step()
    assert_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("Adam", {"weight_decay": 0.01}), ("Adam", {"betas": (0.8, 0.95), "eps": 1e-6}), ("SGD", {"momentum": 0.9}),
     ("SGD", {"momentum": 0.9, "weight_decay": 0.01}), ("AdamW", {"maximize": True})],
)  # fmt: skip
def test_the_others_give_the_bits_of_torch(name: str, arguments: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    train(ours, getattr(optim, name)(ours.parameters(), lr=1e-3, **arguments), range(20))
    train(theirs, getattr(torch.optim, name)(theirs.parameters(), lr=1e-3, fused=True, **arguments), range(20))
    assert_equal(ours, theirs)


def test_lion_follows_its_paper() -> None:
    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    momenta = [torch.zeros_like(w) for w in weights]
    optimizer = optim.Lion(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(10):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for p, w, m in zip(model.parameters(), weights, momenta, strict=True):
            w.mul_(1 - 1e-3 * 0.1).sub_(1e-3 * torch.sign(0.9 * m + 0.1 * p.grad))
            m.mul_(0.99).add_(p.grad, alpha=1 - 0.99)
        optimizer.step()
    for p, w in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_learns(format: str, dtype: torch.dtype) -> None:
    model = network(dtype)
    losses = train(model, optim.AdamW(model.parameters(), lr=1e-2, format=format), range(60))
    exact = network(dtype)
    expected = train(exact, optim.AdamW(exact.parameters(), lr=1e-2), range(60))
    assert losses[-1] < losses[0] / 2
    assert abs(losses[-1] - expected[-1]) < 0.1


def test_a_bf16_parameter_has_an_exact_master() -> None:
    """Steps of a thousandth of a weight, each below bf16's resolution, add up; without a master they vanish."""
    ours = torch.nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
    plain = torch.nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
    master = torch.nn.Parameter(torch.ones(512))
    optimizers = [
        optim.AdamW([ours], lr=1e-3, weight_decay=0),
        torch.optim.AdamW([plain], lr=1e-3, weight_decay=0, fused=True),
        torch.optim.AdamW([master], lr=1e-3, weight_decay=0, fused=True),
    ]
    for _ in range(50):
        for p, optimizer in zip((ours, plain, master), optimizers, strict=True):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert torch.equal(plain, torch.ones(512, dtype=torch.bfloat16))
    torch.testing.assert_close(ours.detach().float(), master.detach(), rtol=2**-8, atol=0)


def test_a_parameter_that_was_written_to_is_its_own_master_again() -> None:
    p = torch.nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
    optimizer = optim.AdamW([p], lr=1e-3, weight_decay=0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["residual"].any()
    with torch.no_grad():
        p.copy_(torch.full_like(p, 3))
    p.grad = torch.zeros_like(p)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert not optimizer.state_dict()["state"][0]["residual"].any()
    assert (p == 3).all()


def large(dtype: torch.dtype) -> tuple[list[torch.nn.Parameter], torch.Generator]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(LARGE,), (7,), (512, 300), (3, LARGE)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes], generator


def update(params: list[torch.nn.Parameter], generator: torch.Generator, optimizer: torch.optim.Optimizer) -> None:
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
    optimizer.step()


@pytest.mark.parametrize("format", some(FORMATS, ["exact", "int8"]))
@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16], [torch.bfloat16]))
def test_where_the_state_lies_changes_nothing(tmp_path: Path, format: str, dtype: torch.dtype) -> None:
    (tmp_path / "other").mkdir()
    results = []
    for tier, threads in (
        ("dram", 1),
        (f"path:{tmp_path}", 2),
        ([f"path:{tmp_path}", f"path:{tmp_path / 'other'}"], 2),
    ):
        params, generator = large(dtype)
        optimizer = optim.AdamW(params, lr=1e-2, format=format, tier=tier, staging="64MiB", threads=threads)
        for _ in range(3):
            update(params, generator, optimizer)
        results.append([*params, *(a for s in optimizer.state_dict()["state"].values() for a in s.values())])
        del optimizer
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], result, strict=True))
    assert not list(tmp_path.glob("**/spillway.volume"))


@pytest.mark.parametrize("format", some(FORMATS, ["exact", "int8"]))
@pytest.mark.parametrize("on_path", some([False, True], [True]))
def test_state_dict_goes_on_bit_by_bit(tmp_path: Path, format: str, on_path: bool) -> None:
    tier = f"path:{tmp_path}" if on_path else "dram"
    params, generator = large(torch.bfloat16)
    optimizer = optim.AdamW(params, lr=1e-2, format=format, tier=tier)
    update(params, generator, optimizer)
    kept = io.BytesIO()
    torch.save({"weights": params, "state": optimizer.state_dict(), "random": generator.get_state()}, kept)
    update(params, generator, optimizer)
    del optimizer

    kept.seek(0)
    saved = torch.load(kept, weights_only=True)
    again = [torch.nn.Parameter(p) for p in saved["weights"]]
    generator.set_state(saved["random"])
    optimizer = optim.AdamW(again, lr=1, format=format, tier=tier)
    optimizer.load_state_dict(saved["state"])
    assert optimizer.param_groups[0]["lr"] == 1e-2
    update(again, generator, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))


@pytest.mark.parametrize("source", [*FORMATS, "torch"])
@pytest.mark.parametrize("target", FORMATS)
def test_moments_are_converted(source: str, target: str) -> None:
    model = network()
    make = torch.optim.AdamW if source == "torch" else lambda params: optim.AdamW(params, format=source)
    first = make(model.parameters())
    train(model, first, range(5))
    second = optim.AdamW(model.parameters(), format=target)
    second.load_state_dict(first.state_dict())
    exact = optim.AdamW(model.parameters())
    exact.load_state_dict(second.state_dict())
    reference = optim.AdamW(model.parameters())
    reference.load_state_dict(first.state_dict())
    for one, other in zip(exact.state_dict()["state"].values(), reference.state_dict()["state"].values(), strict=True):
        assert one["step"] == other["step"] == 5
        for name in ("exp_avg", "exp_avg_sq"):
            error = (one[name] - other[name]).abs().max() / other[name].abs().max()
            assert error <= (0 if target == "exact" else 2**-8 if target == "bf16" else 2**-5), name


def test_frozen_tied_and_late_parameters() -> None:
    model = network()
    model[3].weight = torch.nn.Parameter(model[3].weight[:, :80].detach().clone())
    model[1].weight.requires_grad_(False)
    frozen = model[1].weight.clone()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(3))
    assert torch.equal(model[1].weight, frozen)
    assert len(optimizer.state_dict()["state"]) == 3
    model[1].weight.requires_grad_(True)
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    train(model, optimizer, range(3, 4))
    assert not torch.equal(model[1].weight, frozen)
    assert len(optimizer.state_dict()["state"]) == 4, "what never had a gradient has no state"
    optimizer.zero_grad()
    extra.grad = torch.ones(3)
    optimizer.step()
    assert (extra < 1).all()
    steps = [s["step"].item() for s in optimizer.state_dict()["state"].values()]
    assert sorted(steps) == [1, 1, 4, 4, 4]


def test_a_closure_and_a_gradient_scaler() -> None:
    model, same = network(), network()
    optimizer, plain = optim.AdamW(model.parameters()), optim.AdamW(same.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == train(same, plain, range(1))[0]
    assert_equal(model, same)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(model, 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    train(same, plain, range(1, 2))
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(loss_of(model, 2) * float("inf")).backward()
    scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_parameters_that_are_not_contiguous() -> None:
    storage = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(storage.clone().t()) for _ in range(2))
    assert not ours.is_contiguous()
    for p, make in ((ours, optim.AdamW), (theirs, torch.optim.AdamW)):
        optimizer = make([p], lr=1e-2)
        for step in range(3):
            p.grad = torch.full(p.shape, float(step + 1))
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_accelerate_takes_it() -> None:
    accelerate = package("accelerate", "the optimizer is not prepared by Accelerator")
    model, same = network(), network()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, optim.AdamW(model.parameters(), lr=1e-2))
    train(prepared, optimizer, range(3))
    train(same, optim.AdamW(same.parameters(), lr=1e-2), range(3))
    assert_equal(model, same)


@pytest.fixture
def parameter() -> Iterator[torch.nn.Parameter]:
    p = torch.nn.Parameter(torch.ones(8))
    p.grad = torch.ones(8)
    yield p


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"format": "fp8"}, "known: exact, bf16, int8"), ({"tier": "cxl"}, "known: dram, path:DIRECTORY"),
     ({"tier": "path:/no/such"}, "there is no directory /no/such"), ({"lr": -1}, "lr is -1"),
     ({"betas": (0.9, 1.0)}, "below 1")],
)  # fmt: skip
def test_bad_arguments_are_refused(parameter: torch.nn.Parameter, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        optim.AdamW([parameter], **arguments)


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: torch.ones(4, dtype=torch.float64), "parameter 1 of group 0 is torch.float64"),
     (lambda: torch.ones(4, device="meta"), "parameter 1 of group 0 is on meta"),
     (lambda: torch.ones(0), "no elements")],
)  # fmt: skip
def test_bad_parameters_are_refused(parameter: torch.nn.Parameter, make: Any, words: str) -> None:
    other = torch.nn.Parameter(make())
    other.grad = torch.zeros_like(other)
    with pytest.raises(InputError, match=words):
        optim.AdamW([parameter, other]).step()
    assert (parameter == 1).all()


def test_sparse_gradients_and_late_parameters_on_a_path_are_refused(
    tmp_path: Path, parameter: torch.nn.Parameter
) -> None:
    sparse = torch.nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="sparse"):
        optim.AdamW(sparse.parameters()).step()
    optimizer = optim.AdamW([parameter], tier=f"path:{tmp_path}")
    optimizer.step()
    late = torch.nn.Parameter(torch.ones(2))
    late.grad = torch.ones(2)
    optimizer.add_param_group({"params": [late]})
    with pytest.raises(InputError, match="after the first step"):
        optimizer.step()


def test_state_of_another_model_is_refused(parameter: torch.nn.Parameter) -> None:
    other = torch.nn.Parameter(torch.ones(9))
    other.grad = torch.ones(9)
    source = optim.AdamW([other])
    source.step()
    with pytest.raises(InputError, match="exp_avg has 9 elements, and its parameter 8"):
        optim.AdamW([parameter]).load_state_dict(source.state_dict())
