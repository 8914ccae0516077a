"""The operations of a vision tower and its projector on a micro-batch's images, from their shapes: their products and
attention. A trace (`trace`) cannot have them, since many towers ask for the values of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spillway._engine import AttentionCalls, PassOperations, ProductCalls, TracedPass
from spillway.model.meta.streamed_tower import PROJECTOR
from spillway.model.source.source import text_config

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel

HIDDEN_HELD, INNER_HELD = 8, 2  # arrays of a patch that a layer of a tower holds at once, of each width
BACKWARD = ("forward", "input", "weight")  # products of a backward pass, which computes forward again


@dataclass(frozen=True)
class TowerShape:
    """The work of a vision tower on a micro-batch, and its sizes."""

    images: int
    patches: int  # of all images
    tokens: int  # of images, in the rows
    hidden: int
    inner: int
    heads: int
    depth: int
    levels: int  # features of a token: one, and one for each layer that more are added before

    def computing_bytes(self, element: int, is_trained: bool) -> int:
        """Temporaries of a layer. A trained tower has their gradients, and the input of every layer."""
        layer = HIDDEN_HELD * self.hidden + INNER_HELD * self.inner
        widths = 2 * layer + self.depth * self.hidden if is_trained else layer
        return self.patches * element * widths


def find_shape(config: Any, images: Mapping[str, torch.Tensor], tokens: int) -> TowerShape:
    """`images`: the arguments that a processor makes of a micro-batch; `tokens`: of images."""
    vision, values = config.vision_config, images["pixel_values"]
    hidden = int(getattr(vision, "embed_dim", None) or vision.hidden_size)
    inner = getattr(vision, "intermediate_size", None) or int(hidden * getattr(vision, "mlp_ratio", 4))
    heads = int(getattr(vision, "num_attention_heads", None) or vision.num_heads)
    depth = int(getattr(vision, "num_hidden_layers", None) or vision.depth)
    levels = 1 + len(getattr(vision, "deepstack_visual_indexes", None) or ())
    if values.dim() == 2:  # a row for each patch
        count, patches = len(images["image_grid_thw"]), len(values)
    else:
        count = values.shape[:-3].numel()
        patches = count * (values.shape[-2] // vision.patch_size) * (values.shape[-1] // vision.patch_size)
    return TowerShape(count, patches, tokens, hidden, int(inner), heads, depth, levels)


def feature_bytes(meta_model: MetaModel, shape: TowerShape) -> int:
    width = int(text_config(meta_model.config).hidden_size)
    return shape.tokens * shape.levels * width * meta_model.dtype.itemsize


def list_matrices(meta_model: MetaModel) -> list[tuple[str, nn.Parameter]]:
    """The matrices of a tower, without tables of positions."""
    tables = {id(each.weight) for each in meta_model.model.modules() if isinstance(each, nn.Embedding)}
    parts = [*meta_model.carried, *meta_model.tower]
    return [
        (meta_model.names[id(each)], each)
        for each in parts
        if each.dim() > 1 and each.shape[0] > 1 and id(each) not in tables
    ]


def trace_tower(meta_model: MetaModel, shape: TowerShape) -> dict[str, TracedPass]:
    """The operations of the first layer's passes beside those of a layer, by the names of `_engine.PassSeconds`. A
    frozen tower has no backward pass."""
    passes = {"entry_forward": one_pass(meta_model, shape, ("forward",))}
    if meta_model.tower:
        passes["entry_backward"] = one_pass(meta_model, shape, BACKWARD)
    return passes


def one_pass(meta_model: MetaModel, shape: TowerShape, which: tuple[str, ...]) -> TracedPass:
    products = []
    for name, matrix in list_matrices(meta_model):
        rows = shape.tokens if PROJECTOR.search(name) else shape.patches
        outer = matrix.shape[0]
        sizes = {"tokens": rows, "inner": matrix.numel() // outer, "outer": outer, "calls": 1}
        wanted = [each for each in which if each != "weight" or matrix.requires_grad]
        products += [ProductCalls(product=each, **sizes) for each in wanted]
    each_image = shape.patches / max(1, shape.images)
    sizes = {"tokens": each_image, "head_size": shape.hidden / shape.heads, "calls": shape.depth * shape.images}
    operations = 4 * each_image * each_image * shape.hidden
    attention = [AttentionCalls(operations=operations, backward=False, **sizes)]
    if "input" in which:
        attention.append(AttentionCalls(operations=2 * operations, backward=True, **sizes))
    return TracedPass(each=PassOperations(products=products, attention=attention), once=PassOperations())
