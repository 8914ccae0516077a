"""Verifies that a model may be streamed: a tiny copy with the same flags, run both ways.

The copy keeps every setting of the configuration and reduces sizes alone. Its loss and every gradient through the
stream are compared with the library's own forward and backward pass, in fp32. A model that does anything the stream
does not know of (scales, caps, shares, skips) differs and is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from spillway._engine import Training
from spillway.errors import InputError, first_line
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED, Work, arrange
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.meta.building import build, find_layers
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.layer_arguments import LayerArguments
from spillway.model.meta.meta_model import MetaModel, pattern
from spillway.model.meta.on_meta import from_config, widen, without_carried
from spillway.model.source.library import find_fp32_names
from spillway.model.source.model_code import call_model, refusal
from spillway.model.source.own import OwnConfig
from spillway.model.source.positions import Positions, find_positions
from spillway.model.source.tiny_copy import LENGTH, VOCABULARY, tiny_copy
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.stream import Stream
from spillway.model.stream.tile_search import UNLIKE, find_idle, find_modules, layer_calls
from spillway.model.stream.unneeded import find_unneeded
from spillway.model.verify.saved_equivalence import why_not_kept

TOLERANCE = 1e-4  # relative to the largest element of a gradient; what is right differs by 1e-6
NOISE = 1e-7  # of the model's largest gradient: some are zero but for rounding (the bias of keys)
TILE = 5  # tokens, of the tiles that are tried: they end where no row does

# Errors of a model whose configuration has values that do not go together, or of another type.
WRONG = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# Why nothing runs in tiles of tokens, as the end of a sentence.
ROUTERS = "the loss of its routers is made of all tokens together"
NONE_FOUND = "no part of its layers was found to treat each token by itself"


@dataclass(frozen=True)
class Equivalence:
    unneeded: frozenset[str]  # linear layers, by name within a layer, that backward need not compute again
    unused: frozenset[str] = frozenset()  # parameters that get no gradient, see meta_model.pattern
    not_kept: str = ""  # why no layer may keep what autograd saves, as the end of a sentence; empty: layers may
    tiles: TokenTiles = ALL_AT_ONCE  # what may run in tiles of tokens, of whatever size
    positions: Positions | None = None  # positions of the whole model; None: rows may have any length


def verify_equivalence(config: PreTrainedConfig | OwnConfig, packing: bool = False) -> Equivalence:
    """InputError, naming the model type, when a small model of this configuration does not stream exactly.

    `packing`: verify, too, that it keeps the rows of a packed sequence apart. This is done without the linear
    layers that it says backward need not compute again.
    """
    kind = config.model_type
    try:
        small = config.smaller() if isinstance(config, OwnConfig) else tiny_copy(config)
        meta_model = build(copy.deepcopy(small), torch.float32)
        model = plain_model(small, meta_model.carried_names)
    except InputError:
        raise
    except Exception as error:  # a constructor that cannot cope with the small sizes
        raise refusal(kind, f"no tiny copy of it can be built to verify the stream: {first_line(error)}") from error
    if meta_model.routers is not None:
        meta_model.routers.coefficient = 1.0  # so that it shows
    with one_thread():
        try:
            refuse_sight_of_later_tokens(model, kind)
        except InputError:
            raise
        except WRONG as error:  # tensors without bytes, sizes that do not match, a value of another type
            why = "text passes through other modalities" if meta_model.carried else "transformers cannot compute it"
            raise refusal(kind, f"{why}: {first_line(error)}") from error
        plain, packed = (sample(several, meta_model.vocabulary) for several in (False, True))
        unneeded = unneeded_in(meta_model, model, plain)
        compare(meta_model, model, plain, kind, unneeded)
        tiles = tiles_in(meta_model, model, plain, kind, unneeded)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        not_kept = why_not_kept(meta_model, parameters, plain, unneeded)
        if not not_kept and tiles.modules:
            not_kept = why_not_kept(meta_model, parameters, plain, unneeded, tiles)
        if packing:
            without_routers(meta_model, model)  # they look at all rows together
            refuse_joined_rows(meta_model, model, packed, kind, unneeded)
        used = {pattern(name) for name, parameter in parameters.items() if parameter.grad is not None}
        unused = {pattern(name) for name in parameters} - used
        positions = find_tiny_positions(config, model, meta_model.carried_names)
    return Equivalence(unneeded, frozenset(unused), not_kept, tiles, positions)


def find_tiny_positions(
    config: PreTrainedConfig | OwnConfig, model: PreTrainedModel, carried: Collection[str]
) -> Positions | None:
    """`model`: that of a tiny copy, with parameters named `carried` on meta."""
    if isinstance(config, OwnConfig):  # a small module of its own may have a table of the same size
        return None
    return find_positions(config, model, lambda small: plain_model(small, carried))


def verify_mixed_types(config: PreTrainedConfig | OwnConfig, dtype: torch.dtype) -> None:
    """Verifies a model that keeps parameters in fp32 beside `dtype`: InputError where the library's own code cannot
    compute so, or carries fp32 from layer to layer, where a stream carries `dtype`."""
    assert not isinstance(config, OwnConfig), "its modules are all of one type"
    name, kind = str(dtype).removeprefix("torch."), config.model_type
    small = tiny_copy(config)
    meta_model = build(copy.deepcopy(small), dtype)
    model = random_model(small, dtype, meta_model.carried_names)
    widen(model, find_fp32_names(model, dtype))
    types: set[torch.dtype] = set()
    for layer in find_layers(model, kind):
        layer.register_forward_hook(lambda _, __, output: types.update(t.dtype for t in [first_tensor(output)]))
    ids = torch.arange(LENGTH)[None] % meta_model.vocabulary
    try:
        with one_thread():
            call_model(model, ids).logits.float().sum().backward()
    except RuntimeError as error:
        raise refusal(
            kind, f"the library's own code mixes fp32 and {name}: {first_line(error)}; compute_dtype: fp32 works"
        ) from error
    if types - {dtype}:
        raise refusal(kind, f"its layers give fp32 beside {name}; compute_dtype: fp32 works")


def first_tensor(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]  # type: ignore[no-any-return]


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny tensors are slower on several threads, many times so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def plain_model(config: PreTrainedConfig | OwnConfig, carried: Collection[str] = ()) -> PreTrainedModel:
    """The library's own model with random weights, from a fixed seed; parameters named `carried` stay on meta."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = random_model(config, torch.float32, carried)
        with torch.no_grad():
            for parameter in (p for p in model.parameters() if not p.is_meta):  # away from zeros and ones of norms
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def random_model(config: PreTrainedConfig | OwnConfig, dtype: torch.dtype, carried: Collection[str]) -> PreTrainedModel:
    if carried and not isinstance(config, OwnConfig):
        return without_carried(config, dtype, carried)
    return from_config(config, dtype)


