"""The protocol between the trainer and the engine's session: plain data and one protocol class.

The trainer (configuration, data, loop, what a person sees) is written against `SessionProtocol`;
`spillway.run.session` implements it over the C++ engine, the tests implement it in a few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spillway._engine import Description, EngineSettings, Fits, PlanSummary
from spillway.model.batches.batch import Batch, WorkShape

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.run.lines import Lines

PathBytes = dict[str, dict[str, int]]  # {"path:0": {"read": bytes, "written": bytes}}


@dataclass(frozen=True)
class Saving:
    """The writes of a run to its output_dir, as far as is known before it starts."""

    output_dir: Path
    saves: int  # checkpoints that are to come
    limit: int | None = None  # most that are kept
    there: tuple[int, ...] = ()  # bytes that removing each one that is there would free, oldest first
    whole: tuple[int, ...] = ()  # numbers of those that stand alone by `save_whole_steps`, from the first of `there` on
    freed: int = 0  # bytes of what is removed before the first one is written
    small: int = 0  # bytes of each beside tensors
    beside: int = 0  # bytes of the run's own files
    model_only: bool = False  # without state
    copies: bool = False  # the final model is written once more, not linked to the last checkpoint's files


@dataclass(frozen=True)
class Keeping:
    """The data that a run leaves on its storage paths and in its output_dir."""

    run: str  # its identity, written into every volume
    checkpoints: int = 0  # most that hold places there at once while the run goes on, the newest durable step included
    keep: bool = False  # whether the volumes stay when the session closes
    resumes: bool = False  # the paths hold steps of the run that it goes on from
    alone: bool = False  # checkpoints stand alone: another number of processes may replace the volumes
    saving: Saving | None = None  # None: nobody knows what is saved


@dataclass(frozen=True)
class StartPoint:
    """The start of a session; by default the model's weights."""

    checkpoint: Path | None = None  # weights and state of this one
    durable: bool = False  # rather the newest durable step on the storage paths, where it is newer than `checkpoint`
    fresh: bool = True  # with neither, the model's weights will do
    # Every checkpoint that holds places on the storage paths, once these are open: until then another process of the
    # run may make and remove some.
    pinned: Callable[[], tuple[Path, ...]] = tuple
    adapters: Path | None = None  # with method lora, begin with those of this directory
    line: Callable[[], int] = int  # of several processes: Identity.line, once it is in run.json; all call it
    lines: Lines | None = None  # None: another number of processes has left nothing
    # Fingerprint of the model's weights (output.base_files); None for a new run and for older releases.
    base: dict[str, Any] | None = None


@dataclass(frozen=True)
class Recovery:
    """The durable step that a session went on from."""

    step: int  # steps done
    state: dict[str, Any]  # as given to commit() with that step
    words: str  # what was done, one sentence for a person; may be empty


@dataclass(frozen=True)
class StepResult:
    """The report of one optimizer step."""

    loss_sum: float  # over all label tokens of all micro-batches, or over all pairs
    label_tokens: int  # or pairs, with objective dpo
    grad_norm: float  # before clipping
    seconds: float
    path_bytes: PathBytes = field(default_factory=dict)
    link_bytes: dict[str, int] = field(default_factory=dict)  # with a device: {"to_device", "from_device"}
    skipped: bool = False  # the gradient was not finite: nothing was updated
    loss_scale: float = 1.0  # what the loss was multiplied by before backward
    # by NUMA node, where there are several: {"elements", "seconds"} of updates that ended while the step ran
    node_updates: dict[str, dict[str, float]] = field(default_factory=dict)
    experts_met: float | None = None  # mean share of a layer's experts; None: they do not come on demand
    written: dict[str, int] = field(default_factory=dict)  # bytes per path over the run's life, earlier processes too
    refits: dict[str, Any] = field(default_factory=dict)  # of reduced gradients, for rows of metrics.jsonl
    replayed: bool = False  # True if `replay_steps` computed the step twice
    replay_difference: str = ""  # notice of a difference after which the step went on
    # of each micro-batch, what the objective tells besides its loss: with dpo TRL's rewards/margins and the like
    told: list[dict[str, float]] = field(default_factory=list)

    def row(
        self,
        step: int,
        loss: float,
        tokens: int,
        learning_rate: float,
        epoch: float | None = None,
        skipped_steps: int = 0,
    ) -> dict[str, Any]:
        """The row of metrics.jsonl. `loss`: the mean since the last logged row; `tokens`: of this step, unpadded;
        `skipped_steps`: so far."""
        row = {
            "step": step,
            **({} if epoch is None else {"epoch": epoch}),
            "loss": loss,
            "grad_norm": self.grad_norm,
            "learning_rate": learning_rate,
            "tokens": tokens,
            "step_seconds": self.seconds,
            "path_bytes": self.path_bytes,
        }
        if self.link_bytes:
            row["link_bytes"] = self.link_bytes
        if self.node_updates:
            row["node_updates"] = self.node_updates
        if self.experts_met is not None:
            row["experts_met"] = self.experts_met
        row |= self.refits
        if self.loss_scale != 1:
            row["loss_scale"] = self.loss_scale
        if self.skipped:
            row["skipped"] = True
        if self.replayed:
            row["replayed"] = True
        if self.replay_difference:
            row["replay_difference"] = self.replay_difference
        if skipped_steps:
            row["skipped_steps"] = skipped_steps
        return row


