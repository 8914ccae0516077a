"""What lies between a model's parts, found by running it without its layers.

The runs are short and on zeros that take no memory (`Skeleton.stand_ins`), so they cost the same for any size. What
they cannot tell, that numbers are those of the library, is proven on a small copy (`probe`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from spillway.errors import InputError
from spillway.model.after_layers import head_input, transformed_logits
from spillway.model.layer_arguments import Recording, record
from spillway.model.meta_model import Skeleton
from spillway.model.microbatch import MicroBatch
from spillway.model.model_code import LONGEST_FORM, refusal
from spillway.model.nested import same, tensors_in
from spillway.model.source import first_line, is_multimodal

ROWS, LENGTH = 2, 3


def outline(skeleton: Skeleton) -> None:
    """Fills in what `Skeleton` says of entry, tail and head. InputError when the layers do not follow one another."""
    layers = {id(p) for layer in skeleton.layers for p in layer.parameters()}
    tables = {id(skeleton.embedding.weight), id(skeleton.head.weight)}
    outer = [p for p in skeleton.model.parameters() if id(p) not in layers | tables]
    if tables & layers:
        raise refused(skeleton, "its layers share a table with the embedding or the head")
    batch = any_batch()
    with skeleton.stand_ins(outer) as leaves, torch.random.fork_rng(devices=[]), torch.enable_grad():
        recording = first_form(skeleton, batch, [])
        if is_multimodal(skeleton.config):
            carry(skeleton, batch, recording, outer, leaves)
            kept = [place for place, p in enumerate(outer) if all(p is not other for other in skeleton.carried)]
            outer, leaves = [outer[place] for place in kept], [leaves[place] for place in kept]
        look_at_entry(skeleton, batch, recording, outer, leaves)
        look_at_tail(skeleton, batch, recording, outer)
        look_at_head(skeleton)


def any_batch() -> MicroBatch:
    none = torch.empty(0, dtype=torch.int64)
    return MicroBatch(0, 0, ROWS, LENGTH, None, none, none)


def ids_of(skeleton: Skeleton, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, skeleton.vocabulary, (ROWS * LENGTH,), generator=generator)


def rows_of(skeleton: Skeleton, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS * LENGTH, skeleton.columns, generator=generator).to(skeleton.dtype)
    return rows.requires_grad_()


def first_form(skeleton: Skeleton, batch: MicroBatch, errors: list[Exception]) -> Recording:
    """Tries what a layer may return until the model takes it."""
    for form in (None, *range(1, LONGEST_FORM + 1)):
        skeleton.form = form
        try:
            recording = record(skeleton, batch, ids_of(skeleton, 1), rows_of(skeleton, 1))
            head_input(skeleton, batch, torch.zeros_like(recording.first))
            return recording
        except Exception as error:  # a model's own code, on something it may not expect
            if os.environ.get("SPILLWAY_DEBUG"):
                raise
            errors.append(error)
    reasons = [error for error in errors if isinstance(error, InputError)]
    if reasons:
        raise reasons[0]
    raise refused(skeleton, f"its code cannot be run without its layers: {first_line(errors[0])}")


def refused(skeleton: Skeleton, reason: str) -> InputError:
    return refusal(skeleton.config.model_type, reason)


def carry(
    skeleton: Skeleton, batch: MicroBatch, recording: Recording, outer: list[nn.Parameter], leaves: list[torch.Tensor]
) -> None:
    """Sets apart what text alone never passes: towers of other modalities, and what joins them to the text."""
    head = {id(skeleton.head.bias)}
    apart = {id(p) for p in outer if id(p) not in head and skeleton.is_apart(skeleton.names[id(p)])}
    reached = set(leaves_behind([*given_to_layers(recording), *given_by_tail(skeleton, batch, recording)]))
    unknown = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) not in reached and id(p) not in head]
    silent = set(map(id, silent_entry(skeleton, batch, [p for p in unknown if id(p) not in apart])))
    skeleton.carried = [p for p in unknown if id(p) not in silent]
    for parameter in outer:
        if id(parameter) in apart:
            parameter.requires_grad_(False)
    skeleton.hang(skeleton.carried, skeleton.carried)
    try:
        made = record(skeleton, batch, ids_of(skeleton, 1), rows_of(skeleton, 1))
        if any(tensor.is_meta for tensor in [*given_to_layers(made), *given_by_tail(skeleton, batch, made)]):
            raise refused(skeleton, "text passes through what belongs to other modalities")
    except InputError:
        raise
    except Exception as error:
        raise refused(skeleton, f"text passes through other modalities: {first_line(error)}") from error


def given_to_layers(recording: Recording) -> list[torch.Tensor]:
    return [recording.first, *(t for call in recording.calls for t in tensors_in([call.positional, call.keywords]))]


def given_by_tail(skeleton: Skeleton, batch: MicroBatch, recording: Recording) -> list[torch.Tensor]:
    """What the head is given, and what the model makes of what the head gives."""
    logits = torch.zeros(1, LENGTH, skeleton.head.weight.shape[0], dtype=skeleton.dtype)
    return [head_input(skeleton, batch, torch.zeros_like(recording.first)), transformed_logits(skeleton, logits)]


def look_at_entry(
    skeleton: Skeleton, batch: MicroBatch, recording: Recording, outer: list[nn.Parameter], leaves: list[torch.Tensor]
) -> None:
    given = given_to_layers(recording)
    used = set(leaves_behind(given))
    skeleton.entry = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) in used]
    used |= set(leaves_behind([head_input(skeleton, batch, torch.zeros_like(recording.first))]))
    unknown = [p for p, leaf in zip(outer, leaves, strict=True) if id(leaf) not in used]
    skeleton.entry += silent_entry(skeleton, batch, unknown)
    other = record(skeleton, batch, ids_of(skeleton, 2), rows_of(skeleton, 2))
    carries = any(t.requires_grad for t in given[1:])
    alike = all(same([a.positional, a.keywords], [b.positional, b.keywords])
                for a, b in zip(recording.calls, other.calls, strict=True))  # fmt: skip
    straight = recording.first is recording.embedded and type(skeleton.embedding) is nn.Embedding
    skeleton.simple_entry = straight and alike and not carries and not skeleton.entry
    skeleton.width = max(recording.first.numel() // batch.tokens, skeleton.columns, skeleton.head_columns)


def silent_entry(skeleton: Skeleton, batch: MicroBatch, unknown: list[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters of the way in that get no gradient (fixed position tables): without bytes it cannot be run."""
    found = []
    for parameter in unknown:
        owner, name = skeleton.places[id(parameter)][0]
        leaf = owner._parameters[name]
        assert leaf is not None
        skeleton.hang([parameter], [parameter])
        try:
            made = record(skeleton, batch, ids_of(skeleton, 1), rows_of(skeleton, 1))
            given = [made.first, *(t for c in made.calls for t in tensors_in([c.positional, c.keywords]))]
            if any(tensor.is_meta for tensor in given):
                found.append(parameter)
        except Exception:  # it is used
            found.append(parameter)
        finally:
            skeleton.hang([parameter], [leaf])
    return found


