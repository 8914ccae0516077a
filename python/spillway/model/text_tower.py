"""Where text passes in a multimodal model."""

from __future__ import annotations

from typing import Any

from torch import nn


def tower(model: Any) -> nn.Module:
    """Of a multimodal model the innermost module that holds the embedding of text and a list of layers."""
    return model.get_submodule(tower_name(model))  # type: ignore[no-any-return]


def tower_name(model: Any) -> str:
    """Empty: the model itself is it."""
    embedding = model.get_input_embeddings()
    name = next((name for name, module in model.named_modules() if module is embedding), "")
    while name:
        name = name.rpartition(".")[0]
        if any(isinstance(module, nn.ModuleList) and len(module) for module in model.get_submodule(name).modules()):
            return name
    return name
