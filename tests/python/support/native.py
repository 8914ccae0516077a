"""Sessions over the C++ engine on tiny models, with chunks so small that every block has many."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spillway._engine import Description, Engine, EngineSettings
from spillway.config.keys import GROUPS
from spillway.config.objectives import OBJECTIVES
from spillway.config.values import StoragePath
from spillway.model.batches.batch import WorkShape
from spillway.output import wear
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession

CHUNK = 2048  # elements; the smallest there is
ROOM = 1 << 33  # a budget that is never short
GPU = {  # of a profile
    "name": "0",
    "memory": 1 << 30,
    "flops_per_second": 1e12,
    "to_gpu_bytes_per_second": 1e11,
    "from_gpu_bytes_per_second": 1e11,
    "update_elements_per_second": 1e10,
}
PROFILE = {
    "spillway_profile": 1,
    "cores": 2,
    "dram_total": 32 << 30,
    "dram_available": 16 << 30,
    "paths": [
        {
            "name": "0",
            "read_bytes_per_second": 1e9,
            "write_bytes_per_second": 1e9,
            "mixed_bytes_per_second": 1e9,
            "cores_at_full_speed": 0.5,
        }
    ],
    "update_elements_per_second": 1e9,
    "copy_bytes_per_second": 1e10,
    "compute_flops_per_second": 0,
}


def config(model: Path, **more: Any) -> Any:
    """What a command's keys come to: their defaults, but for what a test says or runs in a moment with."""
    values = {key.name: key.default for group in GROUPS.values() for key in group} | {
        "model": str(model), "tokenizer": str(model), "any_device": False, "device_why": "", "seed": 5,
        "compute_dtype": "fp32", "dram_budget": ROOM, "placement": "dram", "output_dir": str(model.parent / "out"),
        "durability": "none", "virtual_ranks": 1, "weight_decay": 0.1, "device": "cpu", "base_form": None,
        "refers_in_step": False,
        "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0,
        "lsp_nonzeros": 4, "lsp_check_every": 100, "lsp_threshold": 0.9, "lsp_projectors": "fitted",
    } | more  # fmt: skip
    values = {"chosen": ""} | values | {"weight_dtype": more.get("weight_dtype", values["compute_dtype"])}
    paths = [*values["storage"], *values["storage_device"]]
    return SimpleNamespace(
        **values, paths=paths, files=values["memory_file"], objective_entry=OBJECTIVES[values["objective"]]
    )


def profile(directory: Path) -> Path:
    """A machine's profile, so that nothing is measured; it only moves predictions."""
    path = directory / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return path


def engine_type(chunk: int = CHUNK, **settings: Any) -> Callable[[Description, EngineSettings], Engine]:
    """The C++ engine with chunks of `chunk` elements, some of the settings replaced."""

    def make(description: Description, given: EngineSettings) -> Engine:
        described, wanted = copy.copy(description), copy.copy(given)
        described.chunk_elements = chunk
        if wanted.process_bytes:  # the run's own, not the small one of the dry run
            wanted.nodes = []  # DRAM is one tier, whatever this machine has
            for name, value in settings.items():
                setattr(wanted, name, value)
        return Engine(described, wanted)

    return make


def opened(
    model: Path,
    shape: WorkShape,
    resume: Path | None = None,
    storage: Path | None = None,
    chunk: int = CHUNK,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> EngineSession:
    """A started session. `storage`: a directory for the volume; `settings`: the engine's, instead of the planner's."""
    paths = [] if storage is None else [StoragePath(str(storage), 1 << 30)]
    machine = str(profile(model.parent))
    found = EngineSession(
        config(model, storage=paths, profile=machine, **more), shape, engine_type(chunk, **(settings or {}))
    )
    found.start(StartPoint(resume))
    return found


def file_bytes(directory: Path) -> dict[str, bytes]:
    """Every file below `directory` but the wear of drives, which is no part of a state."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != wear.FILE]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
