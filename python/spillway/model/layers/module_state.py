"""Attributes and buffers of a model's modules, which are restored between two computations of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

COPIED = 1 << 20  # bytes; larger buffers are not copied


class Buffer(NamedTuple):
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor | None  # None for a buffer larger than COPIED
    version: int  # PyTorch's counter of changes in place


class ModuleState:
    """A copy of the attributes and buffers of all modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._attributes = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
        self._buffers = [
            Buffer(name, buffer, buffer.clone() if buffer.nbytes <= COPIED else None, buffer._version)
            for name, buffer in model.named_buffers()
            if buffer.device.type != "meta"
        ]

    def restore(self) -> str:
        """Restores all values. Returns the name of a changed buffer without a copy; "" if all are restored."""
        for module, attributes, buffers in self._attributes:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        for name, buffer, copy, version in self._buffers:
            if buffer._version == version:
                continue
            if copy is None:
                return name
            with torch.no_grad():
                buffer.copy_(copy)
        return ""
