"""The engine's description of a model: blocks, tensors as named in checkpoints, which of them decay."""

from __future__ import annotations

import re
import statistics
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from spillway._engine import BlockRole, BlockSpec, Description, Form, TensorSpec, Training, decoded_names
from spillway.base.documents import parse_json, read_json, require_file
from spillway.model.meta.demand import clip_share, estimate_met
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.source import DTYPES

# transformers' rule, Trainer.get_decay_parameter_names: layer norms by class, the rest by name.
UNDECAYED_LAYERS = (nn.LayerNorm,)
UNDECAYED_NAMES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")

NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"  # a key of a file's header that is no tensor
CHUNK_ELEMENTS = 4 * 1024 * 1024  # state::kDefaultChunkElements


@dataclass(frozen=True)
class WorkSize:
    """The largest step and evaluation, in micro-batches and tokens with padding."""

    micro_batches: int
    tokens: int
    virtual_ranks: int = 1
    parts: int = 0  # by which gradients are summed, where they are more than the micro-batches (`token_tiles`)


def describe(
    meta_model: MetaModel, size: WorkSize, compute_dtype: str, met: Mapping[str, list[float]] | None = None
) -> Description:
    """The engine's description. Tensors keep the model's order. Those that require no gradient are frozen. `met`: by
    tensor the share of steps that meet each of its experts; None: routing is even."""
    names = meta_model.names
    modules = {id(module): name for name, module in meta_model.model.named_modules()}
    decaying = set(decay_names(meta_model.model))

    asked = estimate_met(meta_model.config, size.tokens) if meta_model.on_demand else 1
    multiplying = [module for layer in meta_model.layers for module in layer.modules()]
    matrices = {id(p) for module in multiplying for p in list_matrices(module)}
    tower = set(map(id, meta_model.tower))
    matrices |= {id(p) for module in meta_model.model.modules() for p in list_matrices(module) if id(p) in tower}

    def tensor(p: nn.Parameter, role: BlockRole) -> TensorSpec:
        key = id(p)
        space = meta_model.spaces.get(key)
        trained = Training.reduced if space else Training.full if p.requires_grad else Training.frozen
        return TensorSpec(
            name=names[key],
            shape=list(p.shape),
            decay=names[key] in decaying and meta_model.trainable(p),
            training=trained,
            rank=space.rank if space else 0,
            nonzeros=space.nonzeros if space else 0,
            reduction=space.reduction if space else None,
            form=form_of(meta_model, p),
            pieces=meta_model.pieces.get(key, 0),
            **(describe_demand(asked, (met or {}).get(names[key])) if key in meta_model.on_demand else {}),
            table=role is BlockRole.layer and p.ndim == 2 and key not in matrices,
        )

    def block(name: str, role: BlockRole, parameters: Iterable[nn.Parameter]) -> BlockSpec:
        return BlockSpec(name=name, role=role, tensors=[tensor(p, role) for p in parameters])

    blocks = [block(modules[id(meta_model.embedding)], BlockRole.embedding, [meta_model.embedding.weight])]
    blocks += [block(stage.name, BlockRole.layer, stage.parameters) for stage in meta_model.stages]
    if not meta_model.tied:
        blocks.append(block(modules[id(meta_model.head)], BlockRole.head, [meta_model.head.weight]))
    return Description(
        compute_dtype=compute_dtype,
        weight_dtype=NAMES[meta_model.kept],
        hidden_size=meta_model.hidden_size,
        micro_batches=max(size.micro_batches, size.parts),
        accumulation=size.micro_batches,
        tokens=size.tokens,
        tied_head=meta_model.tied,
        blocks=blocks,
        virtual_ranks=size.virtual_ranks,
    )


def form_of(meta_model: MetaModel, p: nn.Parameter) -> Form:
    """The form in which a run stores a parameter."""
    space = meta_model.spaces.get(id(p))
    if space and space.master == "bf16":
        return Form.bf16_master
    return Form.fp32 if meta_model.is_fp32(p) else Form[meta_model.packed.get(id(p), "as_run")]


def describe_demand(even: float, shares: list[float] | None) -> dict[str, Any]:
    """The fields of a tensor whose experts come on demand. `even`: the share that even routing meets; `shares`: of the
    steps that meet each expert."""
    asked = even if shares is None else clip_share(statistics.mean(shares))
    by_piece = {"asked_by_piece": shares} if shares is not None and asked < 1 else {}
    return {"apart": True, "asked": asked, **by_piece}


def list_matrices(module: nn.Module) -> list[nn.Parameter]:
    """Parameters of two dimensions that a module multiplies by; an embedding's rows are looked up."""
    return [] if isinstance(module, nn.Embedding) else [p for p in module._parameters.values() if p is not None]


def decay_names(module: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: transformers' `get_parameter_names` with its own lists."""
    names = []
    for child_name, child in module.named_children():
        if not isinstance(child, UNDECAYED_LAYERS):
            full = (f"{child_name}.{name}" for name in decay_names(child))
            names += [name for name in full if not undecayed(name)]
    return names + [name for name in module._parameters if not undecayed(name)]


def undecayed(name: str) -> bool:
    return UNDECAYED_NAMES.search(name.lower()) is not None


def slice_rows(rows: int, columns: int, chunk_elements: int = CHUNK_ELEMENTS, shards: int = 1) -> int:
    """Rows of every vocabulary slice but the last: the engine's own rule (state::Layout)."""
    chunk = -(-chunk_elements // 2048) * 2048
    most = max(1, chunk // columns)
    each = -(-rows // shards)
    slices = -(-each // most)  # of a shard
    return -(-rows // (slices * shards))


def stored_names(description: Description, checkpoint: Path, prefix: str) -> dict[str, str]:
    """Name in the checkpoint for every tensor, whether or not its keys carry the backbone's prefix ("model.").

    What is not found keeps its name, so that the engine's reader names what is missing.
    """
    keys = stored_keys(checkpoint)
    names = {}
    for block in description.blocks:
        for tensor in block.tensors:
            name = tensor.name
            bare = name.removeprefix(f"{prefix}.")
            names[name] = bare if name not in keys and bare in keys else name
    return names


def stored_keys(checkpoint: Path) -> set[str]:
    """Keys of a checkpoint by its index or its one file's header; empty when unreadable (the engine says why)."""
    try:
        return decoded_names(str(checkpoint), read_keys(checkpoint))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return set()


def read_keys(checkpoint: Path) -> set[str]:
    """Keys of the files, codes and their scales included."""
    index = checkpoint / "model.safetensors.index.json"
    if index.exists():
        return set(read_json(index)["weight_map"])
    path = checkpoint / "model.safetensors"
    require_file(path)
    with open(path, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > path.stat().st_size:
            return set()
        return set(parse_json(stream.read(length))) - {METADATA}
