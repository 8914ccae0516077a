"""The path of text through a multimodal model."""

from __future__ import annotations

from typing import Any

from torch import nn

from spillway.model.meta.score_head import HEAD, EveryToken


def embedding_of(model: Any) -> nn.Module | None:
    """The module that makes hidden states of text; None: the library does not say."""
    try:
        return model.get_input_embeddings()  # type: ignore[no-any-return]
    except NotImplementedError:
        return None


def head_of(model: Any) -> nn.Module | None:
    """The module that makes logits of the hidden state: the model's own, or that of a causal language model inside
    it."""
    embedding = embedding_of(model)
    for module in model.modules():
        head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
        if head is not None and embedding_of(module) is embedding:
            return head  # type: ignore[no-any-return]
    return getattr(model, HEAD) if isinstance(model, EveryToken) else None


def tower(model: Any) -> nn.Module:
    """The innermost module of a multimodal model that holds the embedding of text and a list of layers."""
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
