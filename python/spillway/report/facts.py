"""What a run has left in its output_dir, read once. A run that goes on has less of it, and the page says so."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from spillway.errors import InputError
from spillway.output import identity
from spillway.output.records import METRICS, rows
from spillway.output.summary import quartiles

MOVED = ("read", "written")


@dataclass(frozen=True)
class Facts:
    output_dir: Path
    config: dict[str, Any]  # config.yaml
    plan: dict[str, Any]  # plan.json
    summary: dict[str, Any]  # summary.json; while the run goes on what it has told so far, if anything
    rows: list[dict[str, Any]]  # metrics.jsonl
    trace: list[dict[str, Any]]  # events of timeline.json.gz; empty before the second step
    description: dict[str, Any] | None  # as given to the engine, and
    settings: dict[str, Any] | None  # what it planned with
    finished: bool = True
    machine: str = ""  # the profile's file, where the plan is for another machine

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


def read(output_dir: Path) -> Facts:
    """InputError where there is no run, or its files cannot be read."""
    plan = output_dir / "plan.json"
    if not plan.is_file():
        raise InputError(f"output_dir: {output_dir} holds no run (there is no {plan})")
    goes_on = (output_dir / identity.SO_FAR).is_file()
    ended, timeline = output_dir / "summary.json", output_dir / "timeline.json.gz"
    if goes_on:
        ended, timeline = output_dir / identity.SO_FAR, output_dir / identity.TIMELINE
    return Facts(
        output_dir,
        as_mapping(yaml.safe_load(text_of(output_dir / "config.yaml")), output_dir / "config.yaml"),
        as_json(plan),
        optional(ended) or {},
        list(rows(output_dir / METRICS)),
        events(timeline),
        optional(output_dir / identity.DESCRIPTION),
        optional(output_dir / identity.SETTINGS),
        ended.is_file() and not goes_on,
    )


def optional(path: Path) -> dict[str, Any] | None:
    return as_json(path) if path.is_file() else None


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"output_dir: {path} cannot be read: {error}") from None


def as_json(path: Path) -> dict[str, Any]:
    try:
        return as_mapping(json.loads(text_of(path)), path)
    except ValueError as error:
        raise InputError(f"output_dir: {path} is not valid JSON: {error}") from None


def as_mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"output_dir: {path} is not what a run writes")
    return value


def events(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            return list(json.load(stream)["traceEvents"])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError(f"output_dir: {path} cannot be read: {error}") from None
