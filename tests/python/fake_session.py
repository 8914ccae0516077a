"""A session without an engine: its weights are a hash of all it was ever trained on, so that any difference in order,
content or rate shows in every later loss and in the saved files."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import struct
from pathlib import Path
from typing import Any, ClassVar

from spillway.config import Config
from spillway.errors import DoesNotFit
from spillway.protocol import Batch, StepResult, WorkShape

GIB = 2**30
PLAN = {
    "fits": True,
    "tiers": [
        {"name": "dram", "capacity": 4 * GIB, "planned_peak": 3 * GIB},
        {"name": "path:0", "capacity": 64 * GIB, "planned_peak": 20 * GIB},
    ],
    "bytes": [
        {"class": "weight", "tier": "path:0", "bytes": 4 * GIB},
        {"class": "state", "tier": "path:0", "bytes": 16 * GIB},
        {"class": "interpreter and libraries", "tier": "dram", "bytes": 400 * 2**20},
    ],
    "predicted_step_seconds": 1.5,
    "bottleneck": "path:0",
    "path_bytes_per_step": {"path:0": {"read": 3 * GIB, "written": 2 * GIB}},
}


class FakeSession:
    """Follows spillway.protocol.Session. FAKE_SIGNAL="step:3:SIGINT" sends itself a signal inside step 3 ("evaluate:3":
    inside the evaluation after step 3, "save:3": while step 3 is saved, "close:3": afterwards); FAKE_FAIL="save:3"
    raises OSError there."""

    opened: ClassVar[list[FakeSession]] = []

    def __init__(self, config: Config, shape: WorkShape) -> None:
        if config.dram_budget is not None and config.dram_budget < GIB:
            raise DoesNotFit(f"dram: 1 GiB is needed, dram_budget is {config.dram_budget}", {**PLAN, "fits": False})
        self.plan: dict[str, Any] = PLAN
        self.config = config
        self.shape = shape
        self.digest = b""
        self.steps = 0
        self.closed = False
        self.steps_here: list[tuple[list[Batch], float]] = []
        self.evaluations: list[list[Batch]] = []
        self.news = ["path:0: no O_DIRECT here"]
        self.opened.append(self)

    def start(self, resume: Path | None) -> None:
        self.disturb("start")
        if resume is None:
            self.digest = hashlib.sha256(f"{self.config.seed}".encode()).digest()
        else:
            saved = json.loads((resume / "spillway" / "state.json").read_text())
            self.digest = bytes.fromhex(saved["digest"])
            self.steps = saved["steps"]

    def step(self, batches: list[Batch], learning_rate: float) -> StepResult:
        assert len(batches) <= self.shape.micro_batches
        labels = self.absorb(batches, self.shape.batch, self.shape.length)
        self.digest = hashlib.sha256(self.digest + struct.pack("d", learning_rate)).digest()
        self.steps += 1
        self.steps_here.append((batches, learning_rate))
        self.disturb("step")
        moved = {"path:0": {"read": 1000 * self.steps, "written": 500}}
        return StepResult(self.loss() * labels, labels, 1 + self.loss(), 0.25, moved, skipped=False)

    def evaluate(self, batches: list[Batch]) -> tuple[float, int]:
        assert len(batches) <= self.shape.micro_batches
        before = self.digest
        labels = self.absorb(batches, self.shape.eval_batch, self.shape.eval_length)
        loss = self.loss()
        self.digest = before
        self.evaluations.append(batches)
        self.disturb("evaluate")
        return loss * labels, labels

    def absorb(self, batches: list[Batch], rows: int, length: int) -> int:
        labels = 0
        for batch in batches:
            assert batch.input_ids.shape[0] <= rows and batch.input_ids.shape[1] <= length
            for part in (batch.input_ids, batch.labels, batch.position_ids):
                data = b"" if part is None else part.numpy().tobytes()
                self.digest = hashlib.sha256(self.digest + data).digest()
            labels += int((batch.labels[:, 1:] != -100).sum())
        return labels

    def loss(self) -> float:
        return int.from_bytes(self.digest[:7], "little") / 2**56 + 4 / (1 + self.steps)

    def save_model(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(self.digest)
        (directory / "config.json").write_text("{}")
        (directory / "generation_config.json").write_text("{}")
        self.disturb("save")

    def save_state(self, directory: Path) -> None:
        (directory / "spillway").mkdir()
        state = {"digest": self.digest.hex(), "steps": self.steps}
        (directory / "spillway" / "state.json").write_text(json.dumps(state))

    def measured(self) -> dict[str, Any]:
        return {
            "tiers": {"dram": 2 * GIB, "path:0": 20 * GIB},
            "process_peak": 2 * GIB + 5,
            "path_bytes": {"path:0": {"read": 7 * GIB, "written": 5 * GIB}},
            "stall_seconds": {"path:0 read": 0.5},
        }

    def notices(self) -> list[str]:
        told, self.news = self.news, []
        return told

    def write_timeline(self, path: Path) -> None:
        with gzip.open(path, "wt") as stream:
            json.dump({"traceEvents": []}, stream)

    def close(self) -> None:
        self.closed = True
        self.disturb("close")

    def disturb(self, where: str) -> None:
        """Sends the signals and fails the calls that the environment asks for."""
        here = f"{where}:{self.steps}"
        for asked in os.environ.get("FAKE_SIGNAL", "").split():
            place, _, name = asked.rpartition(":")
            if place == here:
                os.kill(os.getpid(), signal.Signals[name])
        if os.environ.get("FAKE_FAIL") == here:
            raise OSError(28, "No space left on device", str(self.config.output_dir))
