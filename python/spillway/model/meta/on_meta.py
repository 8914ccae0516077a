"""A model of the library, or a module of somebody's own, on `meta`: every buffer is there, no parameter has bytes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from spillway.errors import first_line
from spillway.model.layers.row_attention import attend_by_row
from spillway.model.meta.score_head import score_every_token
from spillway.model.meta.text_tower import embedding_of, head_of
from spillway.model.source.library import find_fp32_names
from spillway.model.source.model_code import refusal
from spillway.model.source.own import OwnConfig
from spillway.model.source.source import auto_class, is_classifier, text_config


def on_meta(config: PreTrainedConfig | OwnConfig, dtype: torch.dtype) -> PreTrainedModel:
    if isinstance(config, OwnConfig):
        return config.on_meta(dtype)  # type: ignore[no-any-return]
    config.use_cache = False
    text_config(config).use_cache = False
    try:
        with torch.device("meta"):
            model = from_config(copy.deepcopy(config), dtype)
    except Exception as error:  # whatever a model's constructor finds wrong with its configuration
        raise refusal(config.model_type, f"it cannot be built: {first_line(error)}") from error
    attend_by_row(model)
    model.tie_weights()
    fp32 = find_fp32_names(model, dtype)
    widen(model, fp32)
    materialise_buffers(model, fp32)
    model.train()
    return model


def from_config(config: PreTrainedConfig | OwnConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The library's own model, with scaled_dot_product_attention where it has that."""
    if isinstance(config, OwnConfig):
        return config.plain(dtype)  # type: ignore[no-any-return]
    made = auto_class(config)
    model = build_with_attention(
        lambda how: made.from_config(config, attn_implementation=how, dtype=dtype, trust_remote_code=False)
    )
    return score_every_token(model) if is_classifier(config) else model


def build_with_attention(make: Callable[[str], PreTrainedModel]) -> PreTrainedModel:
    """`make`: of a kind of attention a model, or ValueError where its class has not this one."""
    try:
        return make("sdpa")
    except ValueError:
        return make("eager")


def without_carried(config: PreTrainedConfig, dtype: torch.dtype, carried: Collection[str]) -> PreTrainedModel:
    """The library's own model with random weights, but for parameters of these names: they stay on `meta`, save for
    the first, by which the library tells where the model is."""
    with torch.device("meta"):
        model = from_config(config, dtype)
    model.tie_weights()
    made: dict[int, nn.Parameter] = {}
    first = next(model.parameters())
    for owner, module in model.named_modules():
        for name, parameter in module._parameters.items():
            held = f"{owner}.{name}".lstrip(".") not in carried or parameter is first
            if parameter is not None and held:
                made.setdefault(id(parameter), nn.Parameter(torch.zeros_like(parameter, device="cpu")))
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = made.get(id(parameter), parameter)
    materialise_buffers(model, find_fp32_names(model, dtype))
    return model


def widen(model: PreTrainedModel, fp32: re.Pattern[str]) -> None:
    """Parameters of these names are of fp32, whatever the rest is; not tables, of which slices are computed with."""
    tables = {id(getattr(table, "weight", None)) for table in (embedding_of(model), head_of(model))}
    made: dict[int, nn.Parameter] = {}
    for owner, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in tables or not fp32.search(f"{owner}.{name}"):
                continue
            in_fp32 = parameter.detach().to(torch.float32)
            made.setdefault(id(parameter), nn.Parameter(in_fp32, requires_grad=parameter.requires_grad))
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = made.get(id(parameter), parameter)


def materialise_buffers(model: PreTrainedModel, fp32: re.Pattern[str]) -> None:
    """Gives buffers (rotary tables), and parameters that have bytes, values by the model's own initialisation; other
    parameters stay on meta.

    `fp32`: names of buffers that are of this type, whatever the rest is.
    """
    for parameter in model.parameters():
        parameter._is_hf_initialized = parameter.is_meta  # type: ignore[attr-defined]  # the library's own mark
    for owner, module in model.named_modules():
        module._is_hf_initialized = False  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                in_fp32 = buffer.is_floating_point() and fp32.search(f"{owner}.{name}")
                dtype = torch.float32 if in_fp32 else buffer.dtype
                module._buffers[name] = torch.zeros_like(buffer, device="cpu", dtype=dtype)
    model.initialize_weights()
