"""Digests of the inputs and outputs of one computation of a step, in the order of its passes.

Two computations of a step from the same state have the same digests. The first digest that differs names the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from spillway._engine import Description, Engine

PIECE = 1 << 22  # bytes of one copy from a GPU

Value = int | str | tuple[int, ...]


class NoDigests:
    """The stand-in for a step without a replay."""

    @property
    def flags(self) -> dict[str, bool]:
        """Further arguments of Engine.begin_step."""
        return {}

    def add_output(self, place: int, number: int, output: torch.Tensor) -> None:
        """The output of the stack's layer `place` for micro-batch `number`; place -1: the embedding's rows."""

    def add_input_gradient(self, place: int, number: int, gradient: torch.Tensor) -> None:
        """The gradient of the input of a layer."""

    def add_gradient(self, tensor: int, part: int, gradient: torch.Tensor) -> None:
        """The gradient of a tensor, by the engine's number, as a part of a micro-batch hands it over."""

    def add_losses(self, numbers: Iterable[int], losses: Callable[[], list[float]]) -> None:
        """Each micro-batch's loss, once in a step."""

    def end_pass(self) -> None:
        """Adds the engine's own digests: of weights that passes have read, and of complete gradients."""


@dataclass
class Digests(NoDigests):
    """Digests by name, in order."""

    engine: Engine
    description: Description  # the engine's description of the model
    trial: bool = False  # True if no storage path gets the gradients
    values: dict[str, Value] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)  # names of the values that passes read and do not change

    @property
    def flags(self) -> dict[str, bool]:
        return {"digests": True, "trial": self.trial}

    def __post_init__(self) -> None:
        blocks = self.description.blocks
        self._blocks = [block.name for block in blocks]
        self._tensors = [tensor.name for block in blocks for tensor in block.tensors]

    def add_output(self, place: int, number: int, output: torch.Tensor) -> None:
        self._add(f"the output of {self._blocks[place + 1]} for micro-batch {number}", output)

    def add_input_gradient(self, place: int, number: int, gradient: torch.Tensor) -> None:
        self._add(f"the gradient of the input of {self._blocks[place + 1]} for micro-batch {number}", gradient)

    def add_gradient(self, tensor: int, part: int, gradient: torch.Tensor) -> None:
        self._add(f"the gradient of {self._tensors[tensor]} in part {part}", gradient)

    def add_losses(self, numbers: Iterable[int], losses: Callable[[], list[float]]) -> None:
        numbers = list(numbers)
        if all(name_loss(number) in self.values for number in numbers):
            return
        self.values |= {name_loss(number): loss.hex() for number, loss in zip(numbers, losses(), strict=True)}

    def add_norm(self, squares: float) -> None:
        self.values["the norm of the gradient"] = squares.hex()

    def end_pass(self) -> None:
        for digest in self.engine.take_digests():
            self.values[digest.name] = digest.value
            if digest.is_weight:
                self.weights.add(digest.name)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        if flat.device.type == "cpu":
            self.values[name] = self.engine.digest(flat)
        else:
            self.values[name] = tuple(self.engine.digest(piece.cpu()) for piece in flat.split(PIECE))

    def find_difference(self, other: Digests) -> Difference | None:
        """The first value that differs, weights before others; None if the two computations are equal."""
        names = [name for name in self.values if other.values.get(name) != self.values[name]]
        names += [name for name in other.values if name not in self.values]
        if not names:
            return None
        weights = [name for name in names if name in self.weights]
        first = (weights or names)[0]
        place = list(self.values).index(first) if first in self.values else len(self.values)
        loss = any(name.startswith(LOSS) for name in names)
        return Difference(first, place, in_weights=bool(weights), in_loss=loss)


@dataclass(frozen=True)
class Difference:
    """The difference of two computations of a step."""

    name: str  # name of the first value that differs
    place: int  # place of the value in the order of the step
    in_weights: bool  # True if bytes changed that passes only read
    in_loss: bool


LOSS = "the loss of micro-batch"


def name_loss(number: int) -> str:
    return f"{LOSS} {number}"
