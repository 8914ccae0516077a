"""The library's own model with a run's weights, all of them in DRAM or in GPU memory at once.

Generation reads every weight for each token, so streaming them would be slow. The weights leave when it is done.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spillway._engine import Description, Form
from spillway.machine.place import HOST, Place
from spillway.model.adapters.lora import insert_adapters
from spillway.model.meta.meta_model import bare_name
from spillway.model.meta.on_meta import from_config, materialise_buffers, widen
from spillway.model.source.library import find_fp32_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spillway.model.meta.meta_model import MetaModel

PIECE = 1 << 22  # elements that are fetched at a time
Fetch = Callable[[int, int, torch.Tensor], None]  # number of a tensor, first element, fp32 values


@contextmanager
def hold_model(
    meta_model: MetaModel, description: Description, fetch: Fetch, place: Place = HOST
) -> Iterator[PreTrainedModel]:
    """The model with the weights that passes compute with, in evaluation mode. The weights leave at the end. On a GPU
    its layers compute there, and its calls take and return tensors of the host."""
    place.give_back()  # temporaries of steps
    model = build_plain(meta_model)
    place.take_buffers(model)
    if place.device.type != "cpu":
        compute_elsewhere(model, place.device)
    try:
        with place.current():
            fill(model, meta_model, description, fetch, place.device)
            yield model
    finally:
        replace_parameters(model, {id(each): nn.Parameter(each.data.to("meta"), False) for each in model.parameters()})
        place.give_back()


def build_plain(meta_model: MetaModel) -> PreTrainedModel:
    """The library's own model, adapters included: buffers have the values of `meta_model`, parameters are on meta."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            model = from_config(copy.deepcopy(meta_model.config), meta_model.dtype)
        model.config.use_cache = True
        model.tie_weights()
        fp32 = find_fp32_names(model, meta_model.dtype)
        widen(model, fp32)
        materialise_buffers(model, fp32)
        if meta_model.adapters is not None:
            insert_adapters(model, copy.deepcopy(meta_model.adapters.config), low_cpu_mem_usage=True)
    values = {bare_name(name): buffer for name, buffer in meta_model.model.named_buffers()}
    for name, buffer in model.named_buffers():
        buffer.copy_(values[bare_name(name)])
    return model.requires_grad_(False).eval()


def compute_elsewhere(model: PreTrainedModel, device: torch.device) -> None:
    """Each call of the model moves its tensors to the device, and its logits to the host, which draws the tokens. So
    the same random numbers of the host draw them wherever the layers compute."""

    def move(_: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def move_one(value: Any) -> Any:
            return value.to(device) if isinstance(value, torch.Tensor) else value

        return tuple(map(move_one, positional)), {name: move_one(value) for name, value in named.items()}

    def bring_back(_: Any, __: Any, output: Any) -> Any:
        output.logits = output.logits.cpu()
        return output

    model.register_forward_pre_hook(move, with_kwargs=True)
    model.register_forward_hook(bring_back)


def fill(
    model: PreTrainedModel, meta_model: MetaModel, description: Description, fetch: Fetch, device: torch.device
) -> None:
    """Gives a model of `build_plain` its weights, on the device."""
    listed = [tensor for block in description.blocks for tensor in block.tensors]
    numbers = {tensor.name: number for number, tensor in enumerate(listed)}
    made: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        number = numbers[bare_name(name)]
        kept = torch.float32 if listed[number].form is Form.fp32 else meta_model.kept
        dtype = meta_model.dtype if ".lora_" in name else parameter.dtype  # PEFT makes adapters fp32
        values = torch.empty(parameter.shape, dtype=dtype, device=device)
        read_weight(values, kept, number, fetch)
        made[id(parameter)] = nn.Parameter(values, False)
    replace_parameters(model, made)


def read_weight(values: torch.Tensor, kept: torch.dtype, number: int, fetch: Fetch) -> None:
    """A weight as passes have it: the fp32 master, rounded to the type in which weights are kept."""
    for first, piece in zip(range(0, values.numel(), PIECE), values.view(-1).split(PIECE), strict=True):
        masters = torch.empty(piece.numel())
        fetch(number, first, masters)
        piece.copy_(round_master(masters, kept))


def round_master(masters: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
    """bf16 by the engine's rule (`split` of its kernels): to the nearest, of two equally near ones the larger."""
    if kept != torch.bfloat16:
        return masters.to(kept)
    bits = masters.view(torch.int32)
    return ((bits + 0x8000) & -0x10000).view(torch.float32)


def replace_parameters(model: nn.Module, by_identity: dict[int, nn.Parameter]) -> None:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = by_identity.get(id(parameter), parameter)
