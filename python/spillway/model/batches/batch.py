"""Input of a model: a micro-batch, and the largest shape that a run asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from spillway.model.head.distillation import TopTokens


@dataclass(frozen=True)
class Sampled:
    """Completions that a policy sampled, the rows of a micro-batch. Their tokens are its label tokens, row by row."""

    # fp64 [label tokens]: log-probabilities when they were sampled; None: the model that is trained sampled them
    old: torch.Tensor | None
    advantages: torch.Tensor  # fp64 [rows]
    figures: dict[str, float]  # of the whole step that they are of, by the names that TRL logs
    # fp64 [label tokens]: as another program that sampled them has their log-probabilities; None: unknown
    sampling: torch.Tensor | None = None
    divided: bool = True  # that program has them of logits that were divided by the temperature
    step_tokens: float | None = None  # tokens of a step that its loss is a mean over; None: its label tokens


@dataclass(frozen=True)
class Batch:
    """One micro-batch, padded on the right to its longest row."""

    input_ids: torch.Tensor  # [rows, length] int64
    labels: torch.Tensor  # [rows, length] int64, aligned with input_ids (the session shifts); -100: no loss
    position_ids: torch.Tensor | None  # [rows, length] int64, restarting at 0 with every packed row; None: not packed
    tokens: int  # without padding
    lengths: torch.Tensor | None = None  # [rows] int64: of each row, without its padding; None: none is padded
    # [rows] fp64, or fp32 where it was rounded, of pairs of rows: the log-probability of each one's labels under the
    # reference model. The first half of the rows was chosen, the other rejected, in the same order. None: not computed
    reference: torch.Tensor | None = None
    prompts: torch.Tensor | None = None  # [rows] int64: of each row, its first label tokens, of the prompt; None: none
    verdicts: torch.Tensor | None = None  # [examples] bool: whether an answer is a good one; None: examples are pairs
    # int64, rising: the tokens, counted row by row, whose scores the loss is of; None: it is of tokens
    scored: torch.Tensor | None = None
    # Targets of the scores: of pairs [pairs] fp32, how far the chosen one lies above the other (None: 0); of a
    # classifier [scored] or [scored, labels], as the library takes them.
    targets: torch.Tensor | None = None
    rows_each: int = 0  # rows of each example that the loss is a mean over; 0: it is a mean over label tokens
    teacher: TopTokens | None = None  # of all label tokens, row by row; None: there is no teacher
    sampled: Sampled | None = None  # `reference` is then [label tokens], row by row
    # Arguments of the model beside its tokens: pixels, their sizes, which tokens are images. None: there is no image
    images: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class WorkShape:
    """The most that any step and any evaluation call of this run will ask for, known from the data."""

    micro_batches: int  # most micro-batches in one step; no call of evaluate() is given more either
    batch: int  # most rows in a training micro-batch
    length: int  # longest padded training row, tokens
    eval_batch: int  # most rows in an evaluation micro-batch; 0: no evaluation
    eval_length: int  # longest padded evaluation row, tokens; 0: no evaluation
    logits: int = 0  # most positions whose logits, of the compute type, are held at once outside the stream
    between: int = 0  # bytes of DRAM that something takes between steps, when these have none
    between_on_device: int = 0  # the same of the compute device's memory
    teacher_top_k: int = 0  # entries of a teacher's distribution of each label token; 0: there is no teacher
    pairs: int = 0  # of rows, whose log-probabilities a first pass computes
    passes: int = 0  # forward passes that this takes before the first step
    virtual_ranks: int = 1
    # Packed: of one length in each sequence, of which attention takes as long as of the rows that are there. 1: none is
    # joined with another. Where the data is not known, two.
    packed_rows: float = 2.0
    joined: int = 1  # micro-batches of the data that one of these is (`joining`)
    share: int = 0  # most micro-batches of a step that one of several processes computes; 0: there is one
    refers: bool = False  # steps and evaluations compute their reference by the base of the adapters
    largest_images: Batch | None = None  # a micro-batch with the most pixels of the data; None: there are no images

    def rows_in(self, length: int) -> int:
        """Packed rows in a sequence of `length` tokens, about as long as they are in longer ones."""
        return max(1, round(self.packed_rows * length / self.length))

    @property
    def largest_share(self) -> int:
        """Most micro-batches of a step that this process computes."""
        return self.share or self.micro_batches


def count_bytes(images: Mapping[str, torch.Tensor] | None) -> int:
    """Bytes of the arguments of a micro-batch's images: pixels, and what comes with them."""
    return sum(each.numel() * each.element_size() for each in (images or {}).values())
