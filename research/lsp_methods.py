"""Ways to train the matrices of a model's layers with less state than AdamW's; research/lsp_training.py compares them.

Everything else of the model (embedding, head, norms) trains in full beside them, at a rate of its own. `share`: d as a
share of a matrix's smaller side; what a subspace of d x d then keeps beside the weight is what each may keep.

    full       AdamW (`joint`: with one rate for all of the model)
    ours       spillway.subspace.AdamW, as it is by default: projectors are learned again where they miss too much
    ours-16    the same with 16 values in a row of a projector
    rotating   `ours`, all of them learned again every ROTATION steps, moments carried over
    anew       `ours` with rotate_every: every ROTATION steps, the matrices in turn, moments begin anew
    anew-16    both
    published  LSP (Chen et al., arXiv 2406.10181) as the paper's code does it: r values of a row at random positions,
               one pair of projectors for all matrices of a shape, the first period random; each period new positions,
               values learned by gradient descent; moments zeroed while the count of steps runs on
    scattered  `ours` with projectors="published": the paper's own algorithm, a pair for each matrix, learned from the
               first gradient on, checked every period, moments carried over
    lora       Hu et al. (arXiv 2106.09685), by PEFT
    galore     Zhao et al. (arXiv 2403.03507): the shorter side onto the leading singular vectors, new ones each period
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPSILON, NONZEROS = (0.9, 0.999), 1e-8, 4
LEARNING_STEPS, ROTATION = 60, 20
Matrices = dict[str, Tensor]


@dataclass
class Setting:
    rate: float  # of the matrices
    others: float  # of all else
    share: float = 0.5
    period: int = 50  # steps between two fits of `published` and `galore`
    seed: int = 0


class Trained:
    """A model and how its matrices are updated. `parameters`: whose gradients are clipped together."""

    def __init__(self, model: nn.Module, matrices: Matrices, others: list[nn.Parameter], setting: Setting) -> None:
        self.model, self.matrices, self.setting = model, matrices, setting
        self.parameters = [*matrices.values(), *others]
        self.optimizers: list[tuple[float, Any]] = []
        self.add(torch.optim.AdamW(others, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0), setting.others)
        self.count = 0

    def add(self, optimizer: Any, rate: float) -> None:
        self.optimizers.append((rate, optimizer))

    def step(self, factor: float) -> None:
        """`factor`: what the schedule leaves of the rates."""
        self.count += 1
        for rate, optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
        self.update(self.setting.rate * factor)
        for parameter in self.parameters:
            parameter.grad = None

    def update(self, rate: float) -> None:
        """Of the matrices, where no optimizer of PyTorch's kind does it."""


def memory_of(shape: tuple[int, ...], share: float) -> int:
    """fp32 numbers that a subspace keeps beside a weight: two moments, and the projectors' values."""
    d = rank_of(shape, share)
    return 2 * d * d + NONZEROS * sum(shape)


def rank_of(shape: tuple[int, ...], share: float) -> int:
    return int(min(shape) * share) // NONZEROS * NONZEROS


# ---- ours, LoRA


def ours(trained: Trained, **options: Any) -> None:
    import spillway.subspace

    setting = trained.setting
    # One optimizer for each rank: matrices of different sides have different ones.
    by_rank: dict[int, list[str]] = {}
    for name, weight in trained.matrices.items():
        rank = rank_of(tuple(weight.shape), setting.share)
        by_rank.setdefault(rank, []).append(name.removesuffix(".weight"))
    trained.parameters = [it for it in trained.parameters if not any(it is w for w in trained.matrices.values())]
    for rank, names in by_rank.items():
        pattern = "|".join(f"^{name.replace('.', '[.]')}$" for name in names)
        optimizer = spillway.subspace.AdamW(
            trained.model, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0, modules=pattern, rank=rank,
            seed=setting.seed, **{"nonzeros": NONZEROS, **options},
        )  # fmt: skip
        trained.add(optimizer, setting.rate)
        trained.parameters += list(optimizer.parameters())


def rotating(trained: Trained) -> None:
    ours(trained, check_every=ROTATION, threshold=1e-9)


def ours_16(trained: Trained) -> None:
    ours(trained, nonzeros=16)


def anew(trained: Trained) -> None:
    ours(trained, rotate_every=ROTATION)


def anew_16(trained: Trained) -> None:
    ours(trained, rotate_every=ROTATION, nonzeros=16)


def scattered_pairs(trained: Trained) -> None:
    ours(trained, projectors="published", check_every=trained.setting.period)


def lora(trained: Trained) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    ranks = {}
    for name, weight in trained.matrices.items():
        weights_and_moments = 3 * sum(weight.shape)
        rank = memory_of(tuple(weight.shape), trained.setting.share) // weights_and_moments
        ranks[name.removesuffix(".weight")] = max(1, rank)
    others = trained.parameters[len(trained.matrices) :]
    config = LoraConfig(
        r=8, lora_alpha=8, target_modules=list(ranks), rank_pattern=ranks, alpha_pattern=ranks, lora_dropout=0.0
    )
    torch.manual_seed(trained.setting.seed)
    inject_adapter_in_model(config, trained.model)
    for parameter in others:
        parameter.requires_grad_(True)
    adapters = [weight for name, weight in trained.model.named_parameters() if "lora_" in name]
    trained.add(torch.optim.AdamW(adapters, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0), trained.setting.rate)
    trained.parameters = [*others, *adapters]


