"""What runs in the tests' processes need not do each time: it takes a second of each, and moves no bit."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import interposed
import spillway.model.spec
import spillway.run.profiled
import spillway.run.run
from spillway.machine import process_memory
from spillway.model.measure import dry_run, trace
from spillway.model.measure.dry_run import DryRun
from spillway.model.measure.trace import StepTrace
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.own import OwnConfig
from spillway.model.verify.equivalence import Equivalence, verify_equivalence


@contextmanager
def is_enough(forked: bool = False) -> Iterator[None]:
    """Runs draw no loss.png, for which another process would import matplotlib. They verify a model once, and measure a
    layer of it once, two times and not forty, or trace it once. What one process has found the others of a session take
    over (`shared`), but for memory: that is alike in those that are `forked` alone, which all begin with the same
    heap. Runs of the installed command and `make nightly` do all of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spillway.run.run, "plot_apart", no_plot)
        patch.setattr(dry_run, "LEAST_RUNS", 2)
        patch.setattr(dry_run, "MOST_RUNS", 2)
        patch.setattr(spillway.model.spec, "verify_equivalence", Equivalences())
        patch.setattr(spillway.run.profiled, "profile_dry_run", DryRuns(forked))
        patch.setattr(trace, "trace_step", Traces())
        yield


def no_plot(metrics: Path, png: Path, title: str) -> str:
    png.write_bytes(b"")
    return ""


def shared(known: dict[str, Any], key: str, make: Callable[[], Any], keep: bool = True) -> Any:
    """What was made for this key, by this process or by another one of the session. `keep`: others may take
    over what this one makes."""
    if key in known:
        return known[key]
    file = interposed.place() / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        known[key] = pickle.loads(file.read_bytes())
        return known[key]
    known[key] = make()
    if keep:
        with suppress(OSError):
            handle, draft = tempfile.mkstemp(dir=file.parent)
            with open(handle, "wb") as stream:
                pickle.dump(known[key], stream)
            os.replace(draft, file)
    return known[key]


def said(value: Any) -> str:
    """The same in every process, of sets, too."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}{[said(getattr(value, field.name)) for field in fields(value)]}"
    if isinstance(value, dict):
        return said(list(value.items()))
    if isinstance(value, set | frozenset):
        return f"set{sorted(map(said, value))}"
    if isinstance(value, list | tuple):
        return f"{[said(each) for each in value]}"
    return repr(value)


def told(config: Any) -> str:
    """All that a model's configuration says of the model; in which directory it lies moves nothing."""
    content = json.dumps(without_places(config.to_dict()), sort_keys=True, default=str)
    return f"{type(config).__module__}.{type(config).__qualname__} {config._attn_implementation} {content}"


def without_places(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: without_places(value) for key, value in content.items() if key != "_name_or_path"}
    return content


class Equivalences:
    """Answers for the models that were verified. What is refused is refused each time."""

    def __init__(self) -> None:
        self._known: dict[str, Equivalence] = {}

    def __call__(self, config: Any, packing: bool = False) -> Equivalence:
        if isinstance(config, OwnConfig):
            return verify_equivalence(config, packing)
        key = f"equivalence {packing} {told(config)}"
        found: Equivalence = shared(self._known, key, lambda: verify_equivalence(config, packing))
        return found


AMPLE = 1 << 30  # bytes of a budget that short rows do not come near


class DryRuns:
    """Of the layers that were measured. What the process has in memory is asked each time, and what the budget may have
    no room for is measured each time."""

    def __init__(self, forked: bool) -> None:
        self._known: dict[str, DryRun] = {}
        self._forked = forked

    def __call__(
        self, meta_model: MetaModel, dtype: str, shape: Any, packing: bool, unneeded: Any, kernels: Any, place: Any,
        half: bool, budget: int, saved: bool, tiles: Any, fused: bool,
    ) -> DryRun:  # fmt: skip
        given = meta_model, dtype, shape, packing, unneeded, kernels, place, half, budget, saved, tiles, fused
        tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
        small = tokens <= dry_run.FEW_TOKENS and budget - process_memory.resident() > AMPLE
        if place.on_gpu or isinstance(meta_model.config, OwnConfig) or not small:
            return dry_run.profile_dry_run(*given)
        key = (model_of(meta_model), dtype, shape, packing, frozenset(unneeded), kernels is None, half, saved, tiles)
        found = self._found(said(key), lambda: dry_run.profile_dry_run(*given))
        return replace(found, process_bytes=process_memory.resident())

    def _found(self, key: str, make: Callable[[], DryRun]) -> DryRun:
        if self._forked:  # a later one finds what the first has left of the heap
            found: DryRun = shared(self._known, f"dry run {key}", make, keep=not self._known)
            return found
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


class Traces:
    """Of steps over shapes alone. What a model's code refuses is refused each time."""

    def __init__(self) -> None:
        self._known: dict[str, StepTrace] = {}
        self._trace = trace.trace_step

    def __call__(
        self, meta_model: MetaModel, dtype: str, shape: Any, unneeded: Any, not_kept: str, tiles: Any, shorter: Any,
        fused: bool,
    ) -> StepTrace:  # fmt: skip
        given = meta_model, dtype, shape, unneeded, not_kept, tiles, shorter, fused
        key = model_of(meta_model), dtype, shape, frozenset(unneeded), not_kept, tiles, shorter and shorter.few, fused
        found: StepTrace = shared(self._known, f"trace {said(key)}", lambda: self._trace(*given))
        return deepcopy(found)


def model_of(meta_model: MetaModel) -> tuple[Any, ...]:
    """What a dry run may depend on of a model."""
    asked = getattr(meta_model.adapters, "asked", None)
    parameters = meta_model.model.named_parameters()
    return told(meta_model.config), asked, [parameter_of(meta_model, *each) for each in parameters]


def parameter_of(meta_model: MetaModel, name: str, parameter: Any) -> tuple[Any, ...]:
    key = id(parameter)
    kept = meta_model.spaces.get(key), meta_model.packed.get(key), meta_model.type_kept(parameter)
    return name, tuple(parameter.shape), parameter.requires_grad, parameter.dtype, *kept
