"""Attention of packed rows, windows and chunks without a mask of all tokens by all tokens.

The library joins the rows of a packed sequence, a sliding window and chunks into one boolean mask of a whole sequence.
Here a small thing stands for it (`RowMask`), and attention follows what it says: each row, or chunk of one, runs by
itself with the kernel's causal flag, and a row that is longer than its window runs by blocks of queries over the keys
that any of them sees. The kernel is the library's own function of scaled_dot_product_attention for each. On a GPU one
call takes all rows of a micro-batch where it can (`packed_attention`). Model code that does anything with the mask but
hand it on finds the mask itself.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spillway.model.layers import packed_attention
from spillway.model.source import library
from spillway.model.source.source import text_config

NAME = "spillway_rows"  # of this attention, where a configuration has one
LEAST_QUERIES, MOST_QUERIES = 128, 512  # of a block: as many as the window within these
ASKS = re.compile(r"_attn_implementation\b.*[\"']sdpa[\"']")  # code that does something else by that name
INDIFFERENT = ("gemma4", "gemma4_unified")  # that ask so where queries are left out, as no training does

States = Sequence[torch.Tensor]  # query, key, value: [sequences, heads, tokens, channels of a head]
Kernel = Callable[..., torch.Tensor]  # of states and a mask, None: causal; [sequences, tokens, heads, channels]
Block = tuple[slice, slice, torch.Tensor | None]  # queries, the keys they see, which of these each sees (None: causal)


class DenseMasks:
    """Counts the masks of all tokens by all tokens that passed here, by which a dry run knows that there was one."""

    made = 0


# Methods of a tensor that do not look at its elements.
OF_ITSELF = {
    torch.Tensor.data_ptr,
    torch.Tensor.dim,
    torch.Tensor.element_size,
    torch.Tensor.is_complex,
    torch.Tensor.is_floating_point,
    torch.Tensor.numel,
    torch.Tensor.size,
    torch.Tensor.untyped_storage,
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("device", "dtype", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta", "layout", "ndim",
                     "requires_grad", "shape")
    ),
}  # fmt: skip


class RowMask(torch.Tensor):
    """Stands for a mask of attention, bool [sequences, 1, tokens, tokens], without its bytes: each token sees those of
    its own row up to itself, the last `window` of them. Any operation on it, but to hand it on, is given the mask."""

    rows: list[list[int]]  # by sequence, the lengths of its rows, which lie one after the other
    window: int | None  # None: no row is longer
    calls: list[packed_attention.RowCall] | None  # see `row_calls`

    @staticmethod
    def build(rows: list[list[int]], window: int | None, device: torch.device | str = "cpu") -> RowMask:
        tokens = sum(rows[0])
        with _disable_current_modes():  # it is no more than a shape where nothing is computed, too
            none = torch.zeros((), dtype=torch.bool, device=device)
            made = none.expand(len(rows), 1, tokens, tokens).as_subclass(RowMask)
        made.rows = rows
        longest = max(max(lengths) for lengths in rows)
        made.window = window if window is not None and window < longest else None
        made.calls = None
        return made

    @property
    def is_causal(self) -> bool:
        """True if each sequence is one row, of which a token sees all before it."""
        return self.window is None and all(len(row) == 1 for row in self.rows)

    def row_calls(self) -> list[packed_attention.RowCall]:
        """The calls of a kernel that takes several rows, planned once for all layers."""
        if self.calls is None:
            with _disable_current_modes():
                self.calls = packed_attention.plan_calls(list(chain.from_iterable(self.rows)), self.device)
        return self.calls

    def dense(self) -> torch.Tensor:
        """The mask itself."""
        DenseMasks.made += 1
        with _disable_current_modes():
            numbers = torch.stack(
                [torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in self.rows]
            ).to(self.device)
            seen = (numbers[:, None, :, None] == numbers[:, None, None, :]).tril_()
            return seen if self.window is None else seen.triu_(1 - self.window)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in OF_ITSELF:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs or {})
        if function is torch.Tensor.__getitem__ and is_whole(args[0], args[1]):
            return args[0]
        return function(*densified(args), **densified(kwargs or {}))


def is_whole(mask: torch.Tensor, index: Any) -> bool:
    """True if slices leave a mask as it is: models cut it to as many keys as there are."""
    if not isinstance(index, tuple) or len(index) > mask.ndim:
        return False
    pairs = zip(index, mask.shape, strict=False)
    return all(isinstance(one, slice) and one.indices(size) == (0, size, 1) for one, size in pairs)


def densified(value: Any) -> Any:
    if isinstance(value, RowMask):
        return value.dense()
    if isinstance(value, list | tuple):
        return type(value)(densified(inner) for inner in value)
    if isinstance(value, dict):
        return {key: densified(inner) for key, inner in value.items()}
    return value


# ---- the mask, in place of the library's


def row_mask(*positional: Any, **said: Any) -> torch.Tensor | None:
    """Makes what `sdpa_mask` makes, but a RowMask of a mask that it knows. None: attention is causal, nothing more."""
    if not positional and not may_skip(said) and (known := find_mask(said)) is not None:
        return known
    made = sdpa_mask(*positional, **said)
    DenseMasks.made += made is not None
    return made  # type: ignore[no-any-return]


def may_skip(said: dict[str, Any]) -> bool:
    """True if the library may say None: that is best."""
    local = said.get("local_size")
    return bool(said.get("allow_is_causal_skip", True)) and (local is None or said["q_length"] < local)


def find_mask(said: dict[str, Any]) -> RowMask | None:
    """None: it is made otherwise than of rows, windows and chunks, or not for all tokens at once."""
    tokens = said["q_length"]
    offsets = said.get("q_offset", 0), said.get("kv_offset", 0)
    square = isinstance(tokens, int) and tokens == said["kv_length"] and offsets == (0, 0)
    if not square or said.get("attention_mask") is not None or said.get("use_vmap"):
        return None
    reach = library.reach(said.get("mask_function"))
    if reach is None or (reach.rows is not None and reach.rows.is_meta):  # where rows end follows from values
        return None
    with _disable_current_modes():
        rows = rows_of(reach, said["batch_size"], tokens)
    return RowMask.build(rows, reach.window, said.get("device", "cpu"))


def rows_of(reach: library.Reach, sequences: int, tokens: int) -> list[list[int]]:
    """The lengths of each sequence's rows; a chunk of a row is one."""
    begins = torch.zeros(sequences, tokens, dtype=torch.bool)
    begins[:, 0] = True
    numbers = [] if reach.rows is None else [reach.rows.cpu()]
    if reach.chunk is not None:
        positions = torch.arange(tokens)[None] if reach.positions is None else reach.positions.cpu()
        numbers.append(positions // reach.chunk)
    for number in numbers:
        begins[:, 1:] |= number[:, 1:] != number[:, :-1]
    lengths = []
    for sequence in begins:
        first = [*sequence.nonzero().view(-1).tolist(), tokens]
        lengths.append([after - before for before, after in zip(first[:-1], first[1:], strict=True)])
    return lengths


# ---- attention, in place of the library's


def row_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **said: Any,
) -> tuple[torch.Tensor, None]:
    """Attends as `sdpa_attention_forward` does, which it calls where the mask is no RowMask."""
    if not isinstance(attention_mask, RowMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **said)
    states = query, key, value
    if not serves(attention_mask, states, said):
        return sdpa_attention_forward(module, *states, attention_mask.dense(), **said)
    if not attention_mask.is_causal and packed_attention.can_attend(states, said):
        calls = attention_mask.row_calls()
        return packed_attention.attend(states, calls, attention_mask.window, said.get("scaling")), None
    said["is_causal"] = True

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, **said)[0]

    return attend_by_sequence(kernel, states, attention_mask), None


