"""The model on `meta`: every module and buffer is there, no parameter has bytes.

Its parts are found by looking, not by a table of names. What is not embedding -> layers -> norm -> plain linear head
is refused here, by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from spillway.errors import InputError
from spillway.hf.source import first_line


@dataclass(frozen=True)
class Skeleton:
    """A causal language model without parameters, and its parts."""

    config: PreTrainedConfig
    dtype: torch.dtype  # what it computes in
    model: PreTrainedModel
    backbone: PreTrainedModel
    embedding: nn.Embedding
    layers: list[nn.Module]
    norm: nn.Module  # between the last layer and the head
    head: nn.Linear
    tied: bool  # the embedding's table is the head's matrix

    @property
    def hidden_size(self) -> int:
        return self.embedding.embedding_dim

    @property
    def vocabulary(self) -> int:
        return self.embedding.num_embeddings

    @property
    def stack(self) -> list[nn.Module]:
        """What is visited forward and backward: the layers, then the norm."""
        return [*self.layers, self.norm]

    def train(self, training: bool) -> None:
        if self.model.training != training:
            self.model.train(training)


def build(config: PreTrainedConfig, dtype: torch.dtype) -> Skeleton:
    """Builds the skeleton in `dtype`. InputError names the model type and what about it cannot be streamed."""
    model = on_meta(config, dtype)
    backbone = model.base_model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    kind = config.model_type
    if backbone is model or type(embedding) is not nn.Embedding or type(head) is not nn.Linear:
        raise refusal(kind, "it has no plain embedding and linear head")
    if head.bias is not None:
        raise refusal(kind, "its head has a bias")
    if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
        raise refusal(kind, "its embedding changes its rows or gradients")
    layers = find_layers(backbone, config)
    norm = find_norm(backbone, embedding, layers, kind)
    skeleton = Skeleton(
        config, dtype, model, backbone, embedding, list(layers), norm, head, head.weight is embedding.weight
    )
    refuse_leftovers(skeleton)
    return skeleton


def refusal(kind: str, reason: str) -> InputError:
    return InputError(f"model type {kind!r} cannot be streamed by this release: {reason}")


def on_meta(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    config.use_cache = False
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except Exception as error:  # whatever a model's constructor finds wrong with its configuration
        raise refusal(config.model_type, f"it cannot be built: {first_line(error)}") from error
    model.tie_weights()
    materialise_buffers(model)
    model.train()
    return model


def materialise_buffers(model: PreTrainedModel) -> None:
    """Gives buffers (rotary tables) bytes and values, by the model's own initialisation; parameters stay on meta."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # the library's own mark
    for module in model.modules():
        module._is_hf_initialized = False  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()


def find_layers(backbone: nn.Module, config: PreTrainedConfig) -> nn.ModuleList:
    count = getattr(config, "num_hidden_layers", None)
    lists = [child for child in backbone.children() if isinstance(child, nn.ModuleList) and len(child) == count]
    if len(lists) != 1:
        raise refusal(config.model_type, f"its backbone has no single list of its {count} layers")
    return lists[0]


def find_norm(backbone: nn.Module, embedding: nn.Module, layers: nn.Module, kind: str) -> nn.Module:
    others = [
        (name, child)
        for name, child in backbone.named_children()
        if child is not embedding and child is not layers and any(True for _ in child.parameters())
    ]
    if len(others) != 1:
        found = ", ".join(name for name, _ in others) or "nothing"
        raise refusal(kind, f"besides embedding and layers its backbone holds {found}, not one norm")
    return others[0][1]


def refuse_leftovers(skeleton: Skeleton) -> None:
    """Every parameter belongs to one part; no buffer is part of a checkpoint; the library loads names as they are."""
    kind = skeleton.config.model_type
    parts = [skeleton.embedding, *skeleton.stack, skeleton.head]
    known = [parameter for part in parts for parameter in part.parameters()]
    identities = {id(parameter) for parameter in known}
    shared = len(known) - len(identities) - int(skeleton.tied)
    if shared:
        raise refusal(kind, "its layers share parameters")
    for name, parameter in skeleton.model.named_parameters():
        if id(parameter) not in identities:
            raise refusal(kind, f"{name} lies outside embedding, layers, norm and head")
        if parameter.dtype != skeleton.dtype:
            raise refusal(kind, f"{name} is kept in {parameter.dtype}, the rest in {skeleton.dtype}")
    if rearranged_at_load(skeleton.model):
        raise refusal(kind, "its checkpoints hold other tensors than its layers (experts apart, for example)")
    buffers = dict(skeleton.model.named_buffers())
    saved = sorted(buffers.keys() & skeleton.model.state_dict().keys())
    if saved:
        raise refusal(kind, f"its checkpoints hold the buffer {saved[0]}, which no optimizer updates")


def rearranged_at_load(model: PreTrainedModel) -> bool:
    """True when the library converts this model's checkpoints while it loads them. A private door: only asked."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # a release that converts nothing, or elsewhere; the reader then names what does not match
        return False
    return bool(get_model_conversion_mapping(model, add_legacy=False))
