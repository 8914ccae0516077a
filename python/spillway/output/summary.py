"""summary.json: prediction beside measurement, for a run that has ended or goes on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from spillway._engine import PlanSummary
from spillway.config import Config
from spillway.output.state import RunState


def endurance(config: Config) -> dict[str, int]:
    """Bytes that each path's drive is rated for, where that was said."""
    return {f"path:{number}": path.endurance for number, path in enumerate(config.paths) if path.endurance}


def summary(
    config: Config, plan: PlanSummary, measured: dict[str, Any], state: RunState, seconds: Sequence[float]
) -> dict[str, Any]:
    """`measured`: as Session.measured() gives it; `seconds`: of every step of this process."""
    measured = dict(measured)
    peaks = measured.pop("tiers", {})
    written = measured.get("written", {})
    own = {
        "steps": state.step,
        "steps_here": len(seconds),
        "skipped_steps": state.skipped,
        "tokens_seen": state.tokens_seen,
        "step_seconds": {
            "predicted": plan.predicted_step_seconds,
            "measured": statistics.median(seconds) if seconds else None,
            "measured_quartiles": quartiles(seconds),
        },
        "bottleneck": plan.bottleneck,
        "durability": plan.durability,
        "endurance_used": {name: written.get(name, 0) / rated for name, rated in endurance(config).items()},
        "tiers": [
            {
                "name": tier.name,
                "capacity": tier.capacity,
                "planned_peak": tier.planned_peak,
                "measured_peak": peaks.get(tier.name),
            }
            for tier in plan.tiers
        ],
    }
    return own | {name: value for name, value in measured.items() if name not in own}


def quartiles(seconds: Sequence[float]) -> list[float] | None:
    """Between which two the middle half of the steps lies; None where there were none."""
    if len(seconds) < 2:
        return [seconds[0], seconds[0]] if seconds else None
    first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return [first, third]


def perplexity(loss: float) -> float:
    """exp(loss); infinite where that is beyond a float."""
    return math.exp(loss) if loss < 700 else math.inf


def describe_skipped_run(steps: int, skipped: int) -> str:
    """A sentence about a run all of whose steps were skipped; empty for any other run."""
    if not steps or skipped < steps:
        return ""
    return (
        f"nothing was trained: the gradient of {'the only step' if steps == 1 else f'each of the {steps} steps'} was "
        "not finite, so every update was skipped. Look at the data, learning_rate and compute_dtype"
    )
