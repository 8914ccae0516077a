"""`replay_steps`: every N-th step is computed twice and compared before its update. Silent errors of compute are found.

A step is computed, abandoned, and computed again from the same state. If the two computations differ, a third one tells
which of them was wrong. Gradients go to storage paths in the second computation alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spillway._engine import Description, Engine
from spillway.errors import ComputationDiffers, InputError
from spillway.model.layers.digests import Difference, Digests
from spillway.model.layers.module_state import ModuleState

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.machine.place import Place
    from spillway.model.batches.microbatch import Work
    from spillway.model.stream.stream import Stream

TEST = (
    "Test this machine (memory test, temperatures, no overclocking; on a GPU its error counters), or go on with the "
    "run on another machine"
)


@dataclass(frozen=True)
class StepDifference:
    """The first difference of two computations, over all processes."""

    name: str  # name of the first value that differs
    rank: int  # rank of the process with the value
    processes: int
    in_weights: bool  # True if weights differ in any process
    in_loss: bool


class Replays:
    """The steps of a session that are computed twice. All processes of a run make the same calls."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        description: Description,
        gather: Callable[[Any], list[Any]],
        writes_once: bool,
    ) -> None:
        """`writes_once`: the engine takes the gradients of a step once, since each step is durable."""
        self.steps = 0  # number of steps that this process computed twice
        self.differences = 0
        self.is_replayed = False  # True if the last step is computed twice
        self.difference = ""  # notice of the last step's difference; "" without one
        self.skips = False  # True if the last step ends without an update
        self._every, self._goes_on = config.replay_steps, config.replay_action == "continue"
        self._engine, self._description = engine, description
        self._gather, self._writes_once = gather, writes_once
        self._notices: list[str] = []

    def measured(self) -> dict[str, Any]:
        """The counts for summary.json."""
        return {"replay": {"steps": self.steps, "differences": self.differences}} if self._every else {}

    def begin_step(self, step: int) -> bool:
        """Begins step number `step`. True if it is computed twice."""
        self.is_replayed = bool(self._every) and step % self._every == 0
        self.difference, self.skips = "", False
        return self.is_replayed

    def take_notices(self) -> list[str]:
        """Removes and returns the notices of differences after which the run went on."""
        notices, self._notices = self._notices, []
        return notices

    def compute(self, stream: Stream, work: Work, calls: int) -> float:
        """The summed loss of a step whose computations are equal. Raises ComputationDiffers; the engine is at rest
        then, with the state of the step before."""
        state = ModuleState(stream.meta_model.model)

        def compute(trial: bool) -> tuple[Digests, float]:
            if buffer := state.restore():
                raise ComputationDiffers(
                    f"replay_steps: the model's code changes its large buffer {buffer} in a forward pass, so no step "
                    "can be computed twice; remove replay_steps"
                )
            digests = Digests(self._engine, self._description, trial)
            loss_sum = stream.compute(work, calls, digests)
            digests.add_norm(self._engine.norm())
            digests.end_pass()
            return digests, loss_sum

        first, _ = compute(trial=True)
        self._engine.abandon_step()
        second, loss_sum = compute(trial=False)
        self.steps += 1
        difference = self._compare(first, second)
        if difference is None:
            return loss_sum
        self.differences += 1
        self._engine.abandon_step()
        third, loss_sum = compute(trial=self._writes_once)
        self._judge(difference, self._compare(first, third), self._compare(second, third), calls + 1)
        return loss_sum

    def _compare(self, one: Digests, other: Digests) -> StepDifference | None:
        """The first difference of all processes, the same on each of them. None: the computations are equal."""
        every: list[Difference | None] = self._gather(one.find_difference(other))
        differences = [(rank, each) for rank, each in enumerate(every) if each is not None]
        if not differences:
            return None
        in_weights = [pair for pair in differences if pair[1].in_weights]
        rank, first = min(in_weights or differences, key=lambda pair: (pair[1].place, pair[0]))
        in_loss = any(each.in_loss for _, each in differences)
        return StepDifference(first.name, rank, len(every), bool(in_weights), in_loss)

    def _judge(
        self, one: StepDifference, by_first: StepDifference | None, by_second: StepDifference | None, step: int
    ) -> None:
        """Raises ComputationDiffers, unless the step can be trusted or skipped. `one`: of the first two computations.
        `by_first`, `by_second`: of the third one from each of them."""
        where = f" in the process of rank {one.rank}" if one.processes > 1 else ""
        loss = "; the losses differ, too" if one.in_loss else "; the losses are equal"
        words = f"two computations of step {step} differ, first in {one.name}{where}{loss}"
        if any(each is not None and each.in_weights for each in (one, by_first, by_second)):
            self._stop(f"{words}. The weights in memory have changed, although nothing writes them there. {TEST}", True)
        if by_first is not None and by_second is not None:
            self._stop(
                f"{words}. A third computation equals neither: code of the model or an operation is not deterministic "
                "and cannot be replayed, or this machine computes wrongly time after time. Remove replay_steps in the "
                f"first case. {TEST} in the second"
            )
        wrong = "second" if by_first is None else "first"
        words += f". A third computation shows that the {wrong} one was wrong"
        if not self._goes_on:
            self._stop(f"{words}: this machine has made an error in silence. {TEST}")
        self.skips = by_first is None and self._writes_once
        self.difference = f"{words}; " + (
            "its gradients are on the storage paths, so the step was skipped" if self.skips else "the step goes on"
        )
        self._notices.append(f"replay_steps: {self.difference}")

    def _stop(self, words: str, memory_changed: bool = False) -> None:
        self._engine.abandon_step()
        raise ComputationDiffers(f"replay_steps: {words}", memory_changed)


def check_place(config: Config, place: Place) -> None:
    """InputError if passes may add in any order."""
    if config.replay_steps and place.on_gpu and not place.full_determinism:
        raise InputError(
            "replay_steps: with full_determinism: false two computations of a step differ on a GPU; remove one of them"
        )
    if config.replay_steps and place.any_order:
        raise InputError(
            f"replay_steps: PyTorch has no deterministic {place.any_order} on this GPU, and two computations of a step "
            "differ there; remove replay_steps"
        )


def plan_replays(config: Config, seconds: float) -> dict[str, Any]:
    """`replay` of plan.json: which steps are computed twice, and the `seconds` of a step that this adds to them at
    most."""
    if not config.replay_steps:
        return {}
    return {"replay": {"every": config.replay_steps, "seconds": seconds, "share": 1 / config.replay_steps}}
