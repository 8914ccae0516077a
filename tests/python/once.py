"""What runs in the tests' processes need not do each time: it takes a second of each, and moves no bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spillway.integrations.own_loop
import spillway.model.spec
import spillway.run.profiled
import spillway.run.train
from spillway.machine import process_memory
from spillway.model import dry_run
from spillway.model.dry_run import DryRun
from spillway.model.equivalence import Equivalence, verify_equivalence
from spillway.model.meta_model import MetaModel
from spillway.model.own import OwnConfig


@contextmanager
def is_enough() -> Iterator[None]:
    """Runs draw no loss.png, for which another process would import matplotlib. They verify a model once, and
    measure a layer of it once, two times and not forty. Runs of the installed command and `make nightly` do all of
    it."""
    with pytest.MonkeyPatch.context() as patch:
        for user in (spillway.integrations.own_loop, spillway.run.train):
            patch.setattr(user, "plot_apart", no_plot)
        patch.setattr(dry_run, "LEAST_RUNS", 2)
        patch.setattr(dry_run, "MOST_RUNS", 2)
        patch.setattr(spillway.model.spec, "verify_equivalence", Equivalences())
        patch.setattr(spillway.run.profiled, "profile_dry_run", DryRuns())
        yield


def no_plot(metrics: Path, png: Path, title: str) -> str:
    png.write_bytes(b"")
    return ""


def told(config: Any) -> str:
    """All that a model's configuration says."""
    content = json.dumps(config.to_dict(), sort_keys=True, default=str)
    return f"{type(config).__module__}.{type(config).__qualname__} {config._attn_implementation} {content}"


class Equivalences:
    """Answers for the models that were verified. What is refused is refused each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Equivalence] = {}

    def __call__(self, config: Any, packing: bool = False) -> Equivalence:
        if isinstance(config, OwnConfig):
            return verify_equivalence(config, packing)
        key = told(config), packing
        if key not in self._known:
            self._known[key] = verify_equivalence(config, packing)
        return self._known[key]


AMPLE = 1 << 30  # bytes of a budget that short rows do not come near


class DryRuns:
    """Of the layers that were measured. What the process has in memory is asked each time, and what the budget may have
    no room for is measured each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], DryRun] = {}

    def __call__(
        self, meta_model: MetaModel, dtype: str, shape: Any, packing: bool, unneeded: Any, kernels: Any, place: Any,
        half: bool, budget: int, saved: bool, tiles: Any,
    ) -> DryRun:  # fmt: skip
        given = meta_model, dtype, shape, packing, unneeded, kernels, place, half, budget, saved, tiles
        tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
        small = tokens <= dry_run.FEW_TOKENS and budget - process_memory.resident() > AMPLE
        if place.on_gpu or isinstance(meta_model.config, OwnConfig) or not small:
            return dry_run.profile_dry_run(*given)
        parameters = dict(meta_model.model.named_parameters())
        key = (
            told(meta_model.config),
            frozenset(name for name, parameter in parameters.items() if parameter.requires_grad),
            frozenset((name, meta_model.spaces.get(id(parameter))) for name, parameter in parameters.items()),
            (dtype, shape, packing, frozenset(unneeded), kernels is None, half, saved, tiles),
        )
        if key not in self._known:
            self._known[key] = dry_run.profile_dry_run(*given)
        return replace(self._known[key], process_bytes=process_memory.resident())