# ---- those that form the whole gradient


class Moments:
    """Adam's direction; the count of steps is the caller's."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second = torch.zeros(shape), torch.zeros(shape)

    def zero(self) -> None:
        self.first.zero_(), self.second.zero_()

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        root = (self.second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
        return self.first / (1 - BETAS[0] ** step) / root


class Full(Trained):
    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        matrices = list(self.matrices.values())
        self.add(torch.optim.AdamW(matrices, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0), self.setting.rate)


class Galore(Trained):
    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.basis: dict[str, Tensor] = {}
        self.moments = {}
        for name, weight in self.matrices.items():
            shape = tuple(weight.shape)
            rank = memory_of(shape, self.setting.share) // (2 * max(shape) + min(shape))
            self.moments[name] = Moments((max(1, rank), max(shape)))

    @torch.no_grad()
    def update(self, rate: float) -> None:
        for name, weight in self.matrices.items():
            assert weight.grad is not None
            flat = weight.shape[0] > weight.shape[1]
            gradient = weight.grad.T if flat else weight.grad
            if (self.count - 1) % self.setting.period == 0:
                rank = self.moments[name].first.shape[0]
                self.basis[name] = torch.linalg.svd(gradient, full_matrices=False)[0][:, :rank]
            basis = self.basis[name]
            change = basis @ self.moments[name].direction(basis.T @ gradient, self.count)
            weight.sub_(rate * (change.T if flat else change))


def scattered(rows: int, d: int, generator: torch.Generator) -> Tensor:
    """NONZEROS values of variance 1 / NONZEROS at random places of each row."""
    places = torch.rand(rows, d, generator=generator).topk(NONZEROS, dim=1).indices
    values = torch.randn(rows, NONZEROS, generator=generator) / math.sqrt(NONZEROS)
    return torch.zeros(rows, d).scatter_(1, places, values)


def learned(p: Tensor, q: Tensor, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The values at given places, by descent on the estimate's error over the gradients of a shape, one in turn."""
    places, targets = (p != 0, q != 0), [it / it.norm() for it in gradients]
    values = [(0.5 * it).clone().requires_grad_() for it in (p, q)]
    optimizer = torch.optim.Adam(values, lr=0.02)
    with torch.enable_grad():
        for step in range(LEARNING_STEPS):
            target = targets[step % len(targets)]
            optimizer.zero_grad()
            a, b = (value * place for value, place in zip(values, places, strict=True))
            (a @ (a.T @ target @ b) @ b.T - target).square().sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    a, b = (value.detach() * place for value, place in zip(values, places, strict=True))
    return a, b


class Published(Trained):
    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.generator = torch.Generator().manual_seed(self.setting.seed)
        self.by_shape: dict[tuple[int, ...], list[str]] = {}
        self.pairs: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self.moments = {}
        for name, weight in self.matrices.items():
            shape = tuple(weight.shape)
            self.by_shape.setdefault(shape, []).append(name)
            self.moments[name] = Moments((rank_of(shape, self.setting.share),) * 2)

    def fit(self) -> None:
        for shape, names in self.by_shape.items():
            d = rank_of(shape, self.setting.share)
            pair = scattered(shape[0], d, self.generator), scattered(shape[1], d, self.generator)
            if self.count > 1:
                gradients = [self.matrices[name].grad for name in names]
                pair = learned(*pair, [it for it in gradients if it is not None])
            self.pairs[shape] = pair
            for name in names:
                self.moments[name].zero()

    @torch.no_grad()
    def update(self, rate: float) -> None:
        if (self.count - 1) % self.setting.period == 0:
            self.fit()
        for name, weight in self.matrices.items():
            assert weight.grad is not None
            p, q = self.pairs[tuple(weight.shape)]
            inside = p.T @ weight.grad @ q
            weight.sub_(rate * (p @ self.moments[name].direction(inside, self.count) @ q.T))


def arranged(change: Callable[[Trained], None]) -> Callable[..., Trained]:
    def make(*words: Any) -> Trained:
        trained = Trained(*words)
        change(trained)
        return trained

    return make


METHODS: dict[str, Callable[..., Trained]] = {
    "joint": Full,
    "full": Full,
    "ours": arranged(ours),
    "ours-16": arranged(ours_16),
    "rotating": arranged(rotating),
    "anew": arranged(anew),
    "anew-16": arranged(anew_16),
    "published": Published,
    "scattered": arranged(scattered_pairs),
    "lora": arranged(lora),
    "galore": Galore,
}


def trained_by(method: str, model: nn.Module, setting: Setting) -> Trained:
    def parts() -> Iterator[tuple[str, nn.Parameter, bool]]:
        for name, parameter in model.named_parameters():
            yield name, parameter, parameter.dim() == 2 and ".layers." in name

    matrices = {name: parameter for name, parameter, inside in parts() if inside}
    others = [parameter for _, parameter, inside in parts() if not inside]
    return METHODS[method](model, matrices, others, setting)
