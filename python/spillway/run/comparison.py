"""`spillway check`: the first steps of a run both ways, through the engine and by plain PyTorch in memory.

The plain way is written as anybody would: transformers' own model, `loss.backward()`, `clip_grad_norm_`, `AdamW` over
fp32 masters, with `method: lora` PEFT's adapters. The same rows, order and rates; dropout is off in both, since its
random numbers cannot agree. With `objective: dpo` each way has its own reference, of the pairs of these steps alone.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.base.sizes import size
from spillway.config import Config
from spillway.config.checks import check
from spillway.data.prompts import Prompts
from spillway.errors import DoesNotFit, InputError
from spillway.machine import auto
from spillway.model.batches.batch import Batch
from spillway.model.source import hub
from spillway.run import plain_losses, plain_reduced
from spillway.run.protocol import Keeping, StartPoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

    from spillway.run.loop import Work

STEPS = 5
MARGIN = 1.1  # of what the plain way takes: its activations
# largest relative difference that is rounding: of a loss, of a gradient norm, of all that the weights have moved
ROUNDED = 1e-3  # of a loss that is computed in fp32, after steps by gradients that were rounded to 16 bits
OF_PAIRS = 10  # times as much: their loss is of differences between sums over whole rows, whose rounding adds up
TOLERANCE = {"fp32": (1e-5, 1e-4, 1e-2), "bf16": (1e-2, 5e-2, 2e-1), "fp16": (1e-2, 5e-2, 2e-1)}


@dataclass
class Trained:
    """Results of training one way."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """Relative, the largest of all steps, and what is allowed."""

    what: str
    largest: float
    allowed: float

    @property
    def within(self) -> bool:
        return self.largest <= self.allowed


@dataclass(frozen=True)
class Comparison:
    engine: Trained
    plain: Trained
    differences: list[Difference]
    worst: str  # the tensor whose movement differs most, and by how much

    @property
    def equal(self) -> bool:
        return all(difference.within for difference in self.differences)


def compare(config: Config, layers: int | None, tell: Callable[[str], None]) -> Comparison:
    """`layers`: of the model, only so many. DoesNotFit, with the bytes, where the plain way does not."""
    check(config, required=("model", "dataset"))
    if config.optim != "adamw" or config.state_format != "exact":
        raise InputError(
            "check: the plain way is AdamW with exact states; leave optim and state_format at their defaults"
        )
    if config.objective_entry.has_teacher:
        raise InputError(
            "check: the plain way has no teacher; compare with `--objective sft` the model on the same rows"
        )
    if config.reward_funcs:
        raise InputError("check: both ways need the same completions; leave reward_funcs out and name recorded ones")
    from spillway.run.train import load_work

    if config.any_device:
        config = config.computing_on("cpu", "")  # where the plain way computes
    config = hub.resolve_commits(auto.settled(config.replaced(lora_dropout=0.0)), tell)
    work = load_work(config.replaced(eval_dataset=None), tell)
    steps = min(config.max_steps if config.max_steps > 0 else STEPS, work.steps)
    with decode_model(config, tell) as config, cut_model(config, layers) as (path, model_config):
        require_memory(model_config, config, layers)
        hub.fetch_weights(config, tell)
        plain_model = load_plain(path, model_config, config)
        round_base(plain_model, config)  # before adapters, which may begin with lengths of its rows
        carried = choose_learning(plain_model, config, path)
        begun = {name: parameter.detach().float().clone() for name, parameter in named(plain_model).items()}
        plain, masters = train_plainly(plain_model, config, work, steps)
        masters = {name: master for name, master in masters.items() if name not in carried}
        del plain_model
        engine, ours = train_streamed(config.replaced(model=str(path)), model_config, work, steps)
    return differences(config, engine, plain, begun, masters, ours)


def differences(
    config: Config,
    engine: Trained,
    plain: Trained,
    begun: dict[str, torch.Tensor],
    masters: dict[str, torch.Tensor],
    ours: dict[str, torch.Tensor],
) -> Comparison:
    moved = apart = 0.0
    worst, name_of_worst = -1.0, ""
    for name, master in masters.items():
        own = float((master - begun[name]).double().square().sum())
        other = float((ours[name] - master).double().square().sum())
        moved, apart = moved + own, apart + other
        share = math.sqrt(other / own) if own else math.sqrt(other)
        if not share <= worst:
            worst, name_of_worst = share, name
    of_loss, of_norm, of_weights = tolerance(config)
    comparisons = [
        Difference("loss", relative(engine.losses, plain.losses), of_loss),
        Difference("gradient norm", relative(engine.norms, plain.norms), of_norm),
        Difference("movement of the weights", math.sqrt(apart / moved) if moved else math.sqrt(apart), of_weights),
    ]
    return Comparison(engine, plain, comparisons, f"{name_of_worst} ({worst:.2g})")


def tolerance(config: Config) -> tuple[float, float, float]:
    """The tolerances of loss, gradient norm and weights. Results computed in fp32 differ only by the rounding of
    gradients and weights, where these are kept in less."""
    of_loss, of_norm, of_weights = TOLERANCE[config.weight_dtype]
    if config.compute_dtype != config.weight_dtype:
        of_loss = ROUNDED
    return of_loss * (OF_PAIRS if config.objective_entry.compares else 1), of_norm, of_weights


def relative(ours: list[float], plain: list[float]) -> float:
    """Infinite where one is no number."""
    pairs = zip(ours, plain, strict=True)
    errors = [abs(one - other) / max(abs(other), 1e-12) if math.isfinite(one) else math.inf for one, other in pairs]
    return max((value if value == value else math.inf for value in errors), default=0.0)


@contextmanager
def decode_model(config: Config, tell: Callable[[str], None]) -> Iterator[Config]:
    """The configuration with a model of plain weights, in a directory of its own where those of the model are codes."""
    from spillway.model.source.coded import find_coding, write_decoded
    from spillway.model.source.labels import load_run_config
    from spillway.model.source.source import DTYPES

    path = hub.model_directory(config)
    if config.init != "pretrained" or find_coding(path) is None:
        yield config
        return
    hub.fetch_weights(config, tell)
    with tempfile.TemporaryDirectory(prefix="spillway-check-") as place:
        load_run_config(config, path).save_pretrained(place)
        write_decoded(path, Path(place), DTYPES["fp32"])
        yield config.replaced(model=place)


@contextmanager
def cut_model(config: Config, layers: int | None) -> Iterator[tuple[Path, PreTrainedConfig]]:
    """The model, or the first `layers` of it in a directory of its own; without dropout."""
    from spillway.model.checkpoint.ties import build_as_stored
    from spillway.model.source.labels import load_run_config
    from spillway.model.source.source import DTYPES, auto_class, text_config

    path = hub.model_directory(config)
    dtype = DTYPES[config.weight_dtype]
    config_of_model = undropped(build_as_stored(load_run_config(config, path), path, dtype).config)
    if layers is None or layers >= text_config(config_of_model).num_hidden_layers:
        yield path, config_of_model
        return
    if layers < 1:
        raise InputError(f"layers: got {layers}, expects 1 or more")
    small = few(config_of_model, layers)
    with tempfile.TemporaryDirectory(prefix="spillway-check-") as place:
        if config.init == "random":
            small.save_pretrained(place)
        else:
            model = auto_class(small).from_pretrained(
                path, config=copy.deepcopy(small), local_files_only=True, trust_remote_code=False
            )
            model.save_pretrained(place)
        yield Path(place), small


def undropped(config: PreTrainedConfig) -> PreTrainedConfig:
    from spillway.model.source.source import text_config

    text = text_config(config)
    for key, value in text.to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            setattr(text, key, 0.0)
    return config


def few(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    """The configuration with its first `layers` layers, those of the text tower; lists with an entry for each are cut,
    too."""
    from spillway.model.source.source import text_config

    small = copy.deepcopy(config)
    text = text_config(small)
    whole = text.num_hidden_layers
    for key, value in text.to_dict().items():
        if isinstance(value, list) and len(value) == whole:
            setattr(text, key, value[:layers])
    text.num_hidden_layers = layers
    return small


def require_memory(model_config: PreTrainedConfig, config: Config, layers: int | None) -> None:
    """DoesNotFit where weights, gradients, masters and moments of plain PyTorch are more than what is free."""
    from spillway import _engine
    from spillway.model.source.source import text_config

    parameters, a_layer = count_parameters(model_config, config)
    each = 16 if config.weight_dtype == "fp32" else 16 + 4  # weight, gradient, [master,] moments, and the beginning
    each += 4
    needed, free = int(parameters * each * MARGIN), _engine.dram_available()
    if needed <= free:
        return
    total = layers or text_config(model_config).num_hidden_layers
    room = int((free / MARGIN / each - (parameters - total * a_layer)) // a_layer)
    offer = f"`--layers {room}` checks its first {room} layers" if room >= 1 else "not even one layer of it does"
    raise DoesNotFit(
        f"dram: plain PyTorch needs {size(needed)} for {parameters:,} parameters ({each} bytes each), {size(free)} are "
        f"free; {offer}"
    )


def count_parameters(model_config: PreTrainedConfig, config: Config) -> tuple[int, int]:
    """The parameters of the model, and of a layer on average."""
    from spillway.model.meta.building import build
    from spillway.model.source.source import DTYPES

    meta_model = build(copy.deepcopy(model_config), DTYPES[config.weight_dtype])
    layers = sum(parameter.numel() for layer in meta_model.layers for parameter in layer.parameters())
    return sum(parameter.numel() for parameter in meta_model.model.parameters()), layers // len(meta_model.layers)


def load_plain(path: Path, model_config: PreTrainedConfig, config: Config) -> PreTrainedModel:
    """In the type that computes, but the masters' values are those of the files."""
    import torch

    from spillway.model.meta.describe import stored_keys
    from spillway.model.meta.on_meta import build_with_attention
    from spillway.model.meta.score_head import HEAD, score_every_token
    from spillway.model.source.source import auto_class, is_classifier

    if config.init == "random":
        raise InputError("init: check compares runs from the same weights; save a model with random ones first")
    if is_classifier(model_config) and f"{HEAD}.weight" not in stored_keys(path):
        raise InputError(f"check: it compares runs from the same weights, and {path} holds no {HEAD}.weight; save one")
    model = build_with_attention(
        lambda how: auto_class(model_config).from_pretrained(
            path,
            config=copy.deepcopy(model_config),
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation=how,
        )
    )
    model.config.use_cache = False
    return score_every_token(model).train() if is_classifier(model_config) else model.train()


