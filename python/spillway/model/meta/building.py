"""Builds the meta model of a configuration and finds its parts.

The parts are found by looking, not by a table of names: the embedding and the head's matrix by the library's own
accessors, the layers as the largest list of modules, the rest by running the model with its layers left out
(`outline`). What does not fit that picture is refused here, by name.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from spillway.model.meta.meta_model import MetaModel
from spillway.model.meta.on_meta import on_meta
from spillway.model.meta.outline import outline
from spillway.model.meta.router_search import find_routers
from spillway.model.meta.text_tower import embedding_of, head_of, tower
from spillway.model.source.model_code import refusal
from spillway.model.source.own import OwnConfig, OwnModel
from spillway.model.source.source import is_multimodal, text_config
from spillway.model.source.tiny_copy import LAYER_COUNTS

MOST_LAYERS = 100_000


def build(config: PreTrainedConfig | OwnConfig, dtype: torch.dtype, kept: torch.dtype | None = None) -> MetaModel:
    """Builds the meta model, which computes in `dtype`; `kept`: what its weights are kept in, None: the same.
    InputError names the model type and what about it cannot be streamed."""
    kind = config.model_type
    refuse_depth(text_config(config), kind)
    types = {} if kept in (None, dtype) else types_of(on_meta(copy.deepcopy(config), kept or dtype))
    model = on_meta(config, dtype)
    embedding, head = embedding_of(model), head_of(model)
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise refusal(kind, "it has no embedding table and linear head")
    if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
        raise refusal(kind, "its embedding changes its rows or gradients")
    meta_model = MetaModel(config, dtype, model, embedding, find_layers(model, kind), head, kept or dtype, types)
    refuse_settings(text_config(config))
    outline(meta_model)
    refuse_leftovers(meta_model)
    meta_model.routers = find_routers(meta_model)
    return meta_model


def refuse_depth(config: PreTrainedConfig | OwnConfig, kind: str) -> None:
    """InputError for a number of layers that no model has: building them would never end."""
    for name in LAYER_COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > MOST_LAYERS:
            raise refusal(kind, f"{name} is {count}, and a model has {MOST_LAYERS:,} layers at most")


def types_of(model: nn.Module) -> dict[str, torch.dtype]:
    """The types of parameters and buffers, by every name that they have."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.dtype for name, tensor in named}


def find_layers(model: Any, kind: str) -> list[nn.Module]:
    """The list of modules that holds the most parameters and lies in no other list; of a module that names it, that."""
    if isinstance(model, OwnModel):
        return model.listed_layers()
    multimodal = is_multimodal(model.config)
    lists: list[tuple[str, nn.ModuleList]] = []
    for name, module in (tower(model) if multimodal else model).named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not inside:
            lists.append((name, module))
    if not lists:
        raise refusal(kind, "it holds no list of layers")
    if multimodal:  # other modalities may have larger ones, which lie deeper
        shallow = min(name.count(".") for name, _ in lists)
        lists = [(name, each) for name, each in lists if name.count(".") == shallow]
    _, layers = max(lists, key=lambda named: sum(p.numel() for p in named[1].parameters()))
    return list(layers)


def refuse_settings(config: PreTrainedConfig | OwnConfig) -> None:
    """Refuses configurations that need all layers at once."""
    for name in ("output_hidden_states", "output_attentions"):
        if getattr(config, name, False):
            raise refusal(config.model_type, f"{name} asks for what a stream does not keep")
    for name in ("layerdrop", "decoder_layerdrop"):
        if getattr(config, name, 0.0):
            raise refusal(config.model_type, f"{name} leaves out layers at random")


def refuse_leftovers(meta_model: MetaModel) -> None:
    """Tensors that the engine has no place for."""
    kind = meta_model.config.model_type
    carried = meta_model.carried_names
    for name, parameter in meta_model.model.named_parameters():
        if name in carried:
            continue
        if parameter.dtype != meta_model.dtype and not meta_model.is_fp32(parameter):
            raise refusal(kind, f"{name} is kept in {parameter.dtype}, the rest in {meta_model.dtype}")
        if parameter.numel() == 0 or parameter.dim() == 0:
            raise refusal(kind, f"{name} has shape {tuple(parameter.shape)}")