def sample(packed: bool, vocabulary: int = VOCABULARY) -> Work:
    """Two micro-batches of different shape, some tokens without a label."""
    generator = torch.Generator().manual_seed(20)
    batches = []
    for rows, length in ((2, LENGTH), (1, LENGTH - 3)):
        ids = torch.randint(0, vocabulary, (rows, length), generator=generator)
        labels = ids.clone()
        labels[0, 4] = IGNORED
        positions = None
        if packed:
            positions = torch.cat([torch.arange(5), torch.arange(length - 5)]).expand(rows, length)
            labels[:, 5] = IGNORED
        batches.append(Batch(ids, labels, positions, rows * length))
    return arrange(batches)


def unneeded_in(meta_model: MetaModel, model: PreTrainedModel, work: Work) -> frozenset[str]:
    if not meta_model.simple_entry:  # what a layer is given is made of weights: its gradients are not looked at here
        return frozenset()
    batch = work.micro_batches[0]
    hidden = torch.linspace(-1, 1, batch.tokens * meta_model.hidden_size).sin()
    hidden = hidden.view(batch.rows, batch.length, meta_model.hidden_size)
    (recording,) = LayerArguments(meta_model).record([batch])
    if recording.passed:
        return frozenset()
    return find_unneeded(list_layers(meta_model, model), recording.calls, hidden)


def list_layers(meta_model: MetaModel, model: PreTrainedModel) -> list[nn.Module]:
    """The layers of the library's own model that the meta model's stand for."""
    names = {id(module): name for name, module in meta_model.model.named_modules()}
    return [model.get_submodule(names[id(layer)]) for layer in meta_model.layers]


def tiles_in(
    meta_model: MetaModel, model: PreTrainedModel, work: Work, kind: str, unneeded: Collection[str]
) -> TokenTiles:
    """The modules of the layers that run in tiles of tokens and give the same gradients; the head does in any case."""
    if meta_model.routers is not None:
        return TokenTiles(TILE, why=ROUTERS)
    batch, other = work.micro_batches[0], copy.deepcopy(model)  # whose gradients nobody looks at
    layers, ids = list_layers(meta_model, other), work.ids_of(batch).view(batch.rows, batch.length)
    tiles = TokenTiles(TILE, find_modules(layers, batch.tokens, lambda: call_model(other, ids)))
    if tiles.modules and (calls := layer_calls(layers, lambda: call_model(other, ids))) is not None:
        tiles = find_idle(tiles, layers, *calls, batch.tokens)
    if not tiles.modules:
        return replace(tiles, why=NONE_FOUND)
    try:
        compare(meta_model, model, work, kind, unneeded, tiles)
    except (InputError, *UNLIKE) as error:
        return TokenTiles(TILE, why=f"in tiles its gradients are other ones ({first_line(error)})")
    return tiles


