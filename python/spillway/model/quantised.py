"""Which weights of a frozen base are kept as codes of few bits, and what such codes make of weights.

They are those that bitsandbytes replaces for transformers: of `nn.Linear` and GPT-2's `Conv1D`, here inside the model's
layers, where adapters have left them frozen. The head, the embedding, norms and biases stay as they are, and so does
what a class keeps in fp32. Blocks go along a weight as checkpoints hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from spillway import _engine
from spillway.errors import InputError
from spillway.model.meta_model import bare_name, pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spillway.config import Config
    from spillway.model.meta_model import MetaModel


def choose(meta_model: MetaModel, config: Config) -> None:
    """Says in `meta_model.packed` which parameters are kept as codes. InputError where none can be."""
    form = config.base_form
    if form is None:
        return
    found = [linear.weight for linear in frozen_linears(meta_model.layers)]
    meta_model.packed = {id(weight): form for weight in found if not meta_model.is_fp32(weight)}
    if not meta_model.packed:
        key = "load_in_8bit" if form == "int8" else "load_in_4bit"
        raise InputError(f"{key}: it is for linear layers inside the model's layers, and none of these is frozen")


def frozen_linears(layers: Iterable[nn.Module]) -> Iterator[Any]:
    for layer in layers:
        modules: Iterable[Any] = layer.modules()
        for module in modules:
            if (type(module) is nn.Linear or isinstance(module, Conv1D)) and not module.weight.requires_grad:
                yield module


def choose_kinds(small: MetaModel, meta_model: MetaModel) -> None:
    """Packs in a model with fewer layers what is packed in any layer of `meta_model`."""
    kinds = {pattern(meta_model.names[key]): form for key, form in meta_model.packed.items()}
    small.packed = {key: kinds[pattern(name)] for key, name in small.names.items() if pattern(name) in kinds}


def names(meta_model: MetaModel) -> frozenset[str]:
    """The names of the parameters that are packed."""
    return frozenset(meta_model.names[key] for key in meta_model.packed)


def round_in(model: nn.Module, packed: frozenset[str], form: str) -> None:
    """Parameters of these names, fp32, become what their codes stand for."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if bare_name(name) in packed:
                flat = parameter.detach().contiguous().view(-1)
                _engine.round_packed(form, flat.numpy())
                parameter.copy_(flat.view(parameter.shape))
