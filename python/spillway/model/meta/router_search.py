"""The routers' auxiliary loss (`router`) of a model: whether it adds it to its own, and with which experts, k and
coefficient.

Found by running the model without its layers: what its own forward pass hands to the library's function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spillway.model.batches.microbatch import MicroBatch
from spillway.model.layers.router import Routers
from spillway.model.meta.after_layers import run_without_layers
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.library import recorded_as_router_logits
from spillway.model.source.model_code import refusal, replaced_forwards, says_router_logits
from spillway.model.source.source import is_multimodal, text_config

FUNCTION = "load_balancing_loss_func"
ARGUMENTS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


def find_routers(meta_model: MetaModel) -> Routers | None:
    """None for a model that adds no such loss, as configured. InputError for a loss of another kind."""
    model = meta_model.model
    refuse_z_loss(meta_model)
    asked = getattr(text_config(meta_model.config), "output_router_logits", False)
    if asked and is_multimodal(meta_model.config) and says_router_logits(model):
        raise refusal(
            meta_model.config.model_type,
            "output_router_logits asks for an auxiliary loss, which multimodal models are not trained with; switch "
            "it off in config.json",
        )
    if not asked or not says_router_logits(model) or not hasattr(sys.modules[type(model).__module__], FUNCTION):
        return None
    routers, modules = Routers(*settings(meta_model)), list(router_modules(meta_model))
    if not modules:
        raise refusal(meta_model.config.model_type, "output_router_logits is set, and no layer of it has a router")
    for module, index in modules:
        routers.watch(module, index)
    return routers


def refuse_z_loss(meta_model: MetaModel) -> None:
    """InputError where the configuration asks for a loss on the size of logits."""
    for name, value in vars(text_config(meta_model.config)).items():
        if "z_loss" in name and isinstance(value, int | float) and value > 0:
            raise refusal(
                meta_model.config.model_type,
                f"{name} is {value}, and no z-loss is added in this release; set it to 0 in config.json",
            )


def settings(meta_model: MetaModel) -> tuple[int, int, float]:
    """Experts, k and coefficient: what the model's own forward pass hands to the function, and what it makes of 1."""
    kind, model = meta_model.config.model_type, meta_model.model
    place: Any = sys.modules[type(model).__module__]
    own = getattr(place, FUNCTION)
    if list(inspect.signature(own).parameters) != ARGUMENTS:
        raise refusal(kind, "output_router_logits adds an auxiliary loss of its own kind; switch it off in config.json")
    seen: list[dict[str, Any]] = []

    def one(*positional: Any, **named: Any) -> torch.Tensor:
        bound = inspect.signature(own).bind(*positional, **named)
        bound.apply_defaults()
        seen.append(bound.arguments)
        return torch.ones((), dtype=torch.float64)

    none = torch.empty(0, dtype=torch.int64)
    batch = MicroBatch(0, 0, 1, 2, None, none, none)
    logits = torch.zeros(1, batch.length, 1, dtype=meta_model.dtype)
    with replaced_forwards({meta_model.head: lambda *_, **__: logits}), meta_model.stand_ins(meta_model.tail):
        with replaced(place, FUNCTION, one), replaced(model, "loss_function", no_loss):
            labels = torch.zeros(1, batch.length, dtype=torch.int64)
            result = run_without_layers(meta_model, batch, None, labels=labels, output_router_logits=True)
    if len(seen) != 1 or result.loss is None:
        raise refusal(kind, "output_router_logits asks for an auxiliary loss that its code does not add once")
    return int(seen[0]["num_experts"]), int(seen[0]["top_k"]), float(result.loss)


def no_loss(*_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def router_modules(meta_model: MetaModel) -> Iterator[tuple[nn.Module, int]]:
    """The modules inside layers whose output the library records as router logits, and the place in it."""
    names = {id(module): name for name, module in meta_model.model.named_modules()}
    for spec in recorded_as_router_logits(meta_model.model):
        kind = getattr(spec, "target_class", spec if isinstance(spec, type) else None)
        suffix = getattr(spec, "class_name", spec if isinstance(spec, str) else None)
        inside, index = getattr(spec, "layer_name", None), getattr(spec, "index", 1)
        for layer in meta_model.layers:
            for module in layer.modules():
                name = names[id(module)]
                matches = isinstance(module, kind) if kind is not None else bool(suffix) and name.endswith(suffix)
                if matches and (inside is None or f".{inside.strip('.')}." in f"{name}."):
                    yield module, index
