"""A model of the same widths, with one layer of each kind and one slice of the vocabulary. Dry runs and traces run its
step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedConfig

from spillway._engine import Description
from spillway.model.adapters import quantised
from spillway.model.checkpoint.freeze import freeze_kinds
from spillway.model.head.head_groups import extra_bytes
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe, slice_rows
from spillway.model.meta.factors import choose_kinds
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.own import OwnConfig
from spillway.model.source.source import text_config
from spillway.model.source.tiny_copy import fewer_layers
from spillway.model.stream.stream import Stream

if TYPE_CHECKING:
    from spillway.model.batches.batch import WorkShape
    from spillway.model.measure.timed_engine import TimedEngine

BYTES_PER_TOKEN = 64  # ids, labels, positions, running log-sum-exp: what a step keeps for every token besides states

S = TypeVar("S", bound=Stream)


@dataclass(frozen=True)
class NarrowStep:
    """A step of a narrow copy of the model, with what a run's step has of it."""

    small: MetaModel
    shape: WorkShape
    compute_dtype: str
    unneeded: Collection[str] = ()
    tiles: TokenTiles = ALL_AT_ONCE
    fused: bool = False  # kernels stand for norms, SwiGLU and rotary embedding

    @property
    def parts(self) -> int:
        """The parts by which the run sums gradients."""
        return self.shape.micro_batches * self.tiles.count(self.shape.batch * self.shape.length)

    @property
    def lends(self) -> bool:
        """True if the run's products add to sums. A step of one part makes weight gradients beside the sums."""
        return self.parts > self.shape.virtual_ranks

    def describe(self, tokens: int) -> Description:
        """A micro-batch of at most so many tokens."""
        return describe(self.small, WorkSize(1, tokens), self.compute_dtype)

    def open_stream(self, kind: type[S], engine: TimedEngine, **more: Any) -> S:
        base = 1.0 if self.shape.refers else None
        return kind(self.small, engine, 0, self.unneeded, tiles=self.tiles, fused=self.fused, base=base, **more)

    def count_kept(self, tokens: int, masks: int = 0) -> int:
        """Bytes that a step keeps for its micro-batches beyond the first. `masks`: of one micro-batch."""
        return (self.shape.micro_batches - 1) * (tokens * self.token_bytes + masks)

    @property
    def token_bytes(self) -> int:
        """Bytes that a step keeps for every token besides states."""
        if not self.shape.refers:
            return BYTES_PER_TOKEN
        return 2 * BYTES_PER_TOKEN + self.small.width * self.small.dtype.itemsize

    def count_head_bytes(self) -> int:
        """Bytes that the head holds of all micro-batches beyond those of one."""
        return extra_bytes(self.tiles, self.shape, self.small)


def narrow_of_its_kind(meta_model: MetaModel, saved: bool, shards: int = 1) -> MetaModel:
    """A narrow copy with adapters, with what is frozen, reduced and packed. `saved`: a layer of it can
    keep what autograd saves: where the first one runs with what comes before it, that is the second. `shards`: that the
    engine cuts the vocabulary into."""
    small = narrow_copy(meta_model, saved and not meta_model.simple_entry, shards)
    if meta_model.takes_images:
        small.take_images()
    if meta_model.adapters is not None:
        meta_model.adapters.like_largest(small, meta_model.model)
    freeze_kinds(small, meta_model)
    choose_kinds(small, meta_model)
    quantised.choose_kinds(small, meta_model)
    return small


def narrow_copy(meta_model: MetaModel, two: bool = False, shards: int = 1) -> MetaModel:
    """A copy with as few layers as its class can be built with. `two`: with two layers at least. `shards`: slices into
    which the engine cuts the vocabulary."""
    least = 1 if meta_model.has_own_tail and not two else 2
    for layers in (least, 2, 4):
        try:
            return build(narrow(meta_model.config, meta_model, layers, shards), meta_model.dtype, meta_model.kept)
        except Exception as error:  # of whatever kind a class's own checks are
            refused = error
    raise refused


def narrow(
    config: PreTrainedConfig | OwnConfig, meta_model: MetaModel, layers: int, shards: int = 1
) -> PreTrainedConfig | OwnConfig:
    """A configuration of the same widths with one layer of each kind and one slice of the vocabulary."""
    vocabulary = slice_rows(meta_model.vocabulary, meta_model.columns, shards=shards)
    if isinstance(config, OwnConfig):
        return config.cut(layers, vocabulary)
    small = fewer_layers(config, layers, vocab_size=vocabulary)
    text = text_config(small)
    if getattr(text, "pad_token_id", None) is not None:
        text.pad_token_id = min(text.pad_token_id, text.vocab_size - 1)
    return small