def look_at_tail(skeleton: Skeleton, batch: MicroBatch, recording: Recording, outer: list[nn.Parameter]) -> None:
    entry = {id(p) for p in skeleton.entry}
    skeleton.tail = [p for p in outer if id(p) not in entry]
    last = torch.randn_like(recording.first).detach()
    straight = last.shape[-1] == skeleton.head_columns and last.dim() == 3
    if not skeleton.tail:
        skeleton.simple_tail = straight and torch.equal(head_input(skeleton, batch, last), last)
        return
    norm = common_owner(skeleton, skeleton.tail)
    if norm is None or not straight or norm is skeleton.head:
        return
    seen: list[Any] = []
    made = torch.randn_like(last)

    def forward(*positional: Any, **keywords: Any) -> torch.Tensor:
        seen.append((positional, keywords))
        return made

    norm.forward = forward  # type: ignore[method-assign]
    try:
        found = head_input(skeleton, batch, last)
    except Exception:  # the module is no function of one tensor
        return
    finally:
        del norm.forward
    if len(seen) == 1 and len(seen[0][0]) == 1 and seen[0][0][0] is last and not seen[0][1]:
        skeleton.simple_tail = torch.equal(found, made)
        skeleton.norm = norm if skeleton.simple_tail else None


def look_at_head(skeleton: Skeleton) -> None:
    if skeleton.head.bias is not None or type(skeleton.head) is not nn.Linear:
        return
    logits = torch.randn(1, LENGTH, skeleton.head.weight.shape[0]).to(skeleton.dtype) * 30
    skeleton.simple_head = torch.equal(transformed_logits(skeleton, logits).to(logits.dtype), logits)


def common_owner(skeleton: Skeleton, parameters: list[nn.Parameter]) -> nn.Module | None:
    """The innermost module that owns all of them and nothing of the layers."""
    names = [skeleton.names[id(p)].split(".")[:-1] for p in parameters]
    common = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    module = skeleton.model.get_submodule(".".join(common))
    layers = {id(layer) for layer in skeleton.layers}
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
