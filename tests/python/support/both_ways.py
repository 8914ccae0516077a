"""One small model trained by a Session over the C++ engine and by a plain PyTorch loop, files and all."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

import native
import tiny
from hf_models import batch
from small_configs import small_config, wraps_models
from spillway._engine import BlockRole, Form
from spillway.data.media import KINDS
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import IGNORED
from spillway.model.checkpoint.files import checkpoint_names
from spillway.model.checkpoint.freeze import freeze
from spillway.model.meta.building import build, find_layers
from spillway.model.meta.describe import decay_names
from spillway.model.meta.on_meta import from_config
from spillway.model.meta.router_search import ARGUMENTS, FUNCTION
from spillway.model.meta.text_tower import tower_name
from spillway.model.source.model_code import call_model
from spillway.model.source.source import auto_class, is_multimodal
from spillway.model.stream.dropout import mixed

STEPS = 10
RUN_SEED = 5  # native.config's
RATE, DECAY, CLIP = 1e-3, 0.1, 1.0
# Adam divides a gradient by its own size: where it is zero but for rounding (the bias of keys, which softmax does not
# see), two right answers would differ by the whole learning rate. With this epsilon they do not.
EPSILON = 1e-4
TOLERANCE = 1e-5
ORDERS = 2.0  # times what plain PyTorch differs from itself: a difference of which no more can be said
MAGNIFIED = 1e-3  # and never more
ADAPTERS = 1e-4  # of what begins at zero and stays small
MIXED_LOSS, MIXED_WAY = 1e-3, 0.15  # of bf16; some gradients are hardly more than its rounding
SHAPE = WorkShape(micro_batches=2, batch=2, length=12, eval_batch=0, eval_length=0)


@dataclass
class Difference:
    """The largest relative ones."""

    loss: float
    weight: float


class Magnified(Exception):
    """The model makes so much of rounding that two right answers differ by more than the tolerance."""


def compare(
    config: PreTrainedConfig, directory: Path, seed: int = 7, random: bool = False, **settings: Any
) -> Difference:
    """AssertionError names what differs; InputError when the session refuses the model; Magnified when plain PyTorch is
    as far from itself. `random`: layers draw random numbers while they train, which the plain loop is given from the
    same seeds."""
    config.use_cache = False
    save(config, directory / "model", seed)
    session = native.opened(
        directory / "model", SHAPE, weight_decay=DECAY, max_grad_norm=CLIP, adam_epsilon=EPSILON, **settings
    )
    try:
        plain = load(directory / "model")
        freeze(plain, settings.get("trainable", ()), settings.get("frozen", ()))
        work = steps_of(plain.config.get_text_config().vocab_size, asks_for_routers(plain))
        streamed = [session.step(step, RATE) for step in work]
        expected = train_plain(plain, work, RUN_SEED if random else None)
        (directory / "saved").mkdir()
        session.save_model(directory / "saved")
    finally:
        session.close()
    plain.save_pretrained(directory / "expected")
    losses = [result.loss_sum / result.label_tokens for result in streamed]
    try:
        weight = compare_files(directory / "saved", directory / "expected")
    except AssertionError:
        own = in_another_order(directory, work, RUN_SEED if random else None, settings)
        compare_files(directory / "saved", directory / "expected", min(MAGNIFIED, ORDERS * own))
        raise Magnified(
            f"its small copy magnifies rounding: plain PyTorch differs from itself by {own:.1e} with eager attention "
            "and experts, which only add in another order"
        ) from None
    difference = Difference(max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)), weight)
    assert difference.loss <= TOLERANCE, f"losses differ by {difference.loss:.1e}"
    if is_multimodal(config):
        compare_carried(directory)
    load(directory / "saved")
    return difference


def in_another_order(directory: Path, work: list[list[Any]], seed: int | None, settings: dict[str, Any]) -> float:
    """How far plain PyTorch is from itself where it adds in another order: the weights' largest relative difference."""
    eager = load(directory / "model", attn_implementation="eager", experts_implementation="eager")
    freeze(eager, settings.get("trainable", ()), settings.get("frozen", ()))
    train_plain(eager, work, seed)
    eager.save_pretrained(directory / "eager")
    return compare_files(directory / "eager", directory / "expected", math.inf)


