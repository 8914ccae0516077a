"""The first stages of a run's pipeline, `Config -> ModelSpec -> Verified`: which model it is and what of it is
trainable, and that its stream computes what plain PyTorch does. Each stage is a value that the next is made of.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spillway.base import stages
from spillway.base.documents import describe_broken_link
from spillway.errors import InputError
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import Adapters, adapters_of
from spillway.model.checkpoint import files, freeze
from spillway.model.checkpoint.ties import build_as_stored
from spillway.model.head.head_groups import TOKENS_ON_GPU
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles, tokens_of
from spillway.model.meta import factors
from spillway.model.meta.meta_model import MetaModel, pattern
from spillway.model.meta.streamed_tower import stream_tower
from spillway.model.source import coded, hub
from spillway.model.source.labels import load_run_config
from spillway.model.source.own import OwnConfig
from spillway.model.source.positions import Positions, refuse_longer
from spillway.model.source.source import DTYPES
from spillway.model.verify.equivalence import verify_equivalence, verify_mixed_types

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from spillway.config import Config


@dataclass(frozen=True)
class ModelSpec:
    """The model of a run, of which no weight has been read."""

    config: Config  # with names on the hub and `auto` settled
    source: Path  # the model's directory
    model_config: PreTrainedConfig | OwnConfig
    meta_model: MetaModel  # on `meta`; its parameters require gradients where they are trainable
    adapters: Adapters | None  # with method lora
    notices: tuple[str, ...] = ()  # notices for a person

    @property
    def begins_with(self) -> Path:
        """The checkpoint whose other tensors are carried along; one that is not there where weights are drawn."""
        return self.source if self.config.init == "pretrained" else self.source / "none"

    @property
    def packing(self) -> bool:
        return self.config.packing or bool(self.config.eval_packing)

    def trainable(self) -> int:
        """Parameters that are."""
        return sum(p.numel() for p in self.meta_model.model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Verified:
    """A model that may be streamed."""

    spec: ModelSpec
    unneeded: frozenset[str]  # linear layers, by name within a layer, that backward need not compute again
    not_kept: str = ""  # why no layer may keep what autograd saves, as the end of a sentence; empty: layers may
    tiles: TokenTiles = ALL_AT_ONCE  # what runs in tiles of tokens
    positions: Positions | None = None  # positions of the longest row; None: rows may have any length

    @property
    def fused(self) -> bool:
        """True if the engine's kernels stand for norms, SwiGLU and rotary embedding of layers."""
        config = self.spec.config
        return config.fused_kernels == "auto" and config.device.startswith("cuda")

    def refuse_longer(self, length: int) -> None:
        """InputError if a row of `length` tokens has no positions."""
        refuse_longer(self.positions, length, self.spec.model_config.model_type)


def model_spec(
    config: Config,
    model_config: PreTrainedConfig | OwnConfig | None = None,
    frozen: Collection[str] | None = None,
    only_plan: bool = False,
) -> ModelSpec:
    """`config`: with what `auto` is (machine.auto). `model_config`: the model's own, changed by whoever opens the run;
    as it lies in the directory when None. `frozen`: names of the parameters that are not trainable; None: as the
    configuration says. `only_plan`: no weight will be needed."""
    config = hub.resolve_commits(config, only=("model", "tokenizer"))
    source = hub.model_directory(config)
    model_config = model_config or load_run_config(config, source)
    if config.init == "pretrained" and not config.resume_from_checkpoint and not hub.is_name(config.model):
        require_weights(source)
    computes, kept = DTYPES[config.compute_dtype], DTYPES[config.weight_dtype]
    begins_with = source if config.init == "pretrained" else source / "none"
    built = build_as_stored(model_config, begins_with, computes, kept)
    model_config, meta_model = built.config, built.meta_model
    adapters = adapters_of(config)
    train_tower(meta_model, config)
    if config.init == "random" and meta_model.frozen_parts and not only_plan:
        raise InputError(
            f"init: random draws the tower of text alone, and {model_config.model_type} has others, which a "
            "checkpoint has to hold; leave init at pretrained"
        )
    if adapters is not None:
        adapters.adapt(meta_model)
    elif frozen is None:
        freeze.choose(meta_model, config, source)
    else:
        freeze.freeze_like(meta_model, frozen)
    if config.objective_entry.is_mismatched and meta_model.routers is not None:
        raise InputError(
            f"objective: {config.objective} adds no loss of routers, since half of the rows are there for an estimate; "
            "set `output_router_logits: false` in the model's config.json"
        )
    if config.disable_dropout:
        without_dropout(meta_model.model)
    factors.choose(meta_model, config)
    quantised.choose(meta_model, config)
    files.record_carried(meta_model, begins_with)
    told = (
        *coded.describe_coding(source, config),
        *built.notices,
        *files.describe_carried(meta_model, begins_with),
        adapters.notice if adapters else "",
    )
    return ModelSpec(config, source, model_config, meta_model, adapters, tuple(filter(None, told)))


def train_tower(meta_model: MetaModel, config: Config) -> None:
    """Trains the parts that make features of images, if the configuration says so."""
    tower, projector = not config.freeze_vision_tower, not config.freeze_multi_modal_projector
    if tower or projector:
        stream_tower(meta_model, tower, projector)


def verified(spec: ModelSpec) -> Verified:
    """InputError, naming the model type, where a tiny copy of the model does not stream exactly."""
    stages.say("comparing a tiny copy with plain PyTorch")
    meta_model, config = spec.meta_model, spec.model_config
    equivalence = verify_equivalence(copy.deepcopy(config), spec.packing)
    tower = {pattern(meta_model.names[id(parameter)]) for parameter in meta_model.tower}
    meta_model.unused = equivalence.unused - tower  # which rows of text do not reach
    if spec.adapters is not None:
        meta_model.unused |= spec.adapters.unused(copy.deepcopy(config))
    computes = DTYPES[spec.config.compute_dtype]
    if any(map(meta_model.is_fp32, meta_model.streamed)) and computes != torch.float32:
        verify_mixed_types(copy.deepcopy(config), computes)
    return Verified(
        spec, equivalence.unneeded, equivalence.not_kept, tiles_of(spec, equivalence.tiles), equivalence.positions
    )


def tiles_of(spec: ModelSpec, found: TokenTiles) -> TokenTiles:
    """The tiles of a run's layers and head. The sums of virtual ranks are of whole micro-batches."""
    config = spec.config
    on_gpu = config.device.startswith("cuda")
    head_tokens = TOKENS_ON_GPU if on_gpu else None
    if config.virtual_ranks > 1:
        why = "virtual_ranks: a rank's gradients are summed by whole micro-batches"
        return replace(ALL_AT_ONCE, why=why, head_tokens=head_tokens)
    tokens = tokens_of(config.token_tile, spec.meta_model.hidden_size, on_gpu)
    return replace(found, tokens=tokens, head_tokens=head_tokens)


def without_dropout(model: torch.nn.Module) -> None:
    """Turns dropout off as TRL does: in modules of dropout, and not in what a layer's own code drops."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def require_weights(directory: Path) -> None:
    """InputError when there is nothing to load, before anything is measured."""
    names = (hub.SINGLE, hub.INDEX)
    if any((directory / name).exists() for name in names):
        return
    for name in names:
        if link := describe_broken_link(directory / name):
            raise InputError(f"{directory}: there is no {name}{link}")
    others = [path.name for path in sorted(directory.glob("*.bin"))]
    hint = f"; {others[0]} is there: save it as safetensors first" if others else ""
    raise InputError(f"{directory}: no {' and no '.join(names)}{hint}")
