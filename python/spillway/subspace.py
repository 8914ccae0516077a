"""Linear layers that train in subspaces of their own (LSP, arXiv 2406.10181), in a plain PyTorch loop.

    optimizer = spillway.subspace.AdamW(model, lr=1e-5, modules=r"mlp|self_attn")
    others = spillway.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    ...
    loss.backward()
    torch.nn.utils.clip_grad_norm_([*optimizer.parameters(), *others_parameters], 1.0)
    optimizer.step(); others.step(); optimizer.zero_grad(); others.zero_grad()

A weight [m, n] keeps bf16 (or fp32), 16 bits that make a bf16 weight an exact master, and of the optimizer only
moments of [d, d]; its gradient is never formed but at the few steps that learn projectors: a layer's input and output
gradient go through them, and what autograd adds up is S = P' G Q [d, d], the gradient of a parameter that stands for
the weight's change inside the subspace. That parameter is what `parameters()` and the parameter groups hold: clipping,
schedulers, accumulation and `zero_grad` are PyTorch's own, and a norm counts what is applied. The weights themselves
no longer require gradients.

Projectors are refitted from the first gradient, before the first update. Every `check_every` steps each weight's
running estimate of what its projectors miss is compared with `threshold`; beyond it the next backward pass makes new
ones, and the moments are carried over. With `rotate_every` each weight gets new ones every so many steps whatever
they miss, the weights in turn, and its moments begin anew: in time every direction is trained. What is refitted from a
step's gradient is what the next step's goes through. All of it is a function of the data and the seed.

With `projectors="published"` the method is that of the paper: values at random places of each row, learned by descent.
Every `check_every` steps the next gradient says what the projectors miss of it. Beyond `threshold` they are learned
again at other places, and the transfer matrices carry the moments over. Rates are those of the paper.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spillway import _engine
from spillway.base.calls import translated
from spillway.errors import InputError
from spillway.optim import TYPES, check_defaults, hyperparameters

__all__ = ["AdamW"]


@dataclass
class Held:
    """One weight and its subspace."""

    name: str
    number: int
    weight: torch.Tensor
    inside: nn.Parameter  # [d, d], always 0: its gradient is S
    matrix: _engine.SubspaceMatrix | _engine.PublishedMatrix
    remainder: torch.Tensor | None  # of a bf16 weight: the low 16 bits of its master
    seed: int
    step: int = 0
    anew: bool = False  # moments begin anew with new projectors
    refit: bool = True  # the projectors are refitted from the next gradient
    probe: torch.Tensor | None = None  # G z, added up over the step's micro-batches
    captured: float = 0.0  # |S|^2 so far, before anything clips it
    version: int = 0  # of the weight, when its master was last known

    def begin(self) -> None:
        """Begins a step: a bf16 weight that something else wrote to is its own master again."""
        if self.remainder is not None and self.weight._version != self.version:
            self.remainder.zero_()

    def end(self) -> None:
        """The weight is the engine's work; PyTorch is told that it has changed."""
        torch.autograd.graph.increment_version([self.weight])
        self.version = self.weight._version

    def master(self) -> torch.Tensor:
        if self.remainder is None:
            return self.weight.detach().float().clone()
        low = self.remainder.int() & 0xFFFF
        return (((self.weight.view(torch.int16).int() - (low >> 15)) << 16) | low).view(torch.float32)

    @torch.no_grad()
    def adopt(self, master: torch.Tensor) -> None:
        """Exact values, fp32, of which a bf16 weight holds the upper half."""
        if self.remainder is None:
            self.weight.copy_(master)
        else:
            bits = master.contiguous().view(torch.int32)
            self.weight.copy_(((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))
            self.remainder.copy_(bits.to(torch.int16))
        self.version = self.weight._version

    def state(self) -> dict[str, Any]:
        out = {
            "step": torch.tensor(float(self.step)),
            "p": torch.from_numpy(self.matrix.values(0)),
            "q": torch.from_numpy(self.matrix.values(1)),
            "exp_avg": torch.from_numpy(self.matrix.moment(0)),
            "exp_avg_sq": torch.from_numpy(self.matrix.moment(1)),
            "fits": self.matrix.fits,
            "refit": self.refit or self.matrix.refitted,
        }
        if isinstance(self.matrix, _engine.SubspaceMatrix):
            out |= {"begun": self.matrix.begun, "bias": list(self.matrix.bias)}
        else:
            out["error"] = self.matrix.error
        return out if self.remainder is None else out | {"residual": self.remainder.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        p, q, first, second = (flat(state[name]) for name in ("p", "q", "exp_avg", "exp_avg_sq"))
        if isinstance(self.matrix, _engine.SubspaceMatrix):
            self.matrix.restore(p, q, state["fits"], first, second)
            self.matrix.bias, self.matrix.begun = tuple(state["bias"]), int(state["begun"])
        else:
            self.matrix.restore(p, q, state["fits"], state["error"], first, second)
        self.step, self.refit = int(state["step"]), bool(state["refit"])
        if self.remainder is not None:
            self.remainder.copy_(state["residual"])
            self.version = self.weight._version

    def compressed(self, side: int, tokens: torch.Tensor) -> torch.Tensor:
        """[d, tokens]: of the output gradient by P (side 0), of the input by Q (side 1)."""
        tokens = tokens.contiguous()
        out = torch.empty(self.matrix.rank, tokens.shape[0], dtype=tokens.dtype)
        stride, kind = tokens.shape[1], TYPES[tokens.dtype]
        self.matrix.compress(side, tokens.data_ptr(), stride, tokens.shape[0], kind, out.data_ptr())
        return out

    def take(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """S of one micro-batch, fp32. x [tokens, n] and dy [tokens, m]."""
        if self.refit:
            gradient = (dy.T.float() @ x.float()).flatten()
            if gradient.isfinite().all():  # what is not is refused by the step that it belongs to
                anew = (self.anew,) if isinstance(self.matrix, _engine.SubspaceMatrix) else ()
                self.matrix.refit(gradient.numpy(), *anew)
                self.refit = False
        if self.matrix.fits == 0:
            return torch.full((self.matrix.rank, self.matrix.rank), torch.nan)
        if isinstance(self.matrix, _engine.SubspaceMatrix):
            self.add_probe(x, dy)
        return (self.compressed(0, dy) @ self.compressed(1, x).T).float()

    def add_probe(self, x: torch.Tensor, dy: torch.Tensor) -> None:
        signs = _engine.draw_signs(self.seed, self.number, self.step, x.shape[1])
        seen = dy.T @ (x @ torch.from_numpy(signs).to(x.dtype))
        self.probe = seen.float() if self.probe is None else self.probe + seen


class InSubspace(torch.autograd.Function):
    """linear(x, weight, bias), whose backward pass gives S to `held.inside` and nothing to the weight."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, _inside: torch.Tensor, held: Held
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.held, ctx.has_bias = held, bias is not None
        return nn.functional.linear(x, held.weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        held: Held = ctx.held
        to_x, to_bias, to_inside, _ = ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        dx = dy @ held.weight if to_x else None
        db = rows.sum(0) if ctx.has_bias and to_bias else None
        with translated():
            s = held.take(x.reshape(-1, x.shape[-1]), rows) if to_inside else None
        return dx, db, s, None


class AdamW(torch.optim.Optimizer):
    """Decoupled weight decay, in the subspaces of a model's linear layers.

    `modules`: a regular expression (`re.search`) of the names of layers, every nn.Linear by default; a layer whose
    smaller side has no room for the rank, or whose weight another module shares, is refused by name. `rank`: d, half
    of each weight's smaller side by default. `nonzeros`: r, values in each row of a projector. `projectors`: `fitted`,
    or `published`; then `threshold` is the paper's alpha, and `penalty` its beta.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        modules: str = "",
        rank: int = 0,
        nonzeros: int = 4,
        check_every: int = 100,
        threshold: float = 0.9,
        rotate_every: int = 0,
        seed: int = 0,
        projectors: str = "fitted",
        penalty: float = 0.0,
    ) -> None:
        if projectors not in ("fitted", "published"):
            raise InputError(f"projectors is {projectors!r}; it may be 'fitted' or 'published'")
        if projectors == "published" and rotate_every > 0:
            raise InputError(
                "rotate_every: published projectors are learned again only beyond the threshold; leave it out"
            )
        if penalty != 0 and (projectors != "published" or not penalty > 0):
            raise InputError(f"penalty {penalty}: it is for projectors='published', and must be at least 0")
        if rank < 0 or nonzeros < 1 or check_every < 1 or not threshold > 0 or rotate_every < 0:
            raise InputError(
                f"rank {rank}, nonzeros {nonzeros}, check_every {check_every}, threshold {threshold}, rotate_every "
                f"{rotate_every}: rank and rotate_every must be at least 0, nonzeros and check_every at least 1, "
                "threshold above 0"
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        check_defaults(defaults)
        self.check_every, self.threshold, self.rotate_every = check_every, threshold, rotate_every
        layers = chosen(model, modules)
        self._held: dict[torch.Tensor, Held] = {}
        published = (threshold, penalty) if projectors == "published" else None
        made = [held_of(name, i, layer, rank, nonzeros, seed, published) for i, (name, layer) in enumerate(layers)]
        for (_, layer), held in zip(layers, made, strict=True):  # nothing is changed before all are right
            held.anew = rotate_every > 0
            redirect(layer, held)
            self._held[held.inside] = held
        super().__init__([held.inside for held in made], defaults)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What stands for the weights: zeros whose gradients are S."""
        yield from (held.inside for held in self._held.values())

    def errors(self) -> dict[str, float]:
        """By weight: the running estimate of |P P' G Q Q' - G| / |G|; 0 before the first step after a fit. Of published
        projectors it is that of the last gradient that was checked."""
        return {held.name: held.matrix.error for held in self._held.values()}

    def masters(self) -> dict[str, torch.Tensor]:
        """By weight: its exact values, fp32."""
        return {f"{held.name}.weight": held.master() for held in self._held.values()}

    def adopt(self, masters: dict[str, torch.Tensor]) -> None:
        """Weights begin with these values, fp32, whatever their type rounds them to."""
        for held in self._held.values():
            held.adopt(masters[f"{held.name}.weight"])

    def fits(self) -> dict[str, int]:
        """By weight: times that its projectors were refitted."""
        return {held.name: held.matrix.fits for held in self._held.values()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for inside in group["params"]:
                if inside.grad is not None:
                    self._step(self._held[inside], inside.grad, group)
        return loss

    def _step(self, held: Held, s: torch.Tensor, group: dict[str, Any]) -> None:
        if not s.isfinite().all():
            raise InputError(f"the gradient of {held.name} is not finite: skip such a step, or lower the learning rate")
        probe, held.probe = held.probe, None
        if probe is not None and isinstance(held.matrix, _engine.SubspaceMatrix):
            held.matrix.add_sample(held.captured, float(probe.square().sum()))
        held.begin()
        held.step += 1
        rates = (hyperparameters("adamw", group), 1.0, held.step)
        remainder = 0 if held.remainder is None else held.remainder.data_ptr()
        with translated():
            held.matrix.step(held.weight.data_ptr(), remainder, TYPES[held.weight.dtype], flat(s), "adamw", rates)
        held.end()
        looks = isinstance(held.matrix, _engine.PublishedMatrix) or held.matrix.error > self.threshold
        if (held.step % self.check_every == 0 and looks) or _engine.subspace_rotates(
            self.rotate_every, held.step, held.number
        ):
            held.refit = True

    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim gives it, by weight: `step`, the moments [d * d], the values of both projectors, how
        often they were learned, what the estimate of their error is made of, and the `residual` of a bf16 weight."""
        states = dict(enumerate(held.state() for held in self._held.values()))
        return {**super().state_dict(), "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of this class, for the same model, rank and nonzeros; the weights are the model's own to
        load, before it."""
        states, all_held = state_dict["state"], list(self._held.values())
        if len(states) != len(all_held):
            raise InputError(f"a state of {len(states)} weights, and {len(all_held)} train in subspaces here")
        for held, state in zip(all_held, states.values(), strict=True):
            for name, there in held.state().items():
                given = state.get(name)
                if given is None or (isinstance(there, torch.Tensor) and given.numel() != there.numel()):
                    raise InputError(f"{name} of {held.name} is not of this model, rank and nonzeros, or projectors")
        super().load_state_dict({**state_dict, "state": {}})
        for held, state in zip(all_held, states.values(), strict=True):
            with translated():
                held.restore(state)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("an optimizer of spillway.subspace cannot be pickled or copied; keep its state_dict()")


def flat(values: torch.Tensor) -> Any:
    return values.detach().to(torch.float32).contiguous().flatten().numpy()


def chosen(model: nn.Module, modules: str) -> list[tuple[str, nn.Linear]]:
    """The layers that are to train in subspaces; refuses weights that something else holds, too."""
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(f"{name}.{own}")
    out = []
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or re.search(modules, name) is None:
            continue
        if len(names := holders[id(module.weight)]) > 1:
            raise InputError(f"{' and '.join(names)} are one tensor; choose layers besides it with modules=")
        out.append((name, module))
    if not out:
        raise InputError(f"modules={modules!r} is the name of no nn.Linear of the model")
    return out


def held_of(
    name: str,
    number: int,
    layer: nn.Linear,
    rank: int,
    nonzeros: int,
    seed: int,
    published: tuple[float, float] | None = None,
) -> Held:
    """`published`: alpha and beta of published projectors."""
    weight = layer.weight.detach()
    if weight.device.type != "cpu" or weight.dtype not in TYPES:
        raise InputError(f"{name}: a weight of {weight.dtype} on {weight.device}; fp32 and bf16 on cpu are taken")
    with translated():
        try:
            rows, columns = weight.shape
            shape = (rows, columns, rank, nonzeros)
            matrix: _engine.SubspaceMatrix | _engine.PublishedMatrix
            if published is None:
                matrix = _engine.SubspaceMatrix(*shape)
            else:
                matrix = _engine.PublishedMatrix(*shape, *published, seed, number)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from error
    inside = nn.Parameter(torch.zeros(matrix.rank, matrix.rank))
    remainder = torch.zeros(weight.shape, dtype=torch.int16) if weight.dtype == torch.bfloat16 else None
    return Held(name, number, weight, inside, matrix, remainder, seed, version=weight._version)


def redirect(layer: nn.Linear, held: Held) -> None:
    """From now on the layer's backward pass gives S instead of the weight's gradient."""
    layer.weight.requires_grad_(False)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != held.weight.dtype:
            raise InputError(
                f"{held.name}: an input of {x.dtype} for a weight of {held.weight.dtype}; not with autocast"
            )
        return InSubspace.apply(x, layer.bias, held.inside, held)  # type: ignore[no-any-return]

    known = weakref.ref(held)  # autograd holds its hooks where Python's garbage collector does not look

    def measure(inside: torch.Tensor) -> None:
        held = known()
        assert held is not None and inside.grad is not None
        held.captured = float(inside.grad.square().sum())

    held.inside.register_post_accumulate_grad_hook(measure)
    layer.forward = forward  # type: ignore[method-assign]
