"""What a run has left in its output_dir, read once. A run that goes on has less of it, and the page says so."""

from __future__ import annotations

import gzip
import statistics
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from spillway._engine import Description, EngineSettings
from spillway.base.documents import parse_json, read_json, read_text
from spillway.errors import InputError
from spillway.output import identity
from spillway.output.directory_lock import is_held
from spillway.output.records import METRICS, describe_damage, read_damaged_lines, rows
from spillway.output.summary import quartiles
from spillway.report.soundness import PLAN, SUMMARY, Check, split_entries
from spillway.report.timeline import steps

MOVED = ("read", "written")
SUMMARY_FILE = Path("summary.json")
NO_PLAN: dict[str, Any] = {"tiers": [], "bytes": []}
NO_CHECKS: dict[str, Check] = {}
DAMAGE = (
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    RecursionError,
    zlib.error,
)


@dataclass(frozen=True)
class Facts:
    output_dir: Path
    config: dict[str, Any]  # config.yaml
    plan: dict[str, Any]  # plan.json
    summary: dict[str, Any]  # summary.json; while the run goes on what it has told so far, if anything
    rows: list[dict[str, Any]]  # metrics.jsonl
    trace: list[dict[str, Any]]  # events of timeline.json.gz; empty before the second step
    description: Description | None  # as given to the engine, and
    settings: EngineSettings | None  # what it planned with
    finished: bool = True
    is_running: bool | None = None  # a process works on it; None: unknown
    machine: str = ""  # the profile's file, where the plan is for another machine
    damaged: list[str] = field(default_factory=list)  # damaged files, with a sentence for each

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "loss" in row]

    @cached_property
    def here(self) -> list[dict[str, Any]]:
        """Rows of the last process, as far as that can be told: those its summary counts."""
        count = self.summary.get("steps_here", len(self.steps))
        told = [row for row in self.steps if row["step"] <= self.summary.get("steps", row["step"])]
        return told[-count:] if count else []

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "eval_loss" in row]

    @cached_property
    def logged_seconds(self) -> list[float]:
        """The seconds of the steps that have a row: all of them, or every `logging_steps`-th."""
        return [row["step_seconds"] for row in self.here if "step_seconds" in row]

    @cached_property
    def step_seconds(self) -> float | None:
        """The one step time that the page shows: the median, measured."""
        measured = (self.summary.get("step_seconds") or {}).get("measured")
        if measured is None and self.logged_seconds:
            return statistics.median(self.logged_seconds)
        return measured

    @cached_property
    def step_spread(self) -> list[float] | None:
        """Beside `step_seconds`: between which two the middle half of the steps lies."""
        told = self.summary.get("step_seconds") or {}
        return told.get("measured_quartiles") or quartiles(self.logged_seconds)

    @property
    def predicted_seconds(self) -> float | None:
        return self.plan.get("predicted_step_seconds")

    @property
    def tokens_per_second(self) -> float | None:
        """Without padding: the tokens of a step, in the mean of the last process, over the median step."""
        tokens = [row["tokens"] for row in self.here if "tokens" in row]
        return statistics.mean(tokens) / self.step_seconds if tokens and self.step_seconds else None

    @property
    def paths(self) -> list[str]:
        return [tier["name"] for tier in self.plan["tiers"] if tier["name"].startswith("path")]

    def moved_per_step(self, path: str, way: str) -> float | None:
        """Bytes of a steady step, measured: the mean without the first, which also loads."""
        several = [row["path_bytes"][path][way] for row in self.here if path in row.get("path_bytes", {})]
        steady = several[1:] or several
        return sum(steady) / len(steady) if steady else None


class Reader:
    """A reader of a run's files. It names damaged files and leaves them out."""

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self.damaged: list[str] = []  # damaged files, with a sentence for each

    def description(self) -> Description | None:
        """None if there is none or it cannot be read."""
        path = self._output_dir / identity.DESCRIPTION
        try:
            return Description.parse(read_text(path)) if path.is_file() else None
        except (OSError, ValueError) as error:
            self.damaged.append(f"{path} cannot be read: {error}")
            return None

    def settings(self) -> EngineSettings | None:
        """None if there are none or they cannot be read."""
        path = self._output_dir / identity.SETTINGS
        try:
            return EngineSettings.parse(read_text(path)) if path.is_file() else None
        except (OSError, ValueError) as error:
            self.damaged.append(f"{path} cannot be read: {error}")
            return None

    def mapping(self, name: str | Path, checks: dict[str, Check] = NO_CHECKS) -> dict[str, Any] | None:
        """The JSON object in a file, without entries that fail `checks`; None if it cannot be read."""
        path = self._output_dir / name
        if not path.is_file():
            return None
        try:
            found = require_mapping(read_json(path))
        except (OSError, ValueError) as error:
            self.damaged.append(f"{path} cannot be read: {error}")
            return None
        sound, wrong = split_entries(found, checks)
        if wrong:
            self.damaged.append(f"{path} has {', '.join(f'`{each}`' for each in wrong)} as no run writes them")
        return sound

    def config(self) -> dict[str, Any]:
        path = self._output_dir / "config.yaml"
        try:
            return require_mapping(yaml.safe_load(read_text(path)))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            self.damaged.append(f"{path} cannot be read: {' '.join(str(error).split())}")
            return {}

    def rows(self) -> list[dict[str, Any]]:
        path = self._output_dir / METRICS
        try:
            if damage := read_damaged_lines(path):
                self.damaged.append(describe_damage(str(path), damage, "the others are shown"))
            return list(rows(path))
        except OSError as error:
            self.damaged.append(f"{path} cannot be read: {error.strerror}")
            return []

    def events(self, name: str | Path) -> list[dict[str, Any]]:
        path = self._output_dir / name
        if not path.is_file():
            return []
        try:
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                found = list(parse_json(stream.read())["traceEvents"])
            steps(found)
            return found
        except DAMAGE as error:
            self.damaged.append(f"{path} cannot be read: {error!r}")
            return []


def read(output_dir: Path) -> Facts:
    """The facts of a run. InputError without a run. Damaged files are named, and the others are used."""
    plan = output_dir / "plan.json"
    if not plan.is_file():
        raise InputError(f"output_dir: {output_dir} holds no run (there is no {plan})")
    goes_on = (output_dir / identity.SO_FAR).is_file()
    ended, timeline = (identity.SO_FAR, identity.TIMELINE) if goes_on else (SUMMARY_FILE, Path("timeline.json.gz"))
    reader = Reader(output_dir)
    return Facts(
        output_dir,
        reader.config(),
        NO_PLAN | (reader.mapping("plan.json", PLAN) or {}),
        reader.mapping(ended, SUMMARY) or {},
        reader.rows(),
        reader.events(timeline),
        reader.description(),
        reader.settings(),
        (output_dir / ended).is_file() and not goes_on,
        is_held(output_dir),
        damaged=reader.damaged,
    )


def require_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no mapping")
    return value