def choose_learning(model: PreTrainedModel, config: Config, path: Path) -> frozenset[str]:
    """Everything, what patterns say, or adapters that PEFT puts in. Returns the names of what a multimodal model
    carries along."""
    import torch

    from spillway.model.adapters.lora import ADAPTER, adapters_of, file_name, insert_adapters, required, unfreeze_head
    from spillway.model.checkpoint.files import checkpoint_names
    from spillway.model.checkpoint.freeze import freeze, frozen_names
    from spillway.model.meta.building import build
    from spillway.model.source.source import DTYPES, is_multimodal
    from spillway.model.source.tensor_files import Stored
    from spillway.model.spec import train_tower

    carried: frozenset[str] = frozenset()
    others: dict[str, list[str]] = {}
    if is_multimodal(model.config):
        meta_model = build(copy.deepcopy(model.config), DTYPES[config.weight_dtype])
        train_tower(meta_model, config)
        carried, others = meta_model.carried_names, checkpoint_names(meta_model, path)
        as_they_are = carried | frozen_names(meta_model.model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in as_they_are)
    adapters = adapters_of(config)
    if adapters is None:
        freeze(model, config.trainable, config.frozen, others)
        return carried
    peft = required()
    torch.manual_seed(adapters.seed)
    insert_adapters(model, adapters.wanted(peft, model))
    head = unfreeze_head(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # PEFT rounds what it draws to the type of the base
            if parameter.requires_grad and name not in head:
                parameter.copy_(parameter.to(DTYPES[config.weight_dtype]))
        if adapters.source is not None:
            saved = Stored(adapters.source / ADAPTER)
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and (name not in head or file_name(name) in saved.names()):
                    parameter.copy_(saved.tensor(file_name(name)))
    model.train()
    return carried


def packed_names(model: PreTrainedModel, config: Config) -> frozenset[str]:
    """The names of the parameters that the engine keeps as codes."""
    from spillway.model.adapters import quantised
    from spillway.model.adapters.lora import adapters_of
    from spillway.model.meta.building import build
    from spillway.model.source.source import DTYPES

    adapters = adapters_of(config)
    if config.base_form is None or adapters is None:
        return frozenset()
    meta_model = build(copy.deepcopy(model.config), DTYPES[config.compute_dtype], DTYPES[config.weight_dtype])
    adapters.like(meta_model)
    quantised.choose(meta_model, config)
    return quantised.names(meta_model)


def round_base(model: PreTrainedModel, config: Config) -> None:
    """To what the engine's codes stand for."""
    from spillway.model.adapters import quantised

    if config.base_form is not None:
        quantised.round_in(model, packed_names(model, config), config.base_form)


def named(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Parameters by the name that they have without adapters before them."""
    from spillway.model.meta.meta_model import bare_name

    return {bare_name(name): parameter for name, parameter in model.named_parameters()}


def narrowed(model: PreTrainedModel, config: Config) -> PreTrainedModel:
    """A copy that computes in the type asked for, whose weights have values of the type that they are kept in; what the
    library keeps in fp32 it keeps so."""
    from spillway.model.source.source import DTYPES

    kept, computes = find_kept_types(model, config), DTYPES[config.compute_dtype]
    copied = copy.deepcopy(model)
    for name, tensor in [*copied.named_parameters(), *copied.named_buffers()]:
        if tensor.is_floating_point():
            rounded = tensor.data.to(kept(name))
            tensor.data = rounded if config.compute_dtype == config.weight_dtype else rounded.to(computes)
    return copied


def find_kept_types(model: PreTrainedModel, config: Config) -> Callable[[str], torch.dtype]:
    """A function that returns the dtype in which a tensor is kept, by its name."""
    from spillway.model.meta.building import types_of
    from spillway.model.meta.meta_model import bare_name
    from spillway.model.meta.on_meta import on_meta
    from spillway.model.source.source import DTYPES

    dtype = DTYPES[config.weight_dtype]
    types = types_of(on_meta(copy.deepcopy(model.config), dtype))
    types |= dict.fromkeys(packed_names(model, config), DTYPES[config.compute_dtype])  # what codes stand for is exact
    return lambda name: types.get(bare_name(name), dtype)


def train_plainly(
    model: PreTrainedModel, config: Config, work: Work, steps: int
) -> tuple[Trained, dict[str, torch.Tensor]]:
    """Returns the masters, too. With bf16 a copy of the model computes, which takes the masters' rounded values."""
    import torch

    from spillway.model.meta.describe import decay_names

    learning = named(model)
    computing = model if config.weight_dtype == "fp32" else narrowed(model, config)
    weights = named(computing)
    kept = find_kept_types(model, config)
    inside, names = plain_reduced.optimizer_of(computing, config)
    masters = {name: master for name, master in learning.items() if name not in names}
    if inside is not None:
        inside.adopt({name: learning[name].detach() for name in names})
    decaying = set(decay_names(model))
    groups = [
        {"params": [p for name, p in masters.items() if (name in decaying) == decays], "weight_decay": decay}
        for decays, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_epsilon)
    loss = plain_losses.choose_loss(config)
    batches = batches_of(
        config, work, steps, lambda step: plain_losses.log_probabilities(computing, step, config.divisor)
    )
    trained = Trained()
    for step in range(steps):
        trained.losses.append(plain_losses.gradients(computing, batches[step], loss))
        for name, master in masters.items():
            if computing is not model:
                gradient = weights[name].grad
                master.grad = None if gradient is None else gradient.float()
                weights[name].grad = None
        limit = config.max_grad_norm or math.inf
        every = [*masters.values(), *([] if inside is None else inside.parameters())]
        trained.norms.append(float(torch.nn.utils.clip_grad_norm_(every, limit)))
        for each in (optimizer, *([] if inside is None else [inside])):
            for group in each.param_groups:
                group["lr"] = work.rate(step)
            each.step()
            each.zero_grad()
        if computing is not model:
            with torch.no_grad():
                for name, master in masters.items():
                    weights[name].copy_(master.to(kept(name)))
    compared = config.weight_dtype == "fp32"  # else what is frozen is rounded, and no more is kept of it
    tensors = {name: m.detach() for name, m in masters.items() if m.requires_grad or compared}
    return trained, tensors if inside is None else tensors | inside.masters()


def batches_of(
    config: Config, work: Work, steps: int, log_probabilities: Callable[[list[Batch]], list[list[float]]] | None
) -> list[list[Batch]]:
    """The micro-batches of each step; those of pairs come with what the reference makes of their rows. That is the
    model which has made no step yet, and of which `log_probabilities` gives them. None: each step computes them."""
    import torch

    rows = work.train
    assert not isinstance(rows, Prompts)
    steps_of_batches = [[rows.batch(part) for part in work.order.step(step)] for step in range(steps)]
    if not config.has_reference or log_probabilities is None:
        return steps_of_batches
    return [
        [
            replace(batch, reference=torch.tensor(rows, dtype=torch.float64))
            for batch, rows in zip(step, log_probabilities(step), strict=True)
        ]
        for step in steps_of_batches
    ]


def train_streamed(
    config: Config, model_config: PreTrainedConfig, work: Work, steps: int
) -> tuple[Trained, dict[str, torch.Tensor]]:
    """Trains through the engine; the masters are as it holds them at the end."""
    from spillway.output import identity
    from spillway.run.session import EngineSession

    place = config.replaced(
        output_dir=config.output_dir or str(Path.cwd()), durability="none", resume_from_checkpoint=None
    )
    if config.method == "lsp":
        # As a plain loop has: with more ranks the first step trains no such matrix, and its masters are exact.
        place = place.replaced(virtual_ranks=1, lsp_master="exact")
    keeping = Keeping(identity.new(Path.cwd()).run)
    session = EngineSession(place, work.shape, keeping=keeping, model_config=copy.deepcopy(model_config))
    try:
        session.start(StartPoint())
        trained = Trained()
        refers = config.refers_in_step
        for step, batches in enumerate(batches_of(config, work, steps, None if refers else session.log_probabilities)):
            result = session.step(batches, work.rate(step))
            trained.losses.append(result.loss_sum / result.label_tokens)
            trained.norms.append(result.grad_norm)
        return trained, session.masters()
    finally:
        session.close()
