"""Which matrices of a model are trained in subspaces, and how a layer's backward pass gives S for their gradient.

A linear layer y = x W' trained so never forms dY' x: its input and its output's gradient go through the engine's
projectors, and of each micro-batch, or of each tile of one, the engine gets S = (dY P)' (x Q). The products are
PyTorch's; what they are made with, and when projectors are refitted, is the engine's. GPT-2's Conv1D is y = x W: there
x and dY change places.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from spillway import _engine
from spillway.errors import InputError
from spillway.model.meta.meta_model import MetaModel, Space, pattern

if TYPE_CHECKING:
    from spillway.config import Config

SHOWN = 4  # names in a message


def choose(meta_model: MetaModel, config: Config) -> None:
    """Says in `meta_model.spaces` which parameters are trained in subspaces. InputError naming what cannot."""
    if config.method != "lsp":
        return
    linears = linear_layers(meta_model)
    names = list(linears)
    for each in config.lsp_modules:
        if not any(re.search(each, name) for name in names):
            shown = ", ".join(names[:SHOWN]) or "none"
            raise InputError(f"lsp_modules: {each!r} matches no trainable linear layer; there are such as {shown}")
    for name, linear in linears.items():
        if config.lsp_modules and not any(re.search(each, name) for each in config.lsp_modules):
            continue
        if not config.lsp_modules and min(linear.weight.shape) < 2 * config.lsp_nonzeros:
            continue
        meta_model.spaces[id(linear.weight)] = space_of(name, linear, config)
    if not meta_model.spaces:
        raise InputError("method: lsp is for linear layers inside the model's layers, and none of these is trainable")


def linear_layers(meta_model: MetaModel) -> dict[str, Any]:
    """The linear layers by name: inside the layers, with a trainable weight in the compute type, used in one place
    alone."""
    inside = {id(module) for layer in meta_model.layers for module in layer.modules()}
    return {
        name: module
        for name, module in meta_model.model.named_modules()
        if type(module) in (nn.Linear, Conv1D)
        and id(module) in inside
        and module.weight.requires_grad
        and not meta_model.is_fp32(module.weight)
        and len(meta_model.places[id(module.weight)]) == 1
    }


def space_of(name: str, linear: Any, config: Config) -> Space:
    rows, columns = linear.weight.shape
    try:
        rank = _engine.subspace_rank(rows, columns, config.lsp_rank or 0, config.lsp_nonzeros)
        return Space(rank, config.lsp_nonzeros, config.lsp_master, config.lsp_projectors)
    except ValueError as error:
        raise InputError(f"{name}: {error}; choose layers without it by lsp_modules") from None


def choose_kinds(small: MetaModel, meta_model: MetaModel) -> None:
    """Reduces in a model with fewer layers what is reduced in any layer of `meta_model`."""
    kinds = {pattern(meta_model.names[key]): space for key, space in meta_model.spaces.items()}
    for key, name in small.names.items():
        if (space := kinds.get(pattern(name))) is not None:
            small.spaces[key] = space


class InSubspace(torch.autograd.Function):
    """linear(x, weight, bias), whose backward pass gives S to `inside` and nothing to the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        _inside: torch.Tensor,
        project: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        computed: bool,
        turned: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.project, ctx.has_bias, ctx.turned = project, bias is not None, turned
        if not computed:
            return x.new_zeros(()).expand(*x.shape[:-1], weight.shape[0])
        return nn.functional.linear(x, weight.T if turned else weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, _, to_bias, to_inside = ctx.needs_input_grad[:4]
        rows = dy.flatten(0, -2)
        dx = rows.mm(weight.T if ctx.turned else weight).view(x.shape) if to_x else None
        db = rows.sum(0) if ctx.has_bias and to_bias else None
        both = (x.flatten(0, -2), rows)
        s = ctx.project(*(reversed(both) if ctx.turned else both)) if to_inside else None
        return dx, None, db, s, None, None, None


@dataclass(frozen=True)
class Inner:
    """A linear layer whose weight is trained in a subspace."""

    linear: Any  # nn.Linear, or Conv1D
    inside: torch.Tensor  # [d, d], always 0 and of no memory: its gradient is S
    project: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x and dY to S
    computed: bool  # its output is needed in backward


@contextmanager
def redirected(inners: Sequence[Inner], computed: bool = False) -> Iterator[None]:
    """Inside, the backward passes of these layers give S. `computed`: all of their outputs are needed."""

    def replacement(it: Inner) -> Any:
        turned = type(it.linear) is Conv1D
        return lambda x: InSubspace.apply(
            x, it.linear.weight, it.linear.bias, it.inside, it.project, it.computed or computed, turned
        )

    for it in inners:
        it.linear.forward = replacement(it)
    try:
        yield
    finally:
        for it in inners:
            del it.linear.forward


def within(inners: Sequence[Inner]) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """`redirected` for those of the layers that are inside a module."""

    def redirect(module: nn.Module) -> AbstractContextManager[None]:
        inside = {id(inner) for inner in module.modules()} if inners else set()
        return redirected([it for it in inners if id(it.linear) in inside])

    return redirect


def project(
    engine: Any, tensor: int, part: int, space: Space, x: torch.Tensor, dy: torch.Tensor, must_refit: bool = True
) -> torch.Tensor:
    """S [d, d] of one part of a step, a micro-batch or a tile of one, of the compute type: x [tokens, columns], dy
    [tokens, rows]. `must_refit`: projectors are refitted from this part even if its gradient is zero."""
    x, dy = x.detach().contiguous(), dy.contiguous()  # one that may need a gradient is not exported by DLPack
    if engine.wants_whole_gradient(tensor, part):
        gradient = (dy.T.float() @ x.float()).view(-1)
        if must_refit or bool(gradient.any()):
            engine.whole_gradient(tensor, gradient)
    inner, outer = (tokens.new_empty(space.rank, len(tokens)) for tokens in (x, dy))
    engine.compress(tensor, 0, dy, outer)
    engine.compress(tensor, 1, x, inner)
    if space.projectors == "fitted":
        take_sample(engine, tensor, part, x, dy)
    return outer @ inner.T


def take_sample(engine: Any, tensor: int, part: int, x: torch.Tensor, dy: torch.Tensor) -> None:
    """Gives the engine G z, by which it estimates the share of G that fitted projectors miss."""
    signs = torch.empty(x.shape[1])
    engine.signs(tensor, signs)
    there = signs.to(x.device, non_blocking=True).to(x.dtype)  # a copy that waits would wait for all of the pass
    engine.sample(tensor, (dy.T @ (x @ there)).float(), part)


def summarise_step(engine: Any) -> dict[str, Any]:
    """Figures of a step for metrics.jsonl. They are the running estimate of the gradients' relative error, by layer the
    mean of its matrices, and the count of projector refits of all matrices."""
    layers: dict[str, list[float]] = {}
    refits = engine.refits()
    for tensor, _, error in refits:
        layers.setdefault(layer_of(tensor), []).append(error)
    errors = {name: round(statistics.fmean(values), 4) for name, values in layers.items()}
    return {"gradient_error": errors, "projectors_learned": sum(fits for _, fits, _ in refits)}


def summed(engine: Any) -> dict[str, Any]:
    """Over all matrices, for summary.json."""
    refits = engine.refits()
    errors = [error for _, _, error in refits]
    return {
        "subspaces": {
            "matrices": len(refits),
            "projectors_learned": sum(fits for _, fits, _ in refits),
            "gradient_error": {"mean": statistics.fmean(errors), "least": min(errors), "most": max(errors)},
        }
    }


def layer_of(tensor: str) -> str:
    """ "model.layers.3" of "model.layers.3.mlp.up_proj.weight"; without a number the tensor itself."""
    match = re.match(r".*?\.\d+(?=\.)", tensor)
    return match[0] if match else tensor
