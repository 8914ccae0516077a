"""Which modules of a layer treat each token by itself, found by trying on a tiny copy with real weights.

Every module that is given all tokens once, and gives as many, runs again on a few of them at a time: it is one of these
where that gives the same. Those nearest to the layer are taken, whatever their class; PyTorch's own modules and
products are left out, since they hold nothing beside what they are given and give. Of those that are found it is tried,
too, whether any gradient depends on what they give; where none does, backward does not compute it again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from spillway.model.layers.nested import mappings_in, tensors_in
from spillway.model.layers.token_tiles import Call, Parts, Tile, TokenTiles, bounds, joined
from spillway.model.meta.layer_arguments import Arguments
from spillway.model.source.model_code import replaced_forwards
from spillway.model.stream.unneeded import all_learning

WITHIN = 1e-5  # relative to the largest element
NOISE = 1e-7  # of a layer's largest gradient: some are zero but for rounding (the bias of keys)
PIECES = 3  # that a module is tried in
# Errors of a layer if a module's output is changed in place, differs in size from its input, or is not all it gives.
UNLIKE = (RuntimeError, TypeError, AttributeError)

Seen = tuple[torch.Tensor, Call, torch.Tensor]  # the hidden state, what else there is, what the module gives


def find_modules(layers: Sequence[nn.Module], tokens: int, run: Callable[[], object]) -> frozenset[str]:
    """Names within a layer. `run`: the model, whose layers these are, on so many tokens."""
    calls: dict[int, list[Seen | None]] = defaultdict(list)

    def see(module: nn.Module, positional: Any, keywords: Any, output: Any) -> None:
        call, given = Call.split(positional, keywords), first_of(output)
        seen = None if call is None or given is None else (call[0].clone(), call[1], given.clone())
        calls[id(module)].append(seen)

    inner = {id(module): module for layer in layers for module in layer.modules()}
    handles = [module.register_forward_hook(see, with_kwargs=True) for module in inner.values()]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    with torch.no_grad():
        names_in_layers = [frozenset(nearest(layer, "", calls, tokens)) for layer in layers]
    names = [{name for name, _ in layer.named_modules()} for layer in layers]
    every = frozenset[str]().union(*names_in_layers)
    return frozenset(
        n for n in every if all(n in f for f, those in zip(names_in_layers, names, strict=True) if n in those)
    )


def nearest(module: nn.Module, prefix: str, calls: dict[int, list[Seen | None]], tokens: int) -> Iterator[str]:
    for name, child in module.named_children():
        whole = f"{prefix}{name}"
        if treats_tokens_apart(child, calls.get(id(child), []), tokens):
            yield whole
        else:
            yield from nearest(child, f"{whole}.", calls, tokens)


def treats_tokens_apart(module: nn.Module, calls: Sequence[Seen | None], tokens: int) -> bool:
    alone = isinstance(module, Conv1D) or type(module).__module__.startswith("torch.")
    if alone or not any(True for _ in module.parameters()) or len(calls) != 1 or (seen := calls[0]) is None:
        return False
    hidden, call, expected = seen
    flat, leading = joined(hidden)
    if len(flat) != tokens or not hidden.is_floating_point() or expected.shape[:leading] != hidden.shape[:leading]:
        return False
    pieces = [flat[first:after].clone() for first, after in bounds(tokens, PIECES)]
    try:
        outputs = [first_of(call.to(module.forward, piece if leading == 1 else piece[None])) for piece in pieces]
    except (RuntimeError, ValueError, IndexError, TypeError):  # it asks for all of them
        return False
    given = [one if leading == 1 else one[0] for one in outputs if one is not None]
    return len(given) == len(pieces) and close(torch.cat(given), expected.flatten(0, leading - 1))


def first_of(output: Any) -> torch.Tensor | None:
    """The hidden state that a module gives, alone or before other things."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, torch.Tensor) else None


def layer_calls(layers: Sequence[nn.Module], run: Callable[[], object]) -> tuple[list[Arguments], torch.Tensor] | None:
    """The arguments of each layer, and the first one's hidden state. `run`: the model, whose layers these are. None: a
    layer runs several times, layers share it, or gradients flow to other arguments than the hidden state."""
    seen: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []

    def see(module: nn.Module, positional: Any, keywords: Any) -> None:
        seen.append((module, positional, keywords))

    handles = [layer.register_forward_pre_hook(see, with_kwargs=True) for layer in layers]
    try:
        with torch.enable_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if [id(module) for module, _, _ in seen] != [id(layer) for layer in layers]:
        return None
    calls, states = [], []
    for _, positional, keywords in seen:
        name = None if positional else "hidden_states"
        first = positional[0] if positional else keywords.get("hidden_states")
        others = {key: value for key, value in keywords.items() if key != name}
        beside = [positional[1:], list(others.values())]
        flows = any(tensor.requires_grad for tensor in tensors_in(beside))
        if flows or any(True for _ in mappings_in(beside)) or not isinstance(first, torch.Tensor):
            return None
        calls.append(Arguments(name, positional[1:], others))
        states.append(first)
    return calls, states[0].detach()


def find_idle(
    tiles: TokenTiles, layers: Sequence[nn.Module], calls: Sequence[Arguments], hidden: torch.Tensor, tokens: int
) -> TokenTiles:
    """`tiles` without the modules that give other gradients in tiles, and with the names of those on whose output no
    gradient depends. `calls`: what the layers are given besides `hidden`, which is of so many tokens."""
    trials = [Trial(*pair, hidden, tokens) for pair in zip(layers, calls, strict=True)]
    with all_learning(layers):
        good = frozenset(name for name in tiles.modules if all(it.same(name, None) for it in trials))
        idle = frozenset(name for name in good if all(it.same(name, math.nan) for it in trials))
    return replace(tiles, modules=good, idle=idle)


@dataclass(frozen=True)
class Trial:
    """A layer and what it is given."""

    layer: nn.Module
    call: Arguments
    hidden: torch.Tensor
    tokens: int

    def same(self, name: str, filler: float | None) -> bool:
        """True if all gradients of the layer are close to the plain ones when this module of it runs in tiles and gives
        `filler`."""
        module = dict(self.layer.named_modules()).get(name)
        if module is None:
            return True
        expected = gradients(self.layer, self.call, self.hidden)
        parts = Parts(TokenTiles(1))
        parts.tokens, parts.count = self.tokens, PIECES
        tile = Tile(module, parts, idle=filler is not None)
        try:
            for given in (None, filler) if filler is not None else (None,):
                with replaced_forwards({module: tile.forward(given)}):
                    gradients_tiled = gradients(self.layer, self.call, self.hidden)
        except UNLIKE:
            return False
        noise = NOISE * max(float(one.abs().max()) for one in expected if one is not None)
        return tile.has_run and all(both_close(*pair, noise) for pair in zip(gradients_tiled, expected, strict=True))


def gradients(layer: nn.Module, call: Arguments, hidden: torch.Tensor) -> list[torch.Tensor | None]:
    leaf = hidden.detach().requires_grad_()
    output = call.call(layer, leaf)
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    leaves = [leaf, *layer.parameters()]
    for one in leaves:
        one.grad = None
    torch.autograd.backward(output, seed)
    return [one.grad for one in leaves]


def both_close(one: torch.Tensor | None, other: torch.Tensor | None, noise: float) -> bool:
    return one is other if one is None or other is None else close(one, other, noise)


def close(one: torch.Tensor, other: torch.Tensor, noise: float = 0.0) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return not one.numel() or bool((one - other).abs().max() <= WITHIN * other.abs().max() + noise)