def compare_carried(directory: Path) -> None:
    """What plain training leaves as it was outside of the tower of text stays bit-identical."""
    meta_model = build(AutoConfig.from_pretrained(directory / "model"), torch.float32)
    if not meta_model.carried:
        return
    names = checkpoint_names(meta_model, directory / "model")
    tower = {name for own, several in names.items() if own not in meta_model.carried_names for name in several}
    before, plain, ours = (tensors(directory / name) for name in ("model", "expected", "saved"))
    untouched = [name for name, value in before.items() if name not in tower and torch.equal(value, plain[name])]
    assert untouched, "nothing is carried along"
    changed = [name for name in untouched if not torch.equal(ours[name], before[name])]
    assert not changed, f"{changed[0]} was changed"


@dataclass
class Mixed:
    """Of a model with parameters that the library keeps in fp32 in `dtype`."""

    names: set[str]  # of these
    tables: set[str]  # embedding's and head's among them, which compute in `dtype` here
    loss: float  # of the first step, relative
    moved: float  # of how far these parameters went together, relative to how far they should have gone


def compare_mixed(config: PreTrainedConfig, directory: Path, dtype: torch.dtype = torch.bfloat16) -> Mixed:
    """Three steps in a narrow type, and by a plain loop that keeps fp32 masters of what is narrow; files, too. Products
    of 16 bits are rounded in another order, so losses and changes agree to a few units of that type."""
    config.use_cache = False
    save(config, directory / "model", seed=7)
    plain = loaded(directory / "model", dtype)
    names = wide_names(plain)
    session = native.opened(
        directory / "model", SHAPE, weight_decay=DECAY, max_grad_norm=CLIP, adam_epsilon=EPSILON, compute_dtype="bf16"
    )
    try:
        wide = {t.name for block in session.description.blocks for t in block.tensors if t.form is Form.fp32}
        tables = names & {
            t.name for b in session.description.blocks if b.role is not BlockRole.layer for t in b.tensors
        }
        names -= tables
        assert wide == names, f"kept in fp32 by one of both: {sorted(wide ^ names)[:3]}"
        before = session.masters()
        for name in names:
            assert torch.equal(before[name], plain.get_parameter(name)), f"{name} was rounded"
        work = steps_of(plain.config.get_text_config().vocab_size, asks_for_routers(plain))[:3]
        found = [session.step(step, RATE) for step in work]
        losses, masters = train_mixed(plain, work)
        after = session.masters()
        (directory / "saved").mkdir()
        session.save_model(directory / "saved")
    finally:
        session.close()
    loss = abs(found[0].loss_sum / found[0].label_tokens / losses[0] - 1)
    assert loss <= MIXED_LOSS, f"first losses differ by {loss:.1e}"
    apart = sum(float((after[name] - masters[name]).square().sum()) for name in names)
    way = sum(float((masters[name] - before[name]).square().sum()) for name in names)
    moved = math.sqrt(apart / way) if way else 0.0
    assert moved <= MIXED_WAY, f"fp32 parameters went elsewhere, by {moved:.1e}"
    loaded(directory / "model", dtype).save_pretrained(directory / "expected")
    ours, theirs = tensors(directory / "saved"), tensors(directory / "expected")
    forms = [
        {name: (None if name in tables else tensor.dtype, tensor.shape) for name, tensor in each.items()}
        for each in (ours, theirs)
    ]
    assert forms[0] == forms[1], "files have other forms"
    again = loaded(directory / "saved", dtype)
    assert all(torch.equal(again.get_parameter(name), after[name]) for name in names), "files have other values"
    return Mixed(names, tables, loss, moved)


def loaded(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    made = auto_class(AutoConfig.from_pretrained(directory))
    model = made.from_pretrained(directory, dtype=dtype, local_files_only=True)
    model.config.use_cache = False
    return model.train()


def wide_names(model: PreTrainedModel) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.dtype == torch.float32}


