"""What the trainer and the engine's session say to each other: plain data and one protocol.

The trainer (configuration, data, loop, what a person sees) is written against `Session`; `spillway.session` implements
it over the C++ engine, the tests implement it in a few lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from spillway.config import Config

PathBytes = dict[str, dict[str, int]]  # {"path:0": {"read": bytes, "written": bytes}}


@dataclass(frozen=True)
class Batch:
    """One micro-batch, padded on the right to its longest row."""

    input_ids: torch.Tensor  # [rows, length] int64
    labels: torch.Tensor  # [rows, length] int64, aligned with input_ids (the session shifts); -100: no loss
    position_ids: torch.Tensor | None  # [rows, length] int64, restarting at 0 with every packed row; None: not packed
    tokens: int  # without padding


@dataclass(frozen=True)
class WorkShape:
    """The most that any step and any evaluation call of this run will ask for, known from the data."""

    micro_batches: int  # most micro-batches in one step; no call of evaluate() is given more either
    batch: int  # most rows in a training micro-batch
    length: int  # longest padded training row, tokens
    eval_batch: int  # most rows in an evaluation micro-batch; 0: no evaluation
    eval_length: int  # longest padded evaluation row, tokens; 0: no evaluation


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step reports."""

    loss_sum: float  # over all label tokens of all micro-batches
    label_tokens: int
    grad_norm: float  # before clipping
    seconds: float
    path_bytes: PathBytes = field(default_factory=dict)
    skipped: bool = False  # the gradient was not finite: nothing was updated


class Session(Protocol):
    """One run of the engine. Construction plans and starts nothing; it raises errors.DoesNotFit."""

    plan: dict[str, Any]  # the content of plan.json

    def __init__(self, config: Config, shape: WorkShape) -> None: ...

    def start(self, resume: Path | None) -> None:
        """Loads the model's weights, or weights and state of the checkpoint directory `resume`."""

    def step(self, batches: list[Batch], learning_rate: float) -> StepResult: ...

    def evaluate(self, batches: list[Batch]) -> tuple[float, int]:
        """(loss summed over label tokens, label tokens); at most WorkShape.micro_batches batches a call."""

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json."""

    def save_state(self, directory: Path) -> None:
        """What the model files lack to go on bit by bit, under directory/spillway/."""

    def measured(self) -> dict[str, Any]:
        """{"tiers": {tier name: peak bytes}, "process_peak": bytes, "path_bytes": PathBytes,
        "stall_seconds": {cause: seconds}}, over this process; keys beyond these go into summary.json as they are."""

    def notices(self) -> list[str]:
        """What a person should know about the tiers of a started session and was not told yet."""

    def write_timeline(self, path: Path) -> None: ...

    def close(self) -> None: ...
