"""What code of a model's modules changes besides parameters, to be put back: a step is computed twice from one state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

COPIED = 1 << 20  # bytes; larger buffers are not copied


class Held(NamedTuple):
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor | None  # None: it is larger than COPIED
    version: int  # of PyTorch's counter of changes in place


class ModuleState:
    """Attributes and buffers of all modules of a model, as they are when it is made."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._attributes = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
        self._held = [
            Held(name, buffer, buffer.clone() if buffer.nbytes <= COPIED else None, buffer._version)
            for name, buffer in model.named_buffers()
            if buffer.device.type != "meta"
        ]

    def restore(self) -> str:
        """The name of a buffer that was changed in place and has no copy; "": everything is as it was."""
        for module, attributes, buffers in self._attributes:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        for held in self._held:
            if held.buffer._version == held.version:
                continue
            if held.copy is None:
                return held.name
            with torch.no_grad():
                held.buffer.copy_(held.copy)
        return ""