def compare(
    meta_model: MetaModel,
    model: PreTrainedModel,
    work: Work,
    kind: str,
    unneeded: Collection[str],
    tiles: TokenTiles = ALL_AT_ONCE,
) -> None:
    size = WorkSize(len(work.micro_batches), work.tokens)
    description = describe(meta_model, size, "fp32")
    engine = PlainEngine(description, chunk_elements=64 * description.hidden_size)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    copy_buffers(model, meta_model.model)
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(parameters[tensor.name].detach())
    stream = Stream(meta_model, engine, 0, unneeded, tiles=tiles)
    try:
        outcome = stream.step(work)
    finally:
        stream.close()
    expected = plain_loss(model, work)
    if not close(torch.tensor(outcome.loss_sum), torch.tensor(expected)):
        both = f"{outcome.loss_sum:.6g} in the stream, {expected:.6g} in transformers"
        raise refusal(kind, f"the loss of a small copy is {both}")
    largest = max(float(p.grad.abs().max()) for p in parameters.values() if p.grad is not None)
    for number, tensor in enumerate(engine.tensors):
        if tensor.training is Training.frozen:
            continue
        plain = parameters[tensor.name].grad
        if not close(engine.gradients.get(number, torch.zeros(tensor.shape)), plain, largest * NOISE):
            raise refusal(kind, f"the gradient of {tensor.name} in a small copy differs from transformers' own")


def refuse_joined_rows(
    meta_model: MetaModel, model: PreTrainedModel, work: Work, kind: str, unneeded: Collection[str]
) -> None:
    """InputError if rows in one sequence see each other. Such a model may still stream without packing."""
    try:
        compare(meta_model, model, work, kind, unneeded)
    except (InputError, *UNLIKE) as error:
        raise InputError(
            f"packing: {kind} does not keep the rows of a packed sequence apart, so that one row would change another; "
            "leave packing out, and in a Trainer padding_free or a collator that flattens rows"
        ) from error


def without_routers(meta_model: MetaModel, model: PreTrainedModel) -> None:
    """Without their auxiliary loss from here on."""
    if meta_model.routers is not None:
        meta_model.routers = None
        model.config.output_router_logits = False


def refuse_sight_of_later_tokens(model: PreTrainedModel, kind: str) -> None:
    """Padding on the right, and the loss itself, ask that no token sees a later one: an encoder does."""
    ids = torch.arange(3, 3 + LENGTH)[None] % model.get_input_embeddings().num_embeddings
    other = ids.clone()
    other[0, -1] = 1
    with torch.no_grad():
        one, two = (call_model(model, each).logits[0, :-1] for each in (ids, other))
    if not close(one, two):
        raise refusal(kind, "as configured, its tokens see later ones (is_decoder, for the types that have it)")


def copy_buffers(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Copies the buffers that checkpoints hold; the library's own rule makes the others."""
    for name in target.state_dict().keys() & dict(target.named_buffers()).keys():
        target.get_buffer(name).copy_(source.get_buffer(name))


def plain_loss(model: PreTrainedModel, work: Work) -> float:
    """Summed loss, every packed row by itself; leaves the gradients of the mean loss in the model."""
    model.zero_grad()
    total = 0.0
    for batch in work.micro_batches:
        labels = torch.full((batch.tokens,), IGNORED)
        labels[batch.labelled] = batch.labels
        labels = labels.view(batch.rows, batch.length)
        ids = batch.part(work.ids).view(batch.rows, batch.length)
        for part in split_rows(batch.position_ids, batch.length):
            result = call_model(model, ids[:, part])
            logits = result.logits.flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(logits, labels[:, part].flatten(), reduction="sum")
            loss = loss / work.units + auxiliary(model, result)
            loss.backward()
            total += float(loss.detach()) * work.units
    return total


def auxiliary(model: PreTrainedModel, result: Any) -> Any:
    """The auxiliary loss of the model's routers, where its configuration asks for it: with a coefficient of 1."""
    asked = getattr(getattr(model, "config", None), "output_router_logits", False)
    if not asked or getattr(result, "aux_loss", None) is None:
        return 0.0
    return result.aux_loss


def split_rows(position_ids: torch.Tensor | None, length: int) -> list[slice]:
    """The bounds of a packed sequence's rows; all sequences of a micro-batch are packed alike."""
    starts = [0] if position_ids is None else (position_ids[0] == 0).nonzero().view(-1).tolist()
    return [slice(first, last) for first, last in zip(starts, [*starts[1:], length], strict=True)]


def close(one: torch.Tensor, other: torch.Tensor | None, noise: float = 0.0) -> bool:
    if other is None:
        return not bool(one.any())
    within = TOLERANCE * float(other.abs().max()) + noise
    return bool(torch.isfinite(one).all()) and bool((one - other).abs().max() <= within)