class SessionProtocol(Protocol):
    """One run of the engine. Construction plans and starts nothing; it raises errors.DoesNotFit."""

    planned: PlanSummary  # the engine's plan
    plan: dict[str, Any]  # the content of plan.json: that, and what Python adds
    description: Description  # what the engine was told of the model
    settings: EngineSettings  # what it planned with

    def __init__(
        self, config: Config, shape: WorkShape, keeping: Keeping | None = None, *, only_plan: bool = False
    ) -> None:
        """`only_plan`: the plan is for another process to follow, whose working set may be a little larger, and what
        else fits will be asked."""

    def what_fits(self) -> Fits:
        """This model at other budgets, sequences and batches.
        Of a session with `only_plan`."""

    def graph(self, format: str) -> str:
        """The order of a step as a picture: "svg" or "dot"."""

    def start(self, start_point: StartPoint) -> Recovery | None:
        """Everything in place for the next step. None: from `start_point.checkpoint`, or from the model's weights.

        errors.InputError where none of what `start_point` allows is there."""

    def commit(self, state: dict[str, Any]) -> None:
        """After each step, and before the first unless it goes on from a durable one: what was reached becomes durable
        with `state`, where durability asks for it."""

    def settle(self) -> None:
        """Waits until all that was committed is durable."""

    def step(self, batches: list[Batch], learning_rate: float) -> StepResult: ...

    def evaluate(self, batches: list[Batch]) -> tuple[float, int]:
        """(loss summed over label tokens, label tokens), or pairs; at most WorkShape.micro_batches batches a call."""

    def list_figures(self) -> list[dict[str, float]]:
        """StepResult.told of the last step or evaluation."""

    def hold_whole_model(self) -> AbstractContextManager[Any]:
        """The library's own model with the current weights, whole in memory, to generate with."""

    def log_probabilities(self, batches: list[Batch]) -> list[list[float]]:
        """The log-probability of each row's labels, by micro-batch. No more batches than evaluate() takes."""

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json."""

    def save_weights_alone(self, directory: Path) -> None:
        """Saves the trained weights, and the other files that can be saved, after a save has failed."""

    def save_state(self, directory: Path, alone: bool = False) -> None:
        """Writes the state that the model files lack to continue bit by bit, under directory/spillway/. That is a
        manifest of where it lies on the storage paths, or the state itself where none of it lies there durably.
        `alone`: the state itself in any case."""

    def displaced_volumes(self) -> list[str]:
        """Volumes whose file was removed or replaced since the session opened them: their bytes are there until it
        closes, and no later process finds them."""

    def stand_alone(self) -> None:
        """Makes later checkpoints need no volume."""

    def release(self, manifest: bytes) -> None:
        """The content of a manifest whose checkpoint is gone: its places may be used again."""

    def give_up_volumes(self) -> None:
        """Nobody will go on from this run: close() removes what it holds on the storage paths."""

    def leave(self, state: dict[str, Any]) -> bytes:
        """Leaves the reached state on the storage paths with `state`, since it cannot be saved where it belongs. The
        volumes stay as well. Empty of a durable run, whose newest step it is; else a manifest to keep. Raises where
        nothing lies there, or what stays in memory has no room; then the session can go on."""

    def measured(self) -> dict[str, Any]:
        """Over this process {"tiers": {tier name: peak bytes}, "process_peak": bytes, "path_bytes": PathBytes,
        "stall_seconds": {cause: seconds}, "waits": {tier: {cause: seconds}}}, and over the run's life {"written":
        {path: bytes}}; keys beyond these go into summary.json as they are."""

    def list_plan_notices(self) -> list[str]:
        """Notices about the plan, before the session has started."""

    def notices(self) -> list[str]:
        """New notices about the tiers of a started session."""

    def record_experts(self, output_dir: Path) -> None:
        """Writes how many steps met each expert that comes on demand, for the plan of a resume; nothing without such
        experts."""

    def write_timeline(self, path: Path) -> None: ...

    def close(self) -> None: ...
