"""The proof that a model may be streamed: a small copy with the same flags, run both ways.

The copy keeps every setting of the configuration and shrinks sizes alone. Its loss and every gradient through the
stream are compared with the library's own forward and backward pass, in fp32. A model that does anything the stream
does not know of (scales, caps, shares, skips) differs and is refused by name.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from spillway.errors import InputError
from spillway.hf.bare import BareEngine
from spillway.hf.describe import WorkSize, describe
from spillway.hf.microbatch import IGNORED, Work, arrange
from spillway.hf.prologue import record
from spillway.hf.skeleton import Skeleton, build, refusal
from spillway.hf.source import first_line
from spillway.hf.stream import Stream
from spillway.hf.unneeded import find_unneeded

VOCABULARY = 211
LENGTH = 12
TOLERANCE = 1e-4  # relative to the largest element of a gradient; what is right differs by 1e-6


def prove(config: PreTrainedConfig, packing: bool = False) -> frozenset[str]:
    """InputError, naming the model type, when a small model of this configuration does not stream exactly.

    `packing`: prove, too, that it keeps the rows of a packed sequence apart. Returns the names of the linear layers
    that backward need not compute again; the proof was made without them.
    """
    kind = config.model_type
    try:
        small = shrink(config)
        skeleton = build(copy.deepcopy(small), torch.float32)
        model = plain_model(small)
    except InputError:
        raise
    except Exception as error:  # a constructor that cannot cope with the small sizes
        raise refusal(kind, f"no small copy of it can be built to prove the stream: {first_line(error)}") from error
    with one_thread():
        plain, packed = sample(False), sample(True)
        unneeded = unneeded_in(skeleton, model, plain)
        compare(skeleton, model, plain, kind, unneeded)
        if packing:
            compare(skeleton, model, packed, kind, unneeded)
    return unneeded


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny tensors are slower on several threads, many times so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same flags at a small size: every kind of layer once, a few heads, a small vocabulary."""
    values = config.to_dict()
    heads = values.get("num_attention_heads") or 1
    groups = max(1, heads // (values.get("num_key_value_heads") or heads))
    head_dim = values.get("head_dim") or values["hidden_size"] // heads
    few = 2 * min(groups, 2)
    sizes = {
        "hidden_size": head_dim * few,
        "intermediate_size": 48,
        "num_attention_heads": few,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "vocab_size": VOCABULARY,
    }
    values |= {name: size for name, size in sizes.items() if values.get(name) is not None}
    values |= few_layers(values)
    for name, value in values.items():
        if name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            values[name] = value % VOCABULARY
    if isinstance(values.get("sliding_window"), int):
        values["sliding_window"] = LENGTH // 2
    for name, value in values.items():
        if "drop" in name and isinstance(value, float):
            values[name] = 0.0
    if values.get("initializer_range") is not None:
        values["initializer_range"] = 0.1  # so that every part of the model shows in the loss
    return type(config)(**{key: value for key, value in values.items() if key not in ("dtype", "model_type")})


def few_layers(values: dict[str, Any], least: int = 2) -> dict[str, Any]:
    """`least` layers, or one of every kind if there are more kinds."""
    kinds = values.get("layer_types")
    chosen = sorted({kind: place for place, kind in enumerate(kinds)}.values()) if kinds else []
    others = (place for place in range(values["num_hidden_layers"]) if place not in chosen)
    chosen += itertools.islice(others, max(0, least - len(chosen)))
    layers: dict[str, Any] = {"num_hidden_layers": len(chosen)}
    if kinds:
        layers["layer_types"] = [kinds[place] for place in sorted(chosen)]
    return layers


def plain_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The library's own model with random weights, from a fixed seed."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        with torch.no_grad():
            for parameter in model.parameters():  # away from the zeros and ones of biases and norms
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def sample(packed: bool) -> Work:
    """Two micro-batches of different shape, some tokens without a label."""
    generator = torch.Generator().manual_seed(20)
    batches = []
    for rows, length in ((2, LENGTH), (1, LENGTH - 3)):
        ids = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
        labels = ids.clone()
        labels[0, 4] = IGNORED
        positions = None
        if packed:
            positions = torch.cat([torch.arange(5), torch.arange(length - 5)]).expand(rows, length)
            labels[:, 5] = IGNORED
        batches.append(SimpleNamespace(input_ids=ids, labels=labels, position_ids=positions))
    return arrange(batches)  # type: ignore[arg-type]


def unneeded_in(skeleton: Skeleton, model: PreTrainedModel, work: Work) -> frozenset[str]:
    batch = work.micro_batches[0]
    names = {id(module): name for name, module in skeleton.model.named_modules()}
    layers = [model.get_submodule(names[id(layer)]) for layer in skeleton.layers]
    hidden = torch.linspace(-1, 1, batch.tokens * skeleton.hidden_size).sin()
    hidden = hidden.view(batch.rows, batch.length, skeleton.hidden_size)
    return find_unneeded(layers, record(skeleton, batch)[: len(layers)], hidden)


def compare(skeleton: Skeleton, model: PreTrainedModel, work: Work, kind: str, unneeded: Collection[str]) -> None:
    size = WorkSize(len(work.micro_batches), work.tokens)
    description = describe(skeleton, size, "fp32")
    engine = BareEngine(description, chunk_elements=64 * description["hidden_size"])
    parameters = dict(model.named_parameters())
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(parameters[tensor["name"]].detach())
    stream = Stream(skeleton, engine, 0, unneeded)
    outcome = stream.step(work, {}, 0)
    stream.close()
    expected = plain_loss(model, work)
    what = "the rows of a packed sequence" if work.micro_batches[0].position_ids is not None else "the loss"
    if not close(torch.tensor(outcome.loss_sum), torch.tensor(expected)):
        both = f"{outcome.loss_sum:.6g} in the stream, {expected:.6g} in transformers"
        raise refusal(kind, f"{what} of a small copy is {both}")
    for number, tensor in enumerate(engine.tensors):
        plain = parameters[tensor["name"]].grad
        if not close(engine.gradients.get(number, torch.zeros(tensor["shape"])), plain):
            raise refusal(kind, f"the gradient of {tensor['name']} in a small copy differs from transformers' own")


def plain_loss(model: PreTrainedModel, work: Work) -> float:
    """Summed loss, every packed row by itself; leaves the gradients of the mean loss in the model."""
    model.zero_grad()
    total = 0.0
    for batch in work.micro_batches:
        labels = torch.full((batch.tokens,), IGNORED)
        labels[batch.labelled] = batch.labels
        labels = labels.view(batch.rows, batch.length)
        ids = batch.part(work.ids).view(batch.rows, batch.length)
        for part in own_rows(batch.position_ids, batch.length):
            logits = model(input_ids=ids[:, part], use_cache=False).logits.flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(logits, labels[:, part].flatten(), reduction="sum")
            (loss / work.label_tokens).backward()
            total += float(loss.detach())
    return total


def own_rows(position_ids: torch.Tensor | None, length: int) -> list[slice]:
    """Where the rows of a packed sequence lie; all sequences of a micro-batch are packed alike here."""
    starts = [0] if position_ids is None else (position_ids[0] == 0).nonzero().view(-1).tolist()
    return [slice(first, last) for first, last in zip(starts, [*starts[1:], length], strict=True)]


def close(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None:
        return not bool(one.any())
    return bool(torch.isfinite(one).all()) and bool((one - other).abs().max() <= TOLERANCE * other.abs().max())
