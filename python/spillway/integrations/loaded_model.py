"""The model that `load` returns. It has no weights; its Trainer runs its calls, generates with it and saves it."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import PreTrainedModel

from spillway.errors import InputError
from spillway.model.stream.generation import Logits, Streamed

if TYPE_CHECKING:
    from spillway.integrations.server_sampling import ServerSampler

NOBODY = (
    "model: load() made it without weights, which a Trainer streams; give it to spillway.hf.Trainer first, or open a "
    "spillway.Session, whose `model` generates"
)
WEIGHTS = (
    "state_dict: the weights live in the engine; trainer.save_model(DIR) writes them, for "
    "from_pretrained(DIR) or safetensors.torch.load_file"
)
PLACE = (
    "model: its weights live in the engine, so it is not moved or converted; load(..., device=...) says where it "
    "computes, and load(..., dtype=...) in which type"
)


class Host(Protocol):
    """A Trainer that streams the model."""

    def logits(self, ids: torch.Tensor, last: int) -> torch.Tensor:
        """The logits, as spillway.model.stream.generation.Logits gives them."""

    def save_model(self, output_dir: str) -> None:
        """Writes the current weights and the files that `from_pretrained` needs."""

    def whole_model(self) -> AbstractContextManager[PreTrainedModel | None]:
        """The library's own model with the current weights, to generate with; None: passes of the stream do."""

    def computes_on(self) -> str:
        """The type of the device that layers compute on."""

    def find_sampler(self) -> ServerSampler | None:
        """The server that generates; None: this process does."""


class LoadedModel(Streamed):
    """The base class that precedes the library's own class."""

    _host: weakref.ref[Host] | None = None
    evaluation = "trainer.evaluate()"

    @property
    def _logits(self) -> Logits:  # type: ignore[override]
        return require_host(self).logits

    def generate(self, *positional: Any, **named: Any) -> Any:
        """Generates as the library's own method does."""
        if (sampler := require_host(self).find_sampler()) is not None:
            return sampler.generate(*positional, **named)
        with require_host(self).whole_model() as whole:
            if whole is None:
                return super().generate(*positional, **named)
            model: Any = self
            whole.generation_config = copy.deepcopy(model.generation_config)
            whole.generation_config.use_cache = True
            return generate_on_host(whole, positional, named)

    def save_pretrained(self, save_directory: str | Path, *_: Any, push_to_hub: bool = False, **__: Any) -> None:
        """Saves the model as the Trainer's save_model does."""
        if push_to_hub:
            raise InputError("push_to_hub: TrainingArguments(push_to_hub=True) and trainer.push_to_hub() upload it")
        require_host(self).save_model(str(save_directory))

    def state_dict(self, *_: Any, **__: Any) -> Any:
        raise InputError(WEIGHTS)

    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        raise InputError("load_state_dict: the weights live in the engine; load(DIR) reads those of a directory")

    def to(self, *positional: Any, **named: Any) -> Any:
        """The model itself, if its layers compute on that device. InputError for another device."""
        device, dtype, *_ = torch._C._nn._parse_to(*positional, **named)
        host = None if self._host is None else self._host()
        if dtype is None and device is not None and device.type == (host.computes_on() if host else "cpu"):
            return self
        raise InputError(PLACE)

    def cpu(self) -> Any:
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Any:
        return self.to("cuda" if device is None else torch.device("cuda", device) if type(device) is int else device)

    def _apply(self, *_: Any, **__: Any) -> Any:
        """Refuses every other call that moves or converts a module."""
        raise InputError(PLACE)


def generate_on_host(whole: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Generates with tensors of the host, which draws the tokens. The result lies where the prompts did."""
    tensors = [each for each in (*positional, *named.values()) if isinstance(each, torch.Tensor)]

    def move_one(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    made = whole.generate(*map(move_one, positional), **{name: move_one(value) for name, value in named.items()})
    return made.to(tensors[0].device) if tensors and isinstance(made, torch.Tensor) else made


def require_host(model: LoadedModel) -> Host:
    host = None if model._host is None else model._host()
    if host is None:
        raise InputError(NOBODY)
    return host


def make_callable(model: PreTrainedModel) -> None:
    """Makes the model a LoadedModel. Its class keeps its name and signature."""
    kind = type(model)
    names = list(inspect.signature(kind.forward).parameters)[1:]

    @functools.wraps(kind.forward)
    def forward(self: Any, *positional: Any, **named: Any) -> Any:
        return Streamed.forward(self, **dict(zip(names, positional, strict=False)), **named)

    attributes = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    model.__class__ = type(kind.__name__, (LoadedModel, kind), attributes)


def stream_by(model: Any, host: Host) -> None:
    """Sets the Trainer that runs the model's calls."""
    model._host = weakref.ref(host)
