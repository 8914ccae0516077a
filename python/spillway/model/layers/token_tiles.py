"""Parts of a layer that treat each token by itself (MLPs, experts with their router, norms), run in tiles of tokens.

Such a module holds one tile's temporaries at a time, forward and backward, and keeps nothing from one to the other but
its input: backward runs each tile again and differentiates it at once, as TiledMLP of ALST does
(https://arxiv.org/abs/2506.13996). A tile's gradients of weights are handed over like those of a micro-batch, and are
summed with them: in fp32, rounded once. Which modules these are is found by trying on a tiny copy (`tile_search`); how
many tokens a tile has follows from the configuration and the model alone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from spillway.model.layers.linear_pass import replace_linears
from spillway.model.layers.nested import tensors_in
from spillway.model.layers.saved import View

if TYPE_CHECKING:
    from spillway.model.batches.microbatch import MicroBatch
    from spillway.model.layers.weight_sums import StageSums
    from spillway.model.meta.meta_model import MetaModel

LEAST = 1024  # tokens of a tile of `auto`: products stay large
LEAST_ON_GPU = 2**15  # a second tile repeats launches, adds fp32 sums, and recomputes the MLP of kept layers
DRAWS = ("drop", "jitter")  # in names of settings by which a module draws random numbers


Redirect = Callable[[nn.Module], AbstractContextManager[None]]


def plain(_: nn.Module) -> AbstractContextManager[None]:
    """A Redirect that changes nothing."""
    return nullcontext()


@dataclass(frozen=True)
class TokenTiles:
    """The modules that run in tiles, and the tokens of a tile."""

    tokens: int | None = None  # of one tile at most; None: all of a micro-batch at once
    modules: frozenset[str] = frozenset()  # by name within a layer: each treats every token by itself
    idle: frozenset[str] = frozenset()  # those of them on whose output no gradient depends
    why: str = ""  # why nothing runs in tiles, as the end of a sentence; empty: something does, or nobody asked
    head_tokens: int | None = None  # label tokens that the head multiplies at once; None: those of one tile

    def count(self, tokens: int) -> int:
        """How many tiles so many tokens are, all of about one size."""
        return 1 if self.tokens is None else max(1, math.ceil(tokens / self.tokens))


ALL_AT_ONCE = TokenTiles()


def tokens_of(asked: str | int, hidden: int, on_gpu: bool = False) -> int | None:
    """The tokens of a tile, as the key `token_tile` says. `auto`: twice the hidden size, since more than one tile needs
    a sum in fp32 of a layer's gradients, which is about as large as the inner states of so many tokens. On a GPU only
    long rows have several tiles."""
    if isinstance(asked, int):
        return asked
    if asked == "all":
        return None
    return max(LEAST_ON_GPU, 8 * hidden) if on_gpu else max(LEAST, 2 * hidden)


def bounds(tokens: int, count: int) -> list[tuple[int, int]]:
    """The beginning and the end of each of `count` tiles."""
    return [(tokens * number // count, tokens * (number + 1) // count) for number in range(count)]


class Parts:
    """The parts by which a step's gradients are summed. Each micro-batch has as many as its tokens are tiles; with one
    tile they are the micro-batches. What does not run in tiles has its gradient in the micro-batch's last part."""

    def __init__(self, tiles: TokenTiles = ALL_AT_ONCE) -> None:
        self.tiles = tiles
        self.now = 0  # the part of which gradients are that are handed over
        self.count = 1  # of the open micro-batch
        self.tokens = 0  # of the open micro-batch
        self.sizes: list[int] = [0]  # tokens of each part of the step
        self._first = [0, 1]  # each micro-batch's first part, and the number of parts
        self._end = 1  # one past the last part of the open micro-batch
        self._ends_rank = True  # the open micro-batch is the last one of its virtual rank

    def begin(self, batches: Sequence[MicroBatch], before: int = 0) -> None:
        """`before`: parts of the step that come before those of `batches`."""
        counts = [self.tiles.count(batch.tokens) for batch in batches]
        self._first = [before + sum(counts[:place]) for place in range(len(counts) + 1)]
        self.sizes = [
            after - first
            for batch, count in zip(batches, counts, strict=True)
            for first, after in bounds(batch.tokens, count)
        ]
        if batches:
            self.open(batches[0])

    def open(self, batch: MicroBatch) -> None:
        """The passes and gradients that follow are this micro-batch's."""
        first, after = self._first[batch.index : batch.index + 2]
        self.count, self.tokens, self.now = after - first, batch.tokens, after - 1
        self._end, self._ends_rank = after, batch.ends_rank

    def number(self, batch: MicroBatch, tile: int, of: int) -> int:
        """The part that one of `of` tiles of a micro-batch is: the last tile is its last part."""
        return self._first[batch.index + 1] - of + tile

    @property
    def last(self) -> bool:
        """True if gradients are of the last part of a virtual rank: with one rank, of the step."""
        return self._ends_rank and self.now == self._end - 1

    @property
    def must_refit(self) -> bool:
        """True if projectors are refitted even from a gradient that is zero. That of the last layer is zero in a tile
        without labels, and says nothing of a matrix; a later tile has another."""
        return self.count == 1 or self.last

    @contextmanager
    def tile(self, number: int, of: int) -> Iterator[None]:
        """Inside, gradients are of one of `of` tiles of the open micro-batch, which come in order; the last of them is
        its last part."""
        before = self.now
        self.now = before - (of - 1 - number)
        try:
            yield
        finally:
            self.now = before