def serves(mask: RowMask, states: States, said: dict[str, Any]) -> bool:
    """True if attention may run row by row. Dropout is drawn once, and blocks of queries run again in backward."""
    sequences, tokens = mask.shape[0], mask.shape[-1]
    alike = all(state.shape[0] == sequences and state.shape[2] == tokens for state in states)
    again = mask.window is not None and said.get("dropout", 0.0) > 0
    return alike and not again and said.get("position_bias") is None


def attend_by_sequence(kernel: Kernel, states: States, mask: RowMask) -> torch.Tensor:
    """Sequences with rows of the same lengths run together."""
    first, *others = mask.rows
    if all(other == first for other in others):
        return attend_rows(kernel, states, first, mask.window)
    apart = zip(*(state.split(1) for state in states), strict=True)
    return torch.cat([attend_rows(kernel, *each, mask.window) for each in zip(apart, mask.rows, strict=True)])


def attend_rows(kernel: Kernel, states: States, lengths: list[int], window: int | None) -> torch.Tensor:
    """Cut by `split`, whose backward pass joins all gradients at once."""
    rows = zip(*(state.split(lengths, dim=2) for state in states), strict=True)
    outputs = [
        kernel(*row, None) if window is None or length <= window else Windowed.apply(kernel, window, *row)
        for row, length in zip(rows, lengths, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class Windowed(torch.autograd.Function):
    """A row longer than its window, by blocks of queries. Of these backward finds nothing kept: each runs again, so
    that there is one block's mask at a time, and gradients of keys that several blocks see are added in fp32."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, window: int, *states: torch.Tensor) -> torch.Tensor:
        ctx.kernel, ctx.window = kernel, window
        ctx.save_for_backward(*states)
        return torch.cat([kernel(*part(states, block), block[2]) for block in blocks(window, states[0])], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        states = ctx.saved_tensors
        sums = [torch.zeros(state.shape, dtype=torch.float32, device=state.device) for state in states]
        for block in blocks(ctx.window, states[0]):
            with torch.enable_grad():
                leaves = [state.detach().requires_grad_() for state in part(states, block)]
                output = ctx.kernel(*leaves, block[2])
            gradients = torch.autograd.grad(output, leaves, gradient[:, block[0]])
            for total, one in zip(part(sums, block), gradients, strict=True):
                total += one
        return None, None, *(total.to(state.dtype) for total, state in zip(sums, states, strict=True))


def part(states: States, block: Block) -> list[torch.Tensor]:
    queries, keys, _ = block
    return [states[0][:, :, queries], states[1][:, :, keys], states[2][:, :, keys]]


def blocks(window: int, query: torch.Tensor) -> Iterator[Block]:
    """The blocks of a row. Its first `window` tokens see all before them; further on blocks follow from the window
    alone, whatever memory there is."""
    tokens = query.shape[2]
    yield slice(0, window), slice(0, window), None
    size = min(max(window, LEAST_QUERIES), MOST_QUERIES)
    for first in range(window, tokens, size):
        queries, keys = slice(first, min(first + size, tokens)), slice(first - window + 1, min(first + size, tokens))
        seen = torch.ones(queries.stop - first, keys.stop - keys.start, dtype=torch.bool, device=query.device)
        yield queries, keys, seen.tril_(window - 1).triu_()[None, None]


# ---- models that have it


AttentionInterface.register(NAME, row_attention)
AttentionMaskInterface.register(NAME, row_mask)


def attend_by_row(model: PreTrainedModel) -> None:
    """From here on, where the library's scaled_dot_product_attention is the model's own and nothing else follows from
    its name."""
    config = text_config(model.config)
    if config._attn_implementation == "sdpa" and not asks_for_the_name(model):
        config._attn_implementation = NAME


def asks_for_the_name(model: nn.Module) -> bool:
    names = {type(module).__module__ for module in model.modules()}
    return any(code_asks(name) for name in names if name.startswith("transformers.models."))


@functools.cache
def code_asks(module: str) -> bool:
    """True if a file of the library's models does something else where attention is called `sdpa`."""
    if module.split(".")[2] in INDIFFERENT:
        return False
    try:
        return ASKS.search(inspect.getsource(sys.modules[module])) is not None
    except OSError:  # there is no source to look at
        return True


def grows_linearly(model: nn.Module, packing: bool) -> bool:
    """True if attention's memory grows with the tokens of a sequence, not with their square. The kernels' names decide;
    DenseMasks counts masks that are made all the same."""
    name = getattr(text_config(getattr(model, "config", None)), "_attn_implementation", None)
    return name == NAME or (name == "sdpa" and not packing)


def attention_width(config: Any) -> int:
    """Elements of a token that a layer has at once in attention's backward pass: queries, keys, values and their
    gradients, the output and its gradient, and the hidden state's. Of layers that do not say so, the last."""
    config = text_config(config)
    hidden, heads = int(getattr(config, "hidden_size", 0) or 0), int(getattr(config, "num_attention_heads", 0) or 0)
    if not heads:
        return hidden
    size = int(getattr(config, "head_dim", None) or hidden // heads)
    keys = int(getattr(config, "num_key_value_heads", None) or heads)
    return hidden + 4 * size * (heads + keys)