def train_mixed(model: PreTrainedModel, work: list[list[Any]]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The loop of a person who keeps fp32 masters of what computes in 16 bits: losses, and the masters."""
    weights = dict(model.named_parameters())
    masters = {n: p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for n, p in weights.items()}
    decaying = set(decay_names(model))
    groups = [
        {"params": [p for n, p in masters.items() if (n in decaying) == decays], "weight_decay": decay}
        for decays, decay in ((True, DECAY), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPSILON)
    losses = []
    for step in work:
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        total, sums = 0.0, {}
        for piece in step:
            loss = plain_loss(model, piece, tokens)
            loss.backward()
            total += float(loss.detach())
            for name, parameter in weights.items():  # summed in fp32, as the stream does
                if parameter.grad is not None:
                    sums[name] = sums[name] + parameter.grad if name in sums else parameter.grad.float()
                    parameter.grad = None
        for name, master in masters.items():
            master.grad = sums[name].to(weights[name].dtype).float() if name in sums else None
        torch.nn.utils.clip_grad_norm_(masters.values(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for name, master in masters.items():
                if master is not weights[name]:
                    weights[name].copy_(master)
        losses.append(total)
    return losses, {name: master.detach() for name, master in masters.items()}


def linear_names(config: PreTrainedConfig) -> list[str]:
    """Names of linear layers inside the layers, but for what PEFT refuses of state-space ones."""
    model = from_config(copy.deepcopy(config), torch.float32)
    inside = {id(module) for layer in find_layers(model, "") for module in layer.modules()}
    names = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear and id(module) in inside]
    return [name for name in names if not name.endswith("out_proj")] or ["all-linear"]


def compare_adapters(
    config: PreTrainedConfig, directory: Path, targets: list[str], seed: int = 7, random: bool = False
) -> Difference:
    """As compare(), with adapters on `targets` of a frozen base, and PEFT in memory."""
    import peft

    config.use_cache = False
    save(config, directory / "model", seed)
    session = native.opened(
        directory / "model", SHAPE, weight_decay=DECAY, max_grad_norm=CLIP, adam_epsilon=EPSILON,
        method="lora", lora_r=4, lora_alpha=8, lora_target_modules=targets,
    )  # fmt: skip
    try:
        decaying = {t.name for block in session.description.blocks for t in block.tensors if t.decay}
        plain = load(directory / "model")
        torch.manual_seed(RUN_SEED)
        wanted: Any = "all-linear" if targets == ["all-linear"] else targets
        tower = f"{tower_name(plain)}."
        others = [name for name, _ in plain.named_modules() if not f"{name}.".startswith(tower)]
        apart = {"exclude_modules": others} if is_multimodal(plain.config) else {}
        asked = peft.LoraConfig(r=4, lora_alpha=8, target_modules=wanted, task_type="CAUSAL_LM", **apart)
        adapted = peft.get_peft_model(plain, asked)
        begun = {name: p.detach().clone() for name, p in adapted.named_parameters() if p.requires_grad}
        work = steps_of(plain.config.get_text_config().vocab_size, asks_for_routers(plain))
        streamed = [session.step(step, RATE) for step in work]
        expected = train_plain(adapted.get_base_model(), work, RUN_SEED if random else None)
        (directory / "saved").mkdir()
        session.save_model(directory / "saved")
    finally:
        session.close()
    decay_unread(adapted, begun, decaying)
    adapted.save_pretrained(directory / "expected")
    losses = [result.loss_sum / result.label_tokens for result in streamed]
    difference = Difference(
        max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)),
        compare_files(directory / "saved", directory / "expected", ADAPTERS),
    )
    assert difference.loss <= TOLERANCE, f"losses differ by {difference.loss:.1e}"
    return difference


def decay_unread(model: torch.nn.Module, begun: dict[str, torch.Tensor], decaying: set[str]) -> None:
    """An adapter that the code never reads is found by the name that it has within a small model's layers, and left as
    it began, as AdamW leaves it. Another, which is read in other layers or is asked for by a layer's number that the
    small model lacks, decays."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own = name.removeprefix("base_model.model.")
            if own in decaying and name in begun and torch.equal(parameter, begun[name]):
                parameter.mul_((1 - RATE * DECAY) ** STEPS)


def save(config: PreTrainedConfig, directory: Path, seed: int) -> None:
    """Random weights, those that start as zeros and ones moved, as the library saves them."""
    torch.manual_seed(seed)
    try:
        model = from_config(copy.deepcopy(config), torch.float32)
    except Exception as error:
        raise NotImplementedError(f"the library cannot build it: {str(error).strip()}") from error
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        for module in model.modules():  # some classes make the padding's row zero again when they are loaded
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    model.save_pretrained(directory)


def replace_model(directory: Path, kind: str, **more: Any) -> None:
    """In place of the model there a small one of this type, with the tokenizer that is there."""
    for name in ("config.json", "model.safetensors"):
        (directory / name).unlink()
    known = len(tiny.tokenizer())
    size = known + (len(KINDS) if wraps_models(kind) else 0)
    tables = ("vocab_size", "vocab_size_per_layer_input")
    text = small_config(kind).get_text_config()
    config = small_config(kind, **{name: size for name in tables if hasattr(text, name)}, **more)
    for token, other in enumerate(KINDS, start=known):  # none that the tokenizer makes of text
        for name in (f"{other}_token_id", f"{other}_token_index"):
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, token)
    save(config, directory, 7)


