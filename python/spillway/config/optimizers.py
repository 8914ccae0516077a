"""Optimizers as the engine describes them: keys, defaults, what a step is given and what is refused follow from it.

Nothing here, and nothing that asks here, names one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spillway import _engine

T = TypeVar("T")


@dataclass(frozen=True)
class Hyperparameter:
    """One of an optimizer's. `key` "": the configuration has no key of its own for it."""

    name: str
    key: str
    default: float
    least: float
    below: float
    above: bool  # a configuration asks for more than `least`
    words: str
    choices: list[str]  # names of the values 0, 1, ...; none: it is a number


@dataclass(frozen=True)
class Optimizer:
    """One descriptor; see spillway/optim/descriptor.h."""

    name: str
    words: str
    scope: str  # "element", or "matrix": matrices of layers, whole; what is none has the optimizer `others`
    fields: list[str]
    hyperparameters: list[Hyperparameter]
    formats: list[str]
    decoupled_decay: bool
    on_device: bool
    others: str  # "": none

    def groups(self) -> list[Optimizer]:
        return [self, OPTIMIZERS[self.others]] if self.others else [self]


def describe(told: _engine.OptimizerDescriptor) -> Optimizer:
    """The descriptor as a value of Python, which is compared and copied."""
    hyperparameters = [read_fields(Hyperparameter, each) for each in told.hyperparameters]
    return replace(read_fields(Optimizer, told), hyperparameters=hyperparameters)


def read_fields(kind: type[T], told: object) -> T:
    return kind(**{name: getattr(told, name) for name in kind.__annotations__})


OPTIMIZERS = {it.name: it for it in map(describe, _engine.optimizers())}


def own_keys() -> dict[str, str]:
    """Keys that begin with the name of the one optimizer that has them, and that optimizer."""
    owners: dict[str, set[str]] = {}
    for it in OPTIMIZERS.values():
        for each in it.hyperparameters:
            owners.setdefault(each.key, set()).add(it.name)
    return {key: of.copy().pop() for key, of in owners.items() if len(of) == 1 and key.startswith(f"{min(of)}_")}


def make_update(config: Any, learning_rate: float) -> _engine.StepUpdate:
    """The values of one update. `learning_rate` overrides the configuration's. Groups that have a highest rate of their
    own follow the same schedule."""
    optimizer = OPTIMIZERS[config.optim]
    values = {}
    for group in optimizer.groups():
        for each in group.hyperparameters:
            name = f"{group.name}.{each.name}" if optimizer.others else each.name
            values[name] = rate(config, each, learning_rate) if each.name == "learning_rate" else value(config, each)
    made = _engine.StepUpdate(max_grad_norm=config.max_grad_norm)
    made.learning_rate = values.pop("learning_rate", made.learning_rate)
    made.weight_decay = values.pop("weight_decay", made.weight_decay)
    made.hyperparameters = values
    return made


def rate(config: Any, hyperparameter: Hyperparameter, learning_rate: float) -> float:
    highest = getattr(config, hyperparameter.key) if hyperparameter.key else None
    if highest is None or config.learning_rate == 0:
        return learning_rate
    return float(highest * (learning_rate / config.learning_rate))


def value(config: Any, hyperparameter: Hyperparameter) -> float:
    found = getattr(config, hyperparameter.key)
    return float(hyperparameter.choices.index(found) if hyperparameter.choices else found)
