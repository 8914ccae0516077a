"""Which weights of a frozen base are kept as codes of few bits, and what such codes make of weights.

Packed are the matrices inside a model's layers that adapters have left frozen: those of `nn.Linear` and GPT-2's
`Conv1D`, as transformers packs them for bitsandbytes, and the matrices that a class keeps together in one parameter,
such as the experts of a layer, in whatever order. Routers, the embedding, the head, norms and biases stay as they are,
and so does what a class keeps in fp32. Blocks go along a parameter as its class holds it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from transformers.pytorch_utils import Conv1D

from spillway import _engine
from spillway.errors import InputError
from spillway.model.adapters.unpacked import names_router
from spillway.model.layers.pieces import count_pieces
from spillway.model.meta.describe import NAMES
from spillway.model.meta.meta_model import bare_name, pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from spillway.config import Config
    from spillway.model.meta.meta_model import MetaModel

T = TypeVar("T")


def choose(meta_model: MetaModel, config: Config) -> None:
    """Says in `meta_model.packed` which parameters are kept as codes, in `meta_model.pieces` which of them passes
    convert a few experts at a time, and in `meta_model.on_demand` whose experts come when tokens are routed to them.
    InputError where none can be kept so."""
    form = config.base_form
    if form is None:
        if config.expert_loading == "on_demand":
            choose_experts_without_codes(meta_model)
        return
    frozen = (matrix for layer in meta_model.layers for matrix in find_matrices(layer) if not matrix.requires_grad)
    meta_model.packed = {id(matrix): form for matrix in frozen if not meta_model.is_fp32(matrix)}
    if not meta_model.packed:
        key = "load_in_8bit" if form == "int8" else "load_in_4bit"
        raise InputError(
            f"{key}: it is for linear layers and experts inside the model's layers, and none of these is frozen"
        )
    adapted = {id(parameter) for parameter in find_adapted_parameters(meta_model)}
    meta_model.pieces = count_all_pieces(meta_model, meta_model.packed.keys() - adapted)
    if config.expert_loading == "on_demand":
        meta_model.on_demand = find_on_demand(meta_model, form)


def choose_experts_without_codes(meta_model: MetaModel) -> None:
    """Says in `meta_model.pieces` and `meta_model.on_demand` which experts without codes come when tokens are routed to
    them. InputError where there is none."""
    matrices = (matrix for layer in meta_model.layers for matrix in find_matrices(layer))
    chosen = {id(matrix) for matrix in matrices if not meta_model.is_fp32(matrix)}
    adapted = {id(parameter) for parameter in find_adapted_parameters(meta_model, in_pieces=True)}
    meta_model.pieces = count_all_pieces(meta_model, chosen - adapted)
    meta_model.on_demand = find_on_demand(meta_model, "as_run")
    meta_model.pieces = {key: count for key, count in meta_model.pieces.items() if key in meta_model.on_demand}


def count_all_pieces(meta_model: MetaModel, chosen: Set[int]) -> dict[int, int]:
    """The pieces of those of the chosen parameters, by identity, that have some and one place in one stage."""
    shared = {id(parameter) for stage in meta_model.stages for parameter in stage.shared}
    counts = {}
    for parameter in (it for stage in meta_model.stages for it in stage.parameters if id(it) in chosen - shared):
        places = meta_model.places[id(parameter)]
        if len(places) == 1 and (count := count_pieces(places[0][0], parameter)) > 0:
            counts[id(parameter)] = count
    return counts


def find_on_demand(meta_model: MetaModel, form: str) -> set[int]:
    """The parameters, by identity, whose experts are converted in pieces that are placed apart (`granule_values`).
    InputError where there is none."""
    parameters = (it for stage in meta_model.stages for it in stage.parameters if id(it) in meta_model.pieces)
    values = {id(parameter): parameter[0].numel() for parameter in parameters}
    if not values:
        raise InputError(
            "expert_loading: no layer has experts in one parameter that a pass can take a few at a time; leave the key "
            "out"
        )
    unit = _engine.granule_values(form, NAMES[meta_model.kept])
    if whole := {key for key, count in values.items() if count % unit == 0}:
        return whole
    nested = form == "nf4_nested"
    raise InputError(
        f"expert_loading: experts of {min(values.values()):,} values cannot come on demand, which takes multiples of "
        f"{unit:,}{' with bnb_4bit_use_double_quant' * nested}; leave the key out{', or that one' * nested}"
    )


def find_matrices(layer: nn.Module) -> Iterator[nn.Parameter]:
    """The matrices that a layer multiplies by, without those of its routers."""
    counts = count_experts(layer)
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            matrix: Any = module.weight
            if not (names_router(f"{name}.weight") and is_score(matrix, name, counts)):
                yield matrix
        elif not isinstance(module, nn.Embedding | _ConvNd):
            yield from find_joined(name, module)


def find_adapted_parameters(meta_model: MetaModel, in_pieces: bool = False) -> Iterator[nn.Parameter]:
    """The parameters to whose experts a pass adds their adapters, all at once: those of PEFT's `ParamWrapper` in
    releases that do not give its factors (`adapted_pieces`). `in_pieces`: and those whose factors it gives."""
    for module in itertools.chain.from_iterable(layer.modules() for layer in meta_model.layers):
        name, base = getattr(module, "parameter_name", None), getattr(module, "get_base_layer", None)
        if name is not None and base is not None and (in_pieces or not hasattr(module, "get_delta_factors")):
            yield base()._parameters[name]


def find_joined(name: str, module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a module, called `name` in its layer, that have the matrices of several experts or heads."""
    of_experts = "expert" in type(module).__name__.lower()
    for own, parameter in module._parameters.items():
        if parameter is None or own.endswith("bias") or names_router(f"{name}.{own}"):
            continue
        if is_stack(parameter) or (parameter.dim() == 2 and of_experts):
            yield parameter


def is_stack(parameter: nn.Parameter) -> bool:
    """True if the parameter has several matrices; a convolution over time has one row for each channel."""
    return parameter.dim() == 3 and min(parameter.shape[1:]) > 1


def is_score(matrix: nn.Parameter, name: str, counts: set[int]) -> bool:
    """True if the linear layer's matrix scores each expert of the layer. Its name says that it may be a router's."""
    return "router" in name.lower() or matrix.shape[0] in counts


def count_experts(layer: nn.Module) -> set[int]:
    """The numbers of experts that parts of a layer have: in one parameter, or each a module."""
    joined = {p.shape[0] for p in layer.parameters() if is_stack(p)}
    return joined | {len(m) for name, m in layer.named_modules() if isinstance(m, nn.ModuleList) and "expert" in name}


def choose_kinds(small: MetaModel, meta_model: MetaModel) -> None:
    """Packs in a model with fewer layers what is packed in any layer of `meta_model`, in pieces what is there."""
    small.packed = choose_alike(small, meta_model, meta_model.packed)
    small.pieces = choose_alike(small, meta_model, meta_model.pieces)


def choose_alike(small: MetaModel, meta_model: MetaModel, chosen: Mapping[int, T]) -> dict[int, T]:
    """For parameters of a model with fewer layers what is `chosen` for those of the same name in any layer."""
    kinds = {pattern(meta_model.names[key]): value for key, value in chosen.items()}
    return {key: kinds[pattern(name)] for key, name in small.names.items() if pattern(name) in kinds}


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
