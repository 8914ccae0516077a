"""Experts of a layer that the tokens of a step meet: counted by the engine, beside the share of the plan.

A run with `expert_loading: on_demand` keeps the counts in its directory. A resume plans with them: with the share of
the experts that an average step meets, and with the experts that most steps meet first in memory. Within a run the
engine chooses the experts in memory again every so many steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway._engine import Counters, Description, EngineSettings, PieceCounters
from spillway.base.documents import read_json
from spillway.base.files import write_json
from spillway.model.meta.demand import mean_share
from spillway.output.identity import EXPERTS
from spillway.report.experts import ENTRY

if TYPE_CHECKING:
    from spillway.config import Config

FORMAT = 1  # version of the file
LEAST = 1e-4  # share of steps: the engine takes none of 0
PERIOD = EngineSettings().piece_period  # steps between two choices of the experts in memory
EVEN, COUNTED = "even routing", "earlier steps of the run"  # sources of a planned share

Counts = dict[str, PieceCounters]  # by layer


@dataclass(frozen=True)
class Recorded:
    """Counts of the steps of a run so far."""

    tokens: int  # most of a step, as planned
    steps: int
    tensors: dict[str, list[int]]  # by name: steps that met each expert

    def shares(self) -> dict[str, list[float]]:
        """The expected share of steps that meet each expert, by tensor: never 0, and 1 after many steps alone."""
        return {name: [self._share(count) for count in of] for name, of in self.tensors.items()}

    def _share(self, count: int) -> float:
        return max(LEAST, round((count + 0.5) / (self.steps + 1), 4))

    def add(self, steps: int, tensors: dict[str, list[int]]) -> Recorded:
        """These counts with those of later steps."""
        sums = {name: [a + b for a, b in zip(self.tensors[name], of, strict=True)] for name, of in tensors.items()}
        return Recorded(self.tokens, self.steps + steps, sums)

    def write(self, output_dir: Path) -> None:
        content = {"format": FORMAT, "tokens": self.tokens, "steps": self.steps, "tensors": self.tensors}
        (output_dir / EXPERTS).parent.mkdir(exist_ok=True)
        write_json(output_dir / EXPERTS, content)


def read_recorded(config: Config, description: Description) -> Recorded | None:
    """The counts of the run in `output_dir`. None: the run does not go on, or its counts are damaged or of another
    model or number of tokens."""
    if not config.resume_from_checkpoint or config.overwrite or config.output_dir is None:
        return None
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        content = read_json(Path(config.output_dir) / EXPERTS)
        recorded = Recorded(content["tokens"], content["steps"], content["tensors"])
        if content["format"] == FORMAT and is_sound(recorded, description):
            return recorded
    return None


def is_sound(recorded: Recorded, description: Description) -> bool:
    """True if the counts are of the tensors of this description and of steps of as many tokens."""
    pieces = {tensor.name: tensor.pieces for block in description.blocks for tensor in block.tensors if tensor.apart}
    return (
        recorded.tokens == description.tokens
        and isinstance(recorded.steps, int)
        and recorded.steps > 0
        and {name: len(counts) for name, counts in recorded.tensors.items()} == pieces
        and all(is_count(count, recorded.steps) for counts in recorded.tensors.values() for count in counts)
    )


def is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and 0 <= value <= most


def read_counts(counters: Counters) -> Counts:
    """The counts in the engine's counters, since it started."""
    return {it.block: it for it in counters.pieces or []}


def compute_shares(counts: Counts, before: Counts | None = None) -> dict[str, float]:
    """The share of each layer's experts that steps met since `before`. Layers without a step are left out."""
    shares = {}
    for name, now in counts.items():
        was = (before or {}).get(name, PieceCounters())
        if now.pieces > was.pieces:
            shares[name] = (now.asked - was.asked) / (now.pieces - was.pieces)
    return shares


def summarise_met(counts: Counts, planned: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of summary.json: mean and layers, the part of the met experts that lay in memory, the part that would
    have lain there if none had swapped places, the number of swaps, and the planned share with its source. Empty
    without counted steps."""
    if not (shares := compute_shares(counts)):
        return {}
    asked = max(1, sum(it.asked for it in counts.values()))
    entry = {
        "mean": statistics.mean(shares.values()),
        "layers": shares,
        "resident": sum(it.resident for it in counts.values()) / asked,
        "resident_unswapped": sum(it.planned for it in counts.values()) / asked,
        "swaps": sum(it.swaps for it in counts.values()),
        "planned": dict(planned),
    }
    return {ENTRY: entry}


def summarise_plan(description: Description, is_recorded: bool = False, period: int = PERIOD) -> dict[str, Any]:
    """The entry of plan.json: the share that the plan counts on, of a step of so many tokens, its source, and the steps
    between two choices of the experts in memory. Empty without experts on demand. `is_recorded`: the share is that of
    earlier steps."""
    if (share := mean_share(description)) is None:
        return {}
    source = COUNTED if is_recorded else EVEN
    return {ENTRY: {"share": share, "tokens": description.tokens, "source": source, "period": period}}
