"""A model's own code, run with parts of it replaced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spillway.errors import InputError

Form = int | None  # what a layer returns: the hidden state alone, or a tuple of so many that begins with it
LONGEST_FORM = 4


def refusal(kind: str, reason: str) -> InputError:
    return InputError(f"model type {kind!r} cannot be streamed by this release: {reason}")


class Left(Exception):
    """The model was left on purpose."""


def in_form(hidden: torch.Tensor, form: Form) -> Any:
    return hidden if form is None else (hidden, *[None] * (form - 1))


@contextmanager
def replaced_forwards(forwards: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def accepts(model: nn.Module, keyword: str) -> bool:
    """True if the model's forward takes this argument."""
    parameters = inspect.signature(type(model).forward).parameters
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def says_router_logits(model: nn.Module) -> bool:
    return "output_router_logits" in inspect.signature(type(model).forward).parameters


def call_model(model: nn.Module, ids: torch.Tensor, position_ids: torch.Tensor | None = None, **more: Any) -> Any:
    """The model's own forward pass on text. `more`: further arguments. Some multimodal classes do not train unless they
    are told which tokens are no text: these get zeros."""
    keywords: dict[str, Any] = {"input_ids": ids, **more}
    if accepts(model, "use_cache"):
        keywords["use_cache"] = False
    if position_ids is not None:
        keywords["position_ids"] = position_ids
    try:
        return model(**keywords)
    except ValueError as error:
        if (name := token_types_asked(model, error)) is None or name in keywords:
            raise
    return model(**keywords, **{name: torch.zeros_like(ids)})


def call_without_layers(model: nn.Module, ids: torch.Tensor, position_ids: torch.Tensor | None, **more: Any) -> Any:
    """Calls, as call_model() does, a model whose layers do not run, so that no router has logits."""
    if says_router_logits(model):
        more.setdefault("output_router_logits", False)
    return call_model(model, ids, position_ids, **more)


def token_types_asked(model: nn.Module, error: ValueError) -> str | None:
    """The argument for types of tokens that the model's forward misses by this error, if it is that."""
    names = (name for name in inspect.signature(type(model).forward).parameters if name.endswith("token_type_ids"))
    return next((name for name in names if f"`{name}`" in str(error)), None)
