"""Connections between a model's parts, observed by running it without its layers.

The runs are short and on zeros that take no memory (`MetaModel.stand_ins`), so they cost the same for any size. What
they cannot tell, that numbers are those of the library, is verified on a tiny copy (`equivalence`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from spillway.errors import InputError, first_line
from spillway.model.batches.microbatch import MicroBatch
from spillway.model.layers.nested import same, tensors_in
from spillway.model.meta.after_layers import head_input, transformed_logits
from spillway.model.meta.layer_arguments import Recording, record
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.model_code import LONGEST_FORM, refusal
from spillway.model.source.source import is_multimodal

ROWS, LENGTH = 2, 3


def outline(meta_model: MetaModel) -> None:
    """Fills in what `MetaModel` says of entry, tail and head. InputError when the layers do not follow one another."""
    layers = {id(p) for layer in meta_model.layers for p in layer.parameters()}
    tables = {id(meta_model.embedding.weight), id(meta_model.head.weight)}
    outer = [p for p in meta_model.model.parameters() if id(p) not in layers | tables]
    if tables & layers:
        raise refused(meta_model, "its layers share a table with the embedding or the head")
    batch = any_batch()
    with meta_model.stand_ins(outer) as leaves, torch.random.fork_rng(devices=[]), torch.enable_grad():
        recording = first_form(meta_model, batch, [])
        if is_multimodal(meta_model.config):
            carry(meta_model, batch, recording, outer, leaves)
            kept = [place for place, p in enumerate(outer) if all(p is not other for other in meta_model.carried)]
            outer, leaves = [outer[place] for place in kept], [leaves[place] for place in kept]
        look_at_entry(meta_model, batch, recording, outer, leaves)
        look_at_tail(meta_model, batch, recording, outer)
        look_at_head(meta_model)


def any_batch() -> MicroBatch:
    none = torch.empty(0, dtype=torch.int64)
    return MicroBatch(0, 0, ROWS, LENGTH, None, none, none)


def ids_of(meta_model: MetaModel, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, meta_model.vocabulary, (ROWS * LENGTH,), generator=generator)


def rows_of(meta_model: MetaModel, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS * LENGTH, meta_model.columns, generator=generator).to(meta_model.dtype)
    return rows.requires_grad_()


def first_form(meta_model: MetaModel, batch: MicroBatch, errors: list[Exception]) -> Recording:
    """Tries what a layer may return until the model takes it."""
    for form in (None, *range(1, LONGEST_FORM + 1)):
        meta_model.form = form
        try:
            recording = record(meta_model, batch, ids_of(meta_model, 1), rows_of(meta_model, 1))
            head_input(meta_model, batch, torch.zeros_like(recording.first))
            return recording
        except Exception as error:  # a model's own code, on something it may not expect
            if os.environ.get("SPILLWAY_DEBUG"):
                raise
            errors.append(error)
    reasons = [error for error in errors if isinstance(error, InputError)]
    if reasons:
        raise reasons[0]
    raise refused(meta_model, f"its code cannot be run without its layers: {first_line(errors[0])}")


def refused(meta_model: MetaModel, reason: str) -> InputError:
    return refusal(meta_model.config.model_type, reason)


def carry(
    meta_model: MetaModel,
    batch: MicroBatch,
    recording: Recording,
    outer: list[nn.Parameter],
    leaves: list[torch.Tensor],
) -> None:
    """Sets apart what text alone never passes: towers of other modalities, and what joins them to the text."""
    head = {id(meta_model.head.bias)}
    apart = {id(p) for p in outer if id(p) not in head and meta_model.is_apart(meta_model.names[id(p)])}
    reached = set(
        leaves_behind([*collect_layer_inputs(recording), *collect_tail_outputs(meta_model, batch, recording)])
    )
    unknown = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) not in reached and id(p) not in head]
    silent = set(map(id, silent_entry(meta_model, batch, [p for p in unknown if id(p) not in apart])))
    meta_model.carried = [p for p in unknown if id(p) not in silent]
    for parameter in outer:
        if id(parameter) in apart:
            parameter.requires_grad_(False)
    meta_model.attach(meta_model.carried, meta_model.carried)
    try:
        made = record(meta_model, batch, ids_of(meta_model, 1), rows_of(meta_model, 1))
        if any(
            tensor.is_meta for tensor in [*collect_layer_inputs(made), *collect_tail_outputs(meta_model, batch, made)]
        ):
            raise refused(meta_model, "text passes through what belongs to other modalities")
    except InputError:
        raise
    except Exception as error:
        raise refused(meta_model, f"text passes through other modalities: {first_line(error)}") from error


def collect_layer_inputs(recording: Recording) -> list[torch.Tensor]:
    return [recording.first, *(t for call in recording.calls for t in tensors_in([call.positional, call.keywords]))]


def collect_tail_outputs(meta_model: MetaModel, batch: MicroBatch, recording: Recording) -> list[torch.Tensor]:
    """The input of the head, and the model's use of the head's output."""
    logits = torch.zeros(1, LENGTH, meta_model.head.weight.shape[0], dtype=meta_model.dtype)
    return [head_input(meta_model, batch, torch.zeros_like(recording.first)), transformed_logits(meta_model, logits)]


def look_at_entry(
    meta_model: MetaModel,
    batch: MicroBatch,
    recording: Recording,
    outer: list[nn.Parameter],
    leaves: list[torch.Tensor],
) -> None:
    given = collect_layer_inputs(recording)
    used = set(leaves_behind(given))
    meta_model.entry = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) in used]
    used |= set(leaves_behind([head_input(meta_model, batch, torch.zeros_like(recording.first))]))
    unknown = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) not in used]
    meta_model.entry += silent_entry(meta_model, batch, unknown)
    other = record(meta_model, batch, ids_of(meta_model, 2), rows_of(meta_model, 2))
    carries = any(t.requires_grad for t in given[1:])
    alike = all(same([a.positional, a.keywords], [b.positional, b.keywords])
                for a, b in zip(recording.calls, other.calls, strict=True))  # fmt: skip
    straight = recording.first is recording.embedded and type(meta_model.embedding) is nn.Embedding
    meta_model.simple_entry = straight and alike and not carries and not meta_model.entry
    meta_model.width = max(recording.first.numel() // batch.tokens, meta_model.columns, meta_model.head_columns)


def silent_entry(meta_model: MetaModel, batch: MicroBatch, unknown: list[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters of the way in that get no gradient (fixed position tables): without bytes it cannot be run."""
    silent = []
    for parameter in unknown:
        owner, name = meta_model.places[id(parameter)][0]
        leaf = owner._parameters[name]
        assert leaf is not None
        meta_model.attach([parameter], [parameter])
        try:
            made = record(meta_model, batch, ids_of(meta_model, 1), rows_of(meta_model, 1))
            given = [made.first, *(t for c in made.calls for t in tensors_in([c.positional, c.keywords]))]
            if any(tensor.is_meta for tensor in given):
                silent.append(parameter)
        except Exception:  # it is used
            silent.append(parameter)
        finally:
            meta_model.attach([parameter], [leaf])
    return silent


