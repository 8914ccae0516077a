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

from spillway._engine import (
    Description,
    EngineSettings,
    Fits,
    FitTable,
    OpenOptions,
    PlannedBytes,
    PlannedTier,
    PlanSummary,
)
from spillway.config import Config
from spillway.errors import DoesNotFit, InputError
from spillway.model.batches.batch import Batch, WorkShape
from spillway.output import volumes
from spillway.output.directory import nothing_to_resume
from spillway.run.protocol import Keeping, Recovery, StartPoint, StepResult
from spillway.run.start_points import STATE, tries_of

GIB = 2**30
PLAN: dict[str, Any] = {
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


def make_plan(durability: str) -> PlanSummary:
    """The engine's plan behind PLAN."""
    return PlanSummary(
        tiers=[PlannedTier(**tier) for tier in PLAN["tiers"]],
        bytes=[PlannedBytes(class_=it["class"], tier=it["tier"], bytes=it["bytes"]) for it in PLAN["bytes"]],
        predicted_step_seconds=PLAN["predicted_step_seconds"],
        bottleneck=PLAN["bottleneck"],
        durability=durability,
    )


class FakeVolume:
    """What a run keeps in its first storage directory: the newest durable step, and those that manifests hold."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {"run": run, "newest": None, "pinned": {}}

    def reopen(self, pinned: list[str]) -> None:
        if self.path.exists():
            found = json.loads(self.path.read_text())
            assert found["run"] == self.content["run"]
            marks = {Path(place, "manifest.bin").read_text() for place in pinned}
            assert marks <= found["pinned"].keys()  # what is listed was never given up
            self.content = found | {"pinned": {mark: found["pinned"][mark] for mark in marks}}

    def write(self) -> None:
        self.path.write_text(json.dumps(self.content))

    def pin(self) -> str:
        """The newest step under a mark of its own."""
        mark = f"manifest {len(self.content['pinned'])} {self.content['newest']}"
        self.content["pinned"][mark] = self.content["newest"]
        self.write()
        return mark


FITS = Fits(
    longest_sequence=64,
    fit_table=FitTable(dram_budgets=[GIB], sequences=[64, 128], batches=[1, 2], tokens_per_second=[9.0, 8.0, 7.0, 0.0]),
)


class FakeSession:
    """Follows spillway.run.protocol.SessionProtocol. With storage its steps are durable, as FakeVolume has it.

    FAKE_SKIP="3 4" finds gradients that are not finite in steps 3 and 4; FAKE_SIGNAL="step:3:SIGINT" sends itself a
    signal inside step 3 ("evaluate:3": inside the evaluation after step 3, "commit:3", "save:3": while step 3 is
    committed or saved, "close:3": afterwards); FAKE_FAIL="save:3" raises OSError there."""

    opened: ClassVar[list[FakeSession]] = []

    def __init__(
        self, config: Config, shape: WorkShape, keeping: Keeping | None = None, *, only_plan: bool = False
    ) -> None:
        if config.dram_budget is not None and config.dram_budget < GIB:
            raise DoesNotFit(f"dram: 1 GiB is needed, dram_budget is {config.dram_budget}", {**PLAN, "fits": False})
        assert keeping is not None
        self.keeping = keeping
        kept = (config.durability or "step") if config.storage else "none"
        self.planned = make_plan(kept)
        self.plan: dict[str, Any] = PLAN | ({"durability": kept} if config.storage else {})
        self.durable = kept != "none"
        self.description = Description(tokens=shape.length)
        self.settings = EngineSettings(dram_budget=GIB)
        self.volume = FakeVolume(volumes.volume(config.storage[0]), keeping.run) if self.durable else None
        self.precious = False
        self.recovered = False
        self.last: dict[str, Any] = {}
        self.started = False
        self.start_point = StartPoint()
        self.written = 0
        self.settled: list[int] = []
        self.released: list[bytes] = []
        self.config = config
        self.shape = shape
        self.digest = b""
        self.steps = 0
        self.closed = False
        self.steps_here: list[tuple[list[Batch], float]] = []
        self.evaluations: list[list[Batch]] = []
        self.news = ["path:0: no O_DIRECT here"]
        self.opened.append(self)

    def what_fits(self) -> Fits:
        return FITS

    def graph(self, format: str) -> str:
        return f"a step as {format}"

    def start(self, start_point: StartPoint) -> Recovery | None:
        self.start_point = start_point
        tries = tries_of(start_point, self.durable)
        assert not self.config.storage or Path(self.config.output_dir, "spillway", "run.json").exists()
        if self.volume:
            self.started = True
            self.precious = tries[0].reopen and self.volume.path.exists()
            if tries[0].reopen:
                self.volume.reopen([str(path / STATE) for path in start_point.pinned()])
            else:
                assert self.config.overwrite or not self.volume.path.exists()
            self.volume.write()
        self.disturb("start")
        for options in tries:
            if found := self.find(options):
                self.digest, self.steps = bytes.fromhex(found["digest"]), found["steps"]
                self.written = found["written"]
                self.recovered, self.last = True, found["run"]
                return Recovery(found["steps"], found["run"], f"Recovered step {found['steps']}.")
        self.load(start_point)
        return None

    def find(self, options: OpenOptions) -> dict[str, Any] | None:
        if self.volume is None or not options.reopen:
            return None
        if options.checkpoint is not None:
            mark = (options.checkpoint / "manifest.bin").read_text()
            found: dict[str, Any] = self.volume.content["pinned"][mark]
            return found
        newest: dict[str, Any] | None = self.volume.content["newest"]
        return newest if newest and newest["steps"] >= options.at_least else None

    def load(self, start_point: StartPoint) -> None:
        if start_point.checkpoint is not None:
            saved = json.loads((start_point.checkpoint / "spillway" / "state.json").read_text())
            self.digest = bytes.fromhex(saved["digest"])
            self.steps = saved["steps"]
        elif start_point.fresh:
            self.digest = hashlib.sha256(f"{self.config.seed}".encode()).digest()
        else:
            raise InputError(f"resume_from_checkpoint: {nothing_to_resume(Path(self.config.output_dir))}")

    def commit(self, state: dict[str, Any]) -> None:
        if self.volume is None:
            return
        state = json.loads(json.dumps(state))
        assert len(json.dumps(state)) < 4096 and state["step"] == self.steps
        rows = Path(self.config.output_dir, "metrics.jsonl")
        logged = [json.loads(line)["step"] for line in rows.read_text().splitlines()] if rows.exists() else []
        if self.config.logging_steps == 1 and self.steps_here:
            assert self.steps in logged  # the row is there before the step is durable
        if self.plan["durability"] == "step" or not self.steps_here:
            self.volume.content["newest"] = self.record(state)
            self.volume.write()
        assert self.steps_here or not self.recovered
        self.last = state
        self.disturb("commit")

    def record(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"steps": self.steps, "digest": self.digest.hex(), "run": state, "written": self.written}

    def settle(self) -> None:
        self.settled.append(self.steps)

    def displaced_volumes(self) -> list[str]:
        return []

    def stand_alone(self) -> None:
        raise AssertionError("no volume was displaced")

    def release(self, manifest: bytes) -> None:
        if self.volume is not None:
            self.released.append(manifest)
            del self.volume.content["pinned"][manifest.decode()]
            self.volume.write()

    def give_up_volumes(self) -> None:
        self.precious = False

    def leave(self, state: dict[str, Any]) -> bytes:
        if self.volume is None:
            raise InputError("nothing of this run lies on a storage path")
        self.volume.content["newest"] = self.record(json.loads(json.dumps(state)))
        self.volume.write()
        return b""

    def step(self, batches: list[Batch], learning_rate: float) -> StepResult:
        assert len(batches) <= self.shape.micro_batches
        labels = self.absorb(batches, self.shape.batch, self.shape.length)
        self.digest = hashlib.sha256(self.digest + struct.pack("d", learning_rate)).digest()
        self.steps += 1
        self.precious = True
        self.written += 500
        self.steps_here.append((batches, learning_rate))
        self.disturb("step")
        moved = {"path:0": {"read": 1000 * self.steps, "written": 500}}
        written = {"path:0": self.written}
        skipped = str(self.steps) in os.environ.get("FAKE_SKIP", "").split()
        return StepResult(self.loss() * labels, labels, 1 + self.loss(), 0.25, moved, skipped=skipped, written=written)

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

    def save_weights_alone(self, directory: Path) -> None:
        self.save_model(directory)

    def save_state(self, directory: Path, alone: bool = False) -> None:
        (directory / STATE).mkdir()
        if self.volume is not None and not alone:
            self.volume.content["newest"] = self.record(self.last)
            (directory / STATE / "manifest.bin").write_text(self.volume.pin())
            (directory / STATE / "session.json").write_text(json.dumps({"steps": self.steps, "calls": self.steps}))
            ending = self.steps == self.last_step() or bool(os.environ.get("FAKE_SIGNAL"))
            assert len(self.volume.content["pinned"]) <= self.keeping.checkpoints + ending
            return
        state = {"digest": self.digest.hex(), "steps": self.steps}
        (directory / STATE / "state.json").write_text(json.dumps(state))
        (directory / STATE / "session.json").write_text(json.dumps({"steps": self.steps, "calls": self.steps}))

    def last_step(self) -> int:
        found: int = json.loads(Path(self.config.output_dir, "spillway", "run.json").read_text())["steps"]
        return found

    def measured(self) -> dict[str, Any]:
        return {
            "tiers": {"dram": 2 * GIB, "path:0": 20 * GIB},
            "process_peak": 2 * GIB + 5,
            "path_bytes": {"path:0": {"read": 7 * GIB, "written": 5 * GIB}},
            "stall_seconds": {"path:0 read": 0.5},
            "written": {"path:0": self.written},
        }

    def list_plan_notices(self) -> list[str]:
        return []

    def notices(self) -> list[str]:
        told, self.news = self.news, []
        return told

    def record_experts(self, output_dir: Path) -> None:
        pass

    def write_timeline(self, path: Path) -> None:
        with gzip.open(path, "wt") as stream:
            json.dump({"traceEvents": []}, stream)

    def close(self) -> None:
        self.closed = True
        if self.started and not (self.keeping.keep and self.precious):
            for path in self.config.storage:
                volumes.volume(path).unlink(missing_ok=True)
        self.started = False
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
