"""The engine in plain PyTorch, in memory: the same contract, obvious code. An oracle for the C++ engine and for whoever
drives it.

Masters are fp32 tensors under torch.optim.AdamW. With bf16 compute the weight is the master rounded half away from
zero, gradients are summed in fp32 over micro-batches and rounded to bf16 once.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from spillway._engine import (
    Counters,
    Damage,
    Description,
    EngineSettings,
    OpenOptions,
    PathCounters,
    PlannedBytes,
    PlannedTier,
    PlanSummary,
    Recovery,
    Silence,
    StepResult,
    StepUpdate,
    Verification,
)
from spillway.model.stream.plain_engine import PlainEngine


def split(master: torch.Tensor) -> torch.Tensor:
    """bf16, rounded half away from zero: what the engine computes with."""
    bits = master.contiguous().view(torch.int32)
    high = (bits + 0x8000) >> 16
    return high.to(torch.int16).view(torch.bfloat16)


class FakeEngine(PlainEngine):
    """Stands in for spillway._engine.Engine."""

    def __init__(self, description: Description, settings: EngineSettings, chunk_elements: int = 4096) -> None:
        super().__init__(description, chunk_elements=chunk_elements)
        self.settings = copy.copy(settings)
        self.masters = [torch.zeros(tensor.shape) for tensor in self.tensors]
        self.optimizer: torch.optim.AdamW | None = None
        self.steps = 0
        self.training = False
        self.closed = False
        self.storage = [Path(path.directory) for path in self.settings.storage]
        self.durable = bool(self.storage) and self.settings.durability != "none"
        self.volume: dict[str, Any] = {"newest": None, "pinned": {}}  # step and state, by manifest
        self.calls = 0  # commits: steps done, skipped ones too
        self.written = 0

    def plan(self) -> PlanSummary:
        dram = PlannedTier(name="dram", capacity=self.settings.dram_budget, planned_peak=self.arena_bytes)
        plan = PlanSummary(tiers=[dram], predicted_step_seconds=1.0, durability="none", bottleneck="compute")
        if self.durable:
            plan.durability = self.settings.durability or "step"
            plan.bytes = [PlannedBytes(class_="state", tier="path:0", bytes=1)]
        return plan

    @property
    def volume_file(self) -> Path:
        return self.storage[0] / "spillway.volume"

    def start(self, opening: OpenOptions | None = None, list_pinned: Callable[[], list[str]] = list) -> Recovery:
        asked = opening or OpenOptions()
        self.closed = False
        if not self.durable:
            return self.found(None)
        if asked.reopen and self.volume_file.exists():
            self.read_volume(list_pinned())
            if asked.checkpoint is not None:
                return self.found(self.volume["pinned"][(asked.checkpoint / "manifest.bin").read_bytes()])
            newest = self.volume["newest"]
            return self.found(newest if newest and newest["step"] >= asked.at_least else None)
        self.write_volume()
        return self.found(None)

    def found(self, record: dict[str, Any] | None) -> Recovery:
        if record is None:
            return Recovery()
        self.take(record["state"])
        self.calls = record["step"]
        return Recovery(has_step=True, step=self.calls, payload=record["payload"], damage=["a bit fell"])

    def read_volume(self, pinned: list[str]) -> None:
        held = torch.load(self.volume_file, weights_only=False)
        assert held["run"] == self.settings.run
        marks = [Path(place, "manifest.bin").read_bytes() for place in pinned]
        self.volume = {"newest": held["newest"], "pinned": {mark: held["pinned"][mark] for mark in marks}}

    def write_volume(self) -> None:
        torch.save({"run": self.settings.run, **self.volume}, self.volume_file)

    def commit(self, payload: str) -> None:
        assert self.durable
        self.volume["newest"] = {"step": self.calls, "payload": payload, "state": copy.deepcopy(self.state())}
        self.written += 100
        self.write_volume()

    def set_step(self, step: int) -> None:
        self.calls = step

    def save_manifest(self, directory: str) -> None:
        mark = f"manifest {len(self.volume['pinned'])} of step {self.calls}".encode()
        self.volume["pinned"][mark] = self.volume["newest"]
        self.write_volume()
        Path(directory, "manifest.bin").write_bytes(mark)

    def release_manifest(self, content: bytes) -> None:
        del self.volume["pinned"][content]
        self.write_volume()

    def read_back(self, checkpoint: str | None) -> Recovery:
        before = self.volume_file.read_bytes()
        place = Path(checkpoint) if checkpoint else None
        result = self.start(OpenOptions(reopen=True, checkpoint=place), lambda: [checkpoint] if checkpoint else [])
        assert self.volume_file.read_bytes() == before
        return result

    def verify(self, pinned: list[str]) -> Verification:
        self.read_volume(pinned)
        damage = []
        for number, master in enumerate(self.volume["newest"]["state"]["masters"]):
            if not bool(master.isfinite().all()):
                what = f"remainder and moments of {self.tensors[number].name}"
                place = {"path": "path:0", "file": self.volume_file, "offset": 4096 * number}
                damage.append(Damage(**place, bytes=4096, what=what))
        size = self.volume_file.stat().st_size
        return Verification(bytes=size, damage=damage, step=self.volume["newest"]["step"])

    def close(self) -> None:
        self.closed = True
        if self.storage and not self.settings.keep:
            self.volume_file.unlink(missing_ok=True)

    def give_up_volumes(self) -> None:
        self.settings.keep = False

    def load_weights(self, checkpoint: str, stored_names: dict[str, str]) -> None:
        stored: dict[str, torch.Tensor] = {}
        for path in sorted(Path(checkpoint).glob("*.safetensors")):
            stored |= load_file(path)
        for number, tensor in enumerate(self.tensors):
            name = stored_names[tensor.name]
            if name not in stored:
                raise ValueError(f"{checkpoint}: tensor {name} is missing")
            self.masters[number].copy_(stored[name])
        self._round()

    def store_tensor(self, tensor: int, first: int, values: torch.Tensor) -> None:
        self.masters[tensor].view(-1)[first : first + values.numel()] = values.view(-1)
        self._round()

    def fetch_tensor(self, tensor: int, first: int, values: torch.Tensor) -> None:
        values.view(-1).copy_(self.masters[tensor].view(-1)[first : first + values.numel()])

    def save_weights(self, directory: str, max_shard: int) -> None:
        weights = {tensor.name: self.weight(number).clone() for number, tensor in enumerate(self.tensors)}
        save_file(weights, Path(directory) / "model.safetensors", {"format": "pt"})

    def save_state(self, directory: str, step: int) -> None:
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        torch.save(self.state() | {"step": step}, path / "fake.pt")

    def state(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict() if self.optimizer else None
        return {"masters": self.masters, "optimizer": optimizer, "step": self.steps}

    def load_state(self, directory: str, weights: str, step: int) -> str:
        self.take(torch.load(Path(directory) / "fake.pt", weights_only=False) | {"step": step})
        return "exact"

    def take(self, found: dict[str, Any]) -> None:
        self.masters, self.steps = copy.deepcopy(found["masters"]), found["step"]
        self._round()
        if found["optimizer"] is not None:
            self._make_optimizer()
            assert self.optimizer is not None
            self.optimizer.load_state_dict(found["optimizer"])

    def begin_step(
        self, ids: torch.Tensor, counts: list[int], training: bool, update: StepUpdate | None = None
    ) -> None:
        super().begin_step(ids, counts, training)
        self.training = training

    def end_step(self, update: StepUpdate) -> StepResult:
        if not self.training:
            return StepResult()
        self._make_optimizer()
        assert self.optimizer is not None
        for number, master in enumerate(self.masters):
            gradient = self.gradients.get(number, torch.zeros_like(master))
            master.grad = gradient.to(self.dtype).to(torch.float32, copy=True)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(m.grad) for m in self.masters]))
        clip = min(1.0, update.max_grad_norm / (float(norm) + 1e-6)) if update.max_grad_norm > 0 else 1.0
        skipped = not bool(norm.isfinite())
        self.calls += 1
        if not skipped:
            self._update(update, clip)
        return StepResult(grad_norm=float(norm), clip=clip, skipped=skipped, step=self.steps)

    def flush(self) -> None:
        pass

    def counters(self) -> Counters:
        return Counters(paths={"path:0": PathCounters(written=self.written)} if self.storage else {})

    def displaced_volumes(self) -> list[str]:
        return []

    def silence(self) -> dict[str, Silence]:
        return {}

    def timeline(self) -> str:
        return json.dumps({"traceEvents": []})

    def _update(self, update: StepUpdate, clip: float) -> None:
        assert self.optimizer is not None
        for master in self.masters:
            assert master.grad is not None
            master.grad.mul_(clip)
        for group, decays in zip(self.optimizer.param_groups, (True, False), strict=True):
            group["lr"], group["eps"] = update.learning_rate, update.hyperparameters["epsilon"]
            group["betas"] = (update.hyperparameters["beta1"], update.hyperparameters["beta2"])
            group["weight_decay"] = update.weight_decay if decays else 0.0
        self.optimizer.step()
        self.steps += 1
        self._round()

    def _make_optimizer(self) -> None:
        if self.optimizer is None:
            decaying = [m for m, t in zip(self.masters, self.tensors, strict=True) if t.decay]
            others = [m for m, t in zip(self.masters, self.tensors, strict=True) if not t.decay]
            self.optimizer = torch.optim.AdamW([{"params": decaying}, {"params": others}], fused=True)

    def _round(self) -> None:
        for number, master in enumerate(self.masters):
            self.weight(number).copy_(split(master) if self.dtype == torch.bfloat16 else master)