@dataclass(frozen=True)
class Call:
    """Arguments of a module besides the hidden state, which comes first."""

    name: str | None  # of the hidden state, where it is given by a keyword
    others: tuple[Any, ...]
    named: dict[str, Any]

    @staticmethod
    def split(positional: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[torch.Tensor, Call] | None:
        """The hidden state, and the rest. None: there is none, or the rest holds tensors, too."""
        name = None if positional else next(iter(keywords), None)
        hidden = positional[0] if positional else keywords.get(name or "")
        named = {key: value for key, value in keywords.items() if key != name}
        beside = tensors_in([positional[1:], list(named.values())])
        if not isinstance(hidden, torch.Tensor) or hidden.dim() < 2 or any(True for _ in beside):
            return None
        return hidden, Call(name, positional[1:], named)

    def to(self, forward: Callable[..., Any], hidden: torch.Tensor) -> Any:
        if self.name is None:
            return forward(hidden, *self.others, **self.named)
        return forward(*self.others, **{self.name: hidden}, **self.named)


class Tile:
    """One module of a layer that runs in tiles."""

    def __init__(
        self,
        module: nn.Module,
        parts: Parts,
        idle: bool = False,
        left_out: Sequence[nn.Module] = (),
        sums: StageSums | None = None,
        redirect: Redirect = plain,
    ) -> None:
        """`idle`: no gradient depends on its output, which is as large as its input. `left_out`: linear layers in it
        whose product backward does not make again. `sums`: products add weight gradients to these. `redirect`: a
        module's passes within give reduced gradients."""
        self.module = module
        self._parts, self._idle, self._left_out, self._sums = parts, idle, left_out, sums
        self._redirect = redirect
        self._forward: Callable[..., Any] = module.forward
        self._beside: int | None = None  # how much it returns after the hidden state; None: it has not run
        self._quick = all(weight.dim() < 2 for weight in module.parameters())  # no products: a norm

    def forward(self, filler: float | None = None, remaking: Remaking | None = None) -> Callable[..., Any]:
        """The forward that runs in place of the module's own, and returns nothing but the hidden state (None for the
        rest). `filler`: the value that an idle module that has run before gives everywhere, without computing.
        `remaking`: told of the outputs of a module without products."""

        def forward(*positional: Any, **keywords: Any) -> Any:
            call = Call.split(positional, keywords)
            if call is None or not self._fits(call[0]):
                return self._forward(*positional, **keywords)
            unused = filler if self._idle and self.has_run else None
            out = Tiled.apply(call[0], self, call[1], unused)
            if remaking is not None and self._quick and unused is None:
                remaking.note(out, Made(self, call[0].detach(), call[1]))
            return (out, *[None] * self._beside) if self._beside else out

        return forward

    @property
    def has_run(self) -> bool:
        return self._beside is not None

    def run(self, hidden: torch.Tensor, call: Call) -> torch.Tensor:
        tokens, leading = joined(hidden)
        out: torch.Tensor | None = None
        for first, after in bounds(len(tokens), self._parts.count):
            output = self._called(call, tokens[first:after], leading)
            if out is None:
                out = output.new_empty((len(tokens), *output.shape[1:]))
            out[first:after] = output
        assert out is not None
        return out.view(*hidden.shape[:leading], *out.shape[1:])

    def differentiate(self, hidden: torch.Tensor, call: Call, gradient: torch.Tensor) -> torch.Tensor:
        """d loss / d output in, d loss / d input out. Gradients of weights go where their hooks send them."""
        tokens, leading = joined(hidden)
        dy = gradient.flatten(0, leading - 1)
        dx = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
        for number, (first, after) in enumerate(bounds(len(tokens), self._parts.count)):
            leaf = tokens[first:after].detach().requires_grad_()
            linears = replace_linears(self._left_out, sums=self._sums)
            with torch.enable_grad(), linears, self._redirect(self.module):
                output = self._called(call, leaf, leading)
            with self._parts.tile(number, self._parts.count):
                torch.autograd.backward(output, dy[first:after])
            dx[first:after] = 0 if leaf.grad is None else leaf.grad
        return dx.view(hidden.shape)

    def _called(self, call: Call, tokens: torch.Tensor, leading: int) -> torch.Tensor:
        """The output of one tile, [tokens, ...], in the form of its input."""
        output = call.to(self._forward, tokens if leading == 1 else tokens[None])
        self._beside = len(output) - 1 if isinstance(output, tuple) else 0
        hidden: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return hidden if leading == 1 else hidden[0]

    def _fits(self, hidden: torch.Tensor) -> bool:
        """True if the hidden state is all tokens of the micro-batch, lying one after the other, with a history where
        one is made."""
        leading = leading_of(hidden)
        if hidden.shape[:leading].numel() != self._parts.tokens:
            return False
        one_after_the_other = hidden.shape[0] == 1 or hidden.stride(0) == hidden.shape[1] * hidden.stride(1)
        return (leading == 1 or one_after_the_other) and (hidden.requires_grad or not torch.is_grad_enabled())


class Tiled(torch.autograd.Function):
    """A module's pass, of which the input alone is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, tile: Tile, call: Call, filler: float | None) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.tile, ctx.call = tile, call
        if filler is not None:
            return hidden.new_full((), filler).expand(hidden.shape)
        return tile.run(hidden, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        return ctx.tile.differentiate(hidden, ctx.call, gradient), None, None, None


@dataclass
class Made:
    """The output of a tile for a hidden state."""

    tile: Tile
    hidden: torch.Tensor
    call: Call
    asked: int = 0  # how many saved tensors are to be made from it
    out: torch.Tensor | None = None  # made again, until the last of them is

    def again(self) -> torch.Tensor:
        """For one of the saved tensors. The products that follow a norm, of queries, keys and values, ask for the same
        one after the other."""
        with torch.no_grad():
            out = self.tile.run(self.hidden, self.call) if self.out is None else self.out
        self.asked -= 1
        self.out = out if self.asked > 0 else None
        return out


@dataclass(frozen=True)
class Remade:
    """A saved tensor that is part of what a tile gave."""

    made: Made
    view: View


class Remaking:
    """The hooks of a pass that runs a layer again. What follows a norm saves what it was given, as large as a hidden
    state; here backward makes it once more, when it asks, of what the norm was given, which is there anyway."""

    def __init__(self) -> None:
        # Entries by storage, as long as that lives; and its version, which differs where it has been changed in place.
        self._made: dict[int, tuple[Made, int, weakref.ref[Any]]] = {}

    def note(self, out: torch.Tensor, made: Made) -> None:
        storage = out.untyped_storage()
        key = storage._cdata
        mine = weakref.ref(self)

        def gone(_: object) -> None:
            if (here := mine()) is not None:
                here._made.pop(key, None)

        self._made[key] = made, out._version, weakref.ref(storage, gone)

    def hooks(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | Remade:
        """Without history, as `saved.Packing` has it."""
        remade = self._made.get(tensor.untyped_storage()._cdata)
        if remade is None or remade[1] != tensor._version:
            return tensor.detach()
        remade[0].asked += 1
        return Remade(remade[0], View.from_element(tensor.storage_offset(), tensor))

    @staticmethod
    def _unpack(held: torch.Tensor | Remade) -> torch.Tensor:
        if isinstance(held, torch.Tensor):
            return held
        return held.view.apply(held.made.again())


def leading_of(hidden: torch.Tensor) -> int:
    """How many of the first dimensions count tokens: rows and their tokens, or tokens alone."""
    return min(2, hidden.dim() - 1)


def joined(hidden: torch.Tensor) -> tuple[torch.Tensor, int]:
    """[tokens, ...], and how many dimensions of the hidden state count tokens."""
    leading = leading_of(hidden)
    return hidden.flatten(0, leading - 1), leading


def tiles_in(
    meta_model: MetaModel,
    layer: nn.Module,
    parts: Parts,
    left_out: Sequence[nn.Module],
    alone: bool,
    sums: StageSums | None = None,
    redirect: Redirect = plain,
) -> list[Tile]:
    """The tiles of a layer. `left_out`, `sums` and `redirect` are as `Tile` has them, for the whole layer; `alone`:
    nothing looks at its output but the next layer. Modules that draw random numbers run whole, and those with weights
    that others use, too."""
    tiles, tiled = parts.tiles, []
    modules = dict(layer.named_modules())
    for name in sorted(tiles.modules & modules.keys() if tiles.tokens is not None else ()):
        module = modules[name]
        if runs_whole(meta_model, module):
            continue
        inside = {id(inner) for inner in module.modules()}
        mine = [linear for linear in left_out if id(linear) in inside]
        tiled.append(Tile(module, parts, alone and name in tiles.idle, mine, sums, redirect))
    return tiled


def norm_in_tiles(meta_model: MetaModel, parts: Parts) -> Tile | None:
    """The norm that follows the layers, where parts of these run in tiles: it treats each token by itself as theirs do,
    which is verified with them."""
    norm = meta_model.norm
    if norm is None or parts.tiles.tokens is None or not parts.tiles.modules or runs_whole(meta_model, norm):
        return None
    return Tile(norm, parts)


def runs_whole(meta_model: MetaModel, module: nn.Module) -> bool:
    """True if the module draws random numbers, or has weights that others use, too."""
    return any(len(meta_model.places[id(p)]) > 1 for p in module.parameters()) or draws(module)


def draws(module: nn.Module) -> bool:
    """True if the module draws random numbers in training, by its dropouts and the names of its settings."""
    for inner in module.modules():
        if isinstance(inner, nn.modules.dropout._DropoutNd) and inner.p > 0:
            return True
        settings = (value for name, value in vars(inner).items() if any(word in name for word in DRAWS))
        if any(isinstance(value, float) and value > 0 for value in settings):
            return True
    return False