def load(directory: Path, **more: Any) -> PreTrainedModel:
    made = auto_class(AutoConfig.from_pretrained(directory))
    return made.from_pretrained(directory, dtype=torch.float32, local_files_only=True, **more)


def steps_of(vocabulary: int, padded: bool = False) -> list[list[Any]]:
    """Two micro-batches of different shape each; `padded`: a row of the first is shorter."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for _ in range(STEPS):
        step = []
        for rows, length in ((2, 12), (1, 9)):
            ids = torch.randint(3, vocabulary, (rows, length), generator=generator)
            labels = ids.clone()
            labels[0, :3] = IGNORED
            lengths = torch.full((rows,), length)
            if padded and rows > 1:
                lengths[1] -= 3
                labels[1, -3:] = IGNORED
            step.append(batch(ids, labels, lengths=lengths))
        found.append(step)
    return found


def seeds_by_layer(model: PreTrainedModel, seed: int) -> Callable[[int, int], None]:
    """Before each layer but the first, and before the model itself, the generator gets the stream's seed of that layer.
    Returns what says which step and micro-batch is to run."""
    now = [0, 0]

    def sow(place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            torch.default_generator.manual_seed(mixed(seed, *now, place))

        return hook

    model.register_forward_pre_hook(sow(0))
    for place, layer in list(enumerate(find_layers(model, "")))[1:]:
        layer.register_forward_pre_hook(sow(place))

    def turn(step: int, micro_batch: int) -> None:
        now[:] = [step, micro_batch]

    return turn


def train_plain(model: PreTrainedModel, work: list[list[Any]], seed: int | None = None) -> list[float]:
    """The loop a person would write; with a seed, random numbers are the stream's."""
    model.train()
    turn = None if seed is None else seeds_by_layer(model, seed)
    decaying = set(decay_names(model))
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decaying], "weight_decay": DECAY},
        {"params": [p for n, p in model.named_parameters() if n not in decaying], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPSILON)
    losses = []
    for number, step in enumerate(work):
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        total = 0.0
        for place, piece in enumerate(step):
            if turn is not None:
                turn(number, place)
            loss = plain_loss(model, piece, tokens)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def plain_loss(model: PreTrainedModel, piece: Any, tokens: int) -> torch.Tensor:
    """A micro-batch's part of the mean over `tokens` labels; with the auxiliary loss of routers, the library's own."""
    if asks_for_routers(model):
        real = (torch.arange(piece.input_ids.shape[1]) < piece.lengths[:, None]).long()
        words = {"attention_mask": real, "labels": piece.labels, "num_items_in_batch": tokens}
        return call_model(model, piece.input_ids, **words).loss
    logits = call_model(model, piece.input_ids).logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, piece.labels[:, 1:].flatten(), reduction="sum") / tokens


def usual_router_loss(config: PreTrainedConfig) -> bool:
    """Whether the library has the auxiliary loss of routers for this type, by the function that most have."""
    found = auto_class(config)._model_mapping[type(config)]
    module = sys.modules[(found[0] if isinstance(found, tuple) else found).__module__]
    own = getattr(module, FUNCTION, None)
    return hasattr(config, "output_router_logits") and own is not None and list(signature(own).parameters) == ARGUMENTS


def asks_for_routers(model: PreTrainedModel) -> bool:
    return bool(getattr(model.config, "output_router_logits", False))


def compare_files(ours: Path, theirs: Path, tolerance: float = TOLERANCE) -> float:
    """The largest relative difference of a tensor; names, shapes and types must be the same."""
    found, expected = tensors(ours), tensors(theirs)
    assert found.keys() == expected.keys(), f"keys differ: {sorted(found.keys() ^ expected.keys())[:3]}"
    largest = 0.0
    for name, tensor in expected.items():
        assert tensor.shape == found[name].shape and tensor.dtype == found[name].dtype, f"{name} has another form"
        difference = float(
            (tensor.double() - found[name].double()).abs().max() / tensor.double().abs().max().clamp_min(1e-30)
        )
        largest = max(largest, difference)
        assert difference <= tolerance, f"{name} differs by {difference:.1e}"
    return largest


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as stream:
            assert stream.metadata() == {"format": "pt"}
            found |= {name: stream.get_tensor(name) for name in stream.keys()}
    return found
