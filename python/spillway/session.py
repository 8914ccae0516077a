"""One run: a Hugging Face model, the C++ engine that owns its state, and the stream that joins them.

Construction plans and allocates nothing; `start` loads; then steps, evaluations and saves in any order.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from spillway.errors import DoesNotFit, InputError, SpillwayError
from spillway.hf import heap
from spillway.hf.describe import WorkSize, describe, stored_names
from spillway.hf.initialise import draw
from spillway.hf.microbatch import arrange
from spillway.hf.probe import prove
from spillway.hf.rehearse import rehearse
from spillway.hf.skeleton import build
from spillway.hf.source import load_config, resolve_directory
from spillway.hf.stream import Stream
from spillway.settings import engine_settings, small_settings

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.protocol import Batch, PathBytes, StepResult, WorkShape

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HOLES = 24 * 2**20  # bytes by which the heap grows in one visit at most, as seen
MAX_SHARD = 5 * 10**9  # bytes of a safetensors file
STATE = "spillway"  # subdirectory of a checkpoint

EngineType = Callable[[str, str], Any]  # description, settings -> spillway._engine.Engine


class Session:
    """See spillway.protocol.Session."""

    def __init__(self, config: Config, shape: WorkShape, engine_type: EngineType | None = None) -> None:
        """`engine_type`: what is called with description and settings; the C++ engine when None."""
        heap.settle()
        self._config = config
        self._source = resolve_directory(config.model)
        self._model_config = load_config(self._source)
        if config.init == "pretrained" and not config.resume_from_checkpoint:
            require_weights(self._source)
        packing = config.packing or bool(config.eval_packing)
        self._skeleton = build(copy.deepcopy(self._model_config), DTYPES[config.compute_dtype])
        self._unneeded = prove(copy.deepcopy(self._model_config), packing)
        engine_type = engine_type or native_engine()
        with loss_kernels(engine_type, config.compute_dtype) as kernels:
            self._rehearsed = rehearse(self._skeleton, config.compute_dtype, shape, packing, self._unneeded, kernels)
        self._description = describe(self._skeleton, work_size(shape), config.compute_dtype)
        self._settings = engine_settings(config, self._rehearsed)
        with translated():
            self._engine = engine_type(json.dumps(self._description), json.dumps(self._settings))
            self.plan: dict[str, Any] = json.loads(self._engine.plan())
        self._stream: Stream | None = None
        self._calls = 0  # steps begun: the step number of dropout
        self._steps = 0  # updates made
        self._path_bytes: PathBytes = {}
        self._peak = 0
        self._told: set[str] = set()

    def start(self, resume: Path | None) -> None:
        """Maps the memory and loads the model's weights, or weights and state of the checkpoint directory `resume`."""
        with translated(reading=True):
            self._engine.start()
            if resume is not None:
                self._resume(resume)
            elif self._config.init == "random":
                draw(self._skeleton, self._engine, self._config.seed)
            else:
                names = stored_names(self._description, self._source, self._skeleton.model.base_model_prefix)
                self._engine.load_weights(str(self._source), names)
        self._stream = Stream(
            self._skeleton, self._engine, self._config.seed, self._unneeded, after_visit=self._keep_to_plan
        )
        self._path_bytes = self._paths()

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        from spillway.protocol import StepResult

        began = time.perf_counter()
        with translated():
            outcome = self._running().step(arrange(batches), self._update(learning_rate), self._calls)
        self._calls += 1
        self._steps = int(outcome.update["step"])
        return StepResult(
            loss_sum=outcome.loss_sum,
            label_tokens=outcome.label_tokens,
            grad_norm=outcome.update["grad_norm"],
            seconds=time.perf_counter() - began,
            path_bytes=self._new_path_bytes(),
            skipped=bool(outcome.update["skipped"]),
        )

    def evaluate(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """(loss summed over label tokens, label tokens)."""
        with translated():
            outcome = self._running().evaluate(arrange(batches))
        return outcome.loss_sum, outcome.label_tokens

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json: what `from_pretrained` reads."""
        self._running()
        with translated():
            self._engine.save_weights(str(directory), MAX_SHARD)
        saved = copy.deepcopy(self._model_config)
        saved.dtype = self._skeleton.dtype
        saved.architectures = [type(self._skeleton.model).__name__]
        saved.save_pretrained(directory)
        generation_config(self._source, self._model_config).save_pretrained(directory)

    def save_state(self, directory: Path) -> None:
        """What the model files lack to go on bit by bit, under directory/spillway/."""
        self._running()
        state = directory / STATE
        state.mkdir(parents=True, exist_ok=True)
        with translated():
            self._engine.save_state(str(state), self._steps)
        counts = {"steps": self._steps, "calls": self._calls}
        (state / "session.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")

    def measured(self) -> dict[str, Any]:
        """Peaks, bytes and stalls of this process so far; see spillway.protocol.Session."""
        counters = json.loads(self._engine.counters())
        self._peak = max(self._peak, heap.peak())
        tiers = {"dram": self._peak}
        for name, path in counters.get("paths", {}).items():
            tiers[name] = volume_bytes(path.get("volume"))
        return {
            "tiers": tiers,
            "process_peak": self._peak,
            "path_bytes": self._paths(),
            "stall_seconds": counters.get("stall_seconds", {}),
            "rehearsed": {"work_bytes": self._rehearsed.work_bytes, "seconds": self._rehearsed.seconds},
        }

    def notices(self) -> list[str]:
        """What a person should know about the paths and was not told yet: no O_DIRECT, one that was taken out."""
        counters = json.loads(self._engine.counters())
        found = [path["notice"] for path in counters.get("paths", {}).values() if path.get("notice")]
        found += [outage["reason"] for outage in counters.get("outages", [])]
        new = [notice for notice in found if notice not in self._told]
        self._told.update(new)
        return new

    def write_timeline(self, path: Path) -> None:
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            stream.write(self._engine.timeline())

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._engine.close()

    def _resume(self, checkpoint: Path) -> None:
        state = checkpoint / STATE
        try:
            counts = json.loads((state / "session.json").read_text(encoding="utf-8"))
            self._steps, self._calls = int(counts["steps"]), int(counts["calls"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{state}: this checkpoint holds no state to go on from: {error}") from error
        self._engine.load_state(str(state), str(checkpoint), self._steps)

    def _running(self) -> Stream:
        if self._stream is None:
            raise RuntimeError("the session is not started")
        return self._stream

    def _update(self, learning_rate: float) -> dict[str, float]:
        config = self._config
        return {
            "learning_rate": learning_rate,
            "beta1": config.adam_beta1,
            "beta2": config.adam_beta2,
            "epsilon": config.adam_epsilon,
            "weight_decay": config.weight_decay,
            "max_grad_norm": config.max_grad_norm,
        }

    def _paths(self) -> PathBytes:
        paths = json.loads(self._engine.counters()).get("paths", {})
        return {name: {"read": path["read"], "written": path["written"]} for name, path in paths.items()}

    def _keep_to_plan(self) -> None:
        """Products of many shapes wear holes into the heap; before these exceed the plan they are given back."""
        planned = self.plan["tiers"][0]["planned_peak"]
        if planned and heap.resident() > planned - HOLES:
            heap.give_back()

    def _new_path_bytes(self) -> PathBytes:
        """Bytes moved since the last call."""
        before, self._path_bytes = self._path_bytes, self._paths()
        return {
            name: {direction: count - before.get(name, {}).get(direction, 0) for direction, count in now.items()}
            for name, now in self._path_bytes.items()
        }


def native_engine() -> EngineType:
    from spillway._engine import Engine

    return Engine


@contextmanager
def loss_kernels(engine_type: EngineType, compute_dtype: str) -> Iterator[Any]:
    """An engine of almost nothing, for a rehearsal that computes the loss as the run will."""
    table = {"name": "table", "shape": [1, 64], "decay": False}
    layer = {"name": "layer", "shape": [64], "decay": False}
    description = {
        "compute_dtype": compute_dtype,
        "hidden_size": 64,
        "micro_batches": 1,
        "tokens": 1,
        "tied_head": True,
        "blocks": [
            {"name": "embedding", "role": "embedding", "tensors": [table]},
            {"name": "layer", "role": "layer", "tensors": [layer]},
        ],
    }
    engine = engine_type(json.dumps(description), json.dumps(small_settings()))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def work_size(shape: WorkShape) -> WorkSize:
    tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
    return WorkSize(shape.micro_batches, shape.micro_batches * tokens)


def require_weights(directory: Path) -> None:
    """InputError when there is nothing to load, before anything is measured."""
    if any((directory / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return
    others = [path.name for path in sorted(directory.glob("*.bin"))]
    found = f"; {others[0]} is there: save it as safetensors first" if others else ""
    raise InputError(f"{directory}: no model.safetensors and no model.safetensors.index.json{found}")


def generation_config(directory: Path, config: PreTrainedConfig) -> GenerationConfig:
    if (directory / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    return GenerationConfig.from_model_config(config)


def volume_bytes(volume: str | None) -> int:
    """Bytes that a volume's file holds on its file system."""
    try:
        return os.stat(volume).st_blocks * 512 if volume else 0
    except OSError:
        return 0


@contextmanager
def translated(reading: bool = False) -> Iterator[None]:
    """The engine's exceptions as ours: too little memory, bad input, or a failed run.

    `reading`: files and directories that a person named; what is wrong with them is bad input.
    """
    try:
        yield
    except SpillwayError:
        raise
    except MemoryError as error:
        raise DoesNotFit(str(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise (InputError if reading else SpillwayError)(str(error)) from error