def look_at_tail(meta_model: MetaModel, batch: MicroBatch, recording: Recording, outer: list[nn.Parameter]) -> None:
    entry = {id(p) for p in meta_model.entry}
    meta_model.tail = [p for p in outer if id(p) not in entry]
    last = torch.randn_like(recording.first).detach()
    straight = last.shape[-1] == meta_model.head_columns and last.dim() == 3
    if not meta_model.tail:
        meta_model.simple_tail = straight and torch.equal(head_input(meta_model, batch, last), last)
        return
    norm = common_owner(meta_model, meta_model.tail)
    if norm is None or not straight or norm is meta_model.head:
        return
    seen: list[Any] = []
    made = torch.randn_like(last)

    def forward(*positional: Any, **keywords: Any) -> torch.Tensor:
        seen.append((positional, keywords))
        return made

    norm.forward = forward  # type: ignore[method-assign]
    try:
        hidden = head_input(meta_model, batch, last)
    except Exception:  # the module is no function of one tensor
        return
    finally:
        del norm.forward
    if len(seen) == 1 and len(seen[0][0]) == 1 and seen[0][0][0] is last and not seen[0][1]:
        meta_model.simple_tail = torch.equal(hidden, made)
        meta_model.norm = norm if meta_model.simple_tail else None


def look_at_head(meta_model: MetaModel) -> None:
    if meta_model.head.bias is not None or type(meta_model.head) is not nn.Linear:
        return
    logits = torch.randn(1, LENGTH, meta_model.head.weight.shape[0]).to(meta_model.dtype) * 30
    meta_model.simple_head = torch.equal(transformed_logits(meta_model, logits).to(logits.dtype), logits)


def common_owner(meta_model: MetaModel, parameters: list[nn.Parameter]) -> nn.Module | None:
    """The innermost module that owns all of them and nothing of the layers."""
    names = [meta_model.names[id(p)].split(".")[:-1] for p in parameters]
    common = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    module = meta_model.model.get_submodule(".".join(common))
    layers = {id(layer) for layer in meta_model.layers}
    return None if any(id(inner) in layers for inner in module.modules()) else module


def leaves_behind(tensors: list[torch.Tensor]) -> Iterator[int]:
    """Identities of the leaves that the values of these tensors were made of."""
    waiting = [t.grad_fn for t in tensors if t.grad_fn is not None]
    yield from (id(t) for t in tensors if t.is_leaf)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield id(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
