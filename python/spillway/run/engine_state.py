"""The training state that an engine holds: where it comes from when a session starts, and into which files it goes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spillway import _engine
from spillway._engine import DurableStep, OpenOptions, WayKind
from spillway.base.calls import translated
from spillway.base.counts import counted
from spillway.errors import InputError
from spillway.model.checkpoint import files, initialise
from spillway.model.source.own import OwnConfig
from spillway.model.source.source import config_files, save_config
from spillway.model.spec import ModelSpec
from spillway.output import base_files, saved, volumes, wear
from spillway.output.base_files import BASE
from spillway.output.known_runs import nothing_to_resume
from spillway.output.records import METRICS, read_newest_step
from spillway.run.engine_spec import PlannedEngine
from spillway.run.lines import Lines
from spillway.run.protocol import Keeping, Recovery, StartPoint
from spillway.run.start_points import STATE, on_paths, read_counts, tries_of, write_counts
from spillway.run.telemetry import Telemetry
from spillway.run.world import World


class EngineState:
    """Weights, optimizer state and the counts beside them."""

    def __init__(
        self, spec: ModelSpec, planned: PlannedEngine, telemetry: Telemetry, keeping: Keeping, world: World
    ) -> None:
        """`world`: rank 0 writes what is saved."""
        self.calls = 0  # steps begun: the step number of dropout
        self.steps = 0  # updates made
        self.precious = False  # the volumes hold something that a later process may go on from
        self._started = False  # the volumes are open, and ours
        self._displaced = False  # True if a volume's file has no name
        self._base: base_files.Fingerprint = {}  # fingerprint of weights that the run reads again
        self._spec, self._telemetry, self._keep = spec, telemetry, keeping.keep
        self._run = keeping.run
        self._world, self._writes = world, world.leads
        self._alone = keeping.alone or world.ranks.world > 1  # what is saved is
        self._engine, self._plan, self._durable = planned.engine, planned.summary, planned.durable
        self._description = planned.spec.description

    def start(self, start_point: StartPoint) -> Recovery | None:
        """Maps the memory and opens the volumes; state from there, from a checkpoint, or the model's weights."""
        self._check_base(start_point)
        recovery = self._recover(start_point)
        if recovery is None:
            self._load(start_point)
        elif self._spec.config.init == "pretrained":
            files.load_buffers(self._spec.meta_model, self._spec.source)
        return recovery

    def _check_base(self, start_point: StartPoint) -> None:
        """InputError if weights that the run reads again differ from those of its start."""
        spec = self._spec
        if spec.config.init != "pretrained" or not files.reads_base(spec.meta_model, spec.source):
            return
        known = start_point.base
        if known is None and start_point.checkpoint is not None:
            known = read_counts(start_point.checkpoint / STATE).get(BASE)
        base_files.check(known, spec.source)
        self._base = known or base_files.read_fingerprint(spec.source)

    def updated(self, step: int) -> None:
        self.calls += 1
        self.precious = True
        self.steps = step

    def payload(self, state: dict[str, Any]) -> str:
        """The data that a commit stores beside the engine's own; `state`: the loop's."""
        payload = {"session": self._counts(), "written": self._telemetry.written(), "run": state}
        return json.dumps(payload, separators=(",", ":"))

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json: what `from_pretrained` reads; of adapters what
        `PeftModel.from_pretrained` reads beside the base."""
        spec = self._spec
        if not self._writes:
            return self._give_model(directory)
        if spec.adapters is not None:
            with translated():
                spec.adapters.save(self._engine, self._description, spec.config.model, directory)
            return
        files.require_carried(spec.meta_model, spec.begins_with)
        with translated():
            files.save_weights(
                spec.meta_model, self._description, self._engine, directory, files.MAX_SHARD, spec.begins_with
            )
        if not isinstance(spec.model_config, OwnConfig):  # what is built by code of its own is described by that
            save_config(spec.source, spec.model_config, spec.config.weight_dtype, directory)

    def save_weights_alone(self, directory: Path) -> None:
        """Saves the trained weights, and the other files that can be saved."""
        spec = self._spec
        if spec.adapters is not None or not self._writes:
            return self.save_model(directory)
        with translated():
            files.save_weights(
                spec.meta_model, self._description, self._engine, directory, files.MAX_SHARD, spec.source / "none"
            )
        if isinstance(spec.model_config, OwnConfig):
            return
        for _, save in config_files(spec.source, spec.model_config, spec.config.weight_dtype):
            with suppress(Exception):
                save(directory)

    def save(self, directory: Path, alone: bool = False) -> None:
        """Writes the state that the model files lack to continue bit by bit, under directory/spillway/. `alone`: also
        what lies on the storage paths."""
        state = directory / STATE
        if self._writes:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with translated():
            if self._durable and not (alone or self._alone) and on_paths(self._plan, "state"):
                self._engine.save_manifest(str(state))
            else:
                self._engine.save_state(str(state), self.steps)
                if self._spec.adapters is not None:
                    self._spec.adapters.save_weights(self._engine, self._description, state, self._writes)
                if self._alone and not self._displaced:
                    self._keep_step()
        if self._writes:
            write_counts(state, self._counts() | ({BASE: self._base} if self._base else {}))
            wear.save(state, self._telemetry.written())

    def stand_alone(self) -> None:
        """Makes later checkpoints hold all of the state, since no later process finds the volumes."""
        self._alone = self._displaced = True

    def _keep_step(self) -> None:
        """Makes the last committed step durable on the paths of every process, if only checkpoints are durable. Another
        number of processes takes it over."""
        if self._plan.durability == "checkpoint":
            self._engine.leave("")

    def _give_model(self, directory: Path) -> None:
        """Writes this process's part of the files that another process writes."""
        spec = self._spec
        with translated():
            if spec.adapters is not None:
                spec.adapters.give(self._engine, self._description)
            else:
                files.give_weights(
                    spec.meta_model, self._description, self._engine, directory, files.MAX_SHARD, spec.begins_with
                )

    def masters(self) -> dict[str, torch.Tensor]:
        """All weights as fp32, by name: for a model that fits in memory."""
        tensors, number = {}, 0
        for block in self._description.blocks:
            for tensor in block.tensors:
                values = torch.empty(tensor.shape)
                self._engine.fetch_tensor(number, 0, values.view(-1))
                tensors[tensor.name] = values
                number += 1
        return tensors

    def leave(self, state: dict[str, Any]) -> bytes:
        """The manifest of what stays on the storage paths, where it could not be saved."""
        manifest = bytes(self._engine.leave(self.payload(state)))
        self.precious = True
        return manifest

    def close(self) -> None:
        """Volumes that nobody will go on from are gone."""
        if self._started and self._keep and not self.precious:
            self._engine.give_up_volumes()
        self._started = False

    def _recover(self, start_point: StartPoint) -> Recovery | None:
        """Starts the engine, with what its paths hold where that is asked for. None: state and weights are to come."""
        lines = start_point.lines if start_point.durable and self._durable else None
        changing = lines is not None and lines.change
        if lines is not None and changing and (taken := self._take_over(lines)):
            return taken
        tries = tries_of(start_point, self._durable)
        self.precious = tries[0].reopen and bool(volumes.present(self._spec.config.paths))
        shared = self._shared(start_point)
        for each in tries:
            if shared is not None:
                each.line = shared.line
                each.at_most = shared.step if each.reopen else each.at_most
            if each.checkpoint is not None:
                saved.check_files(each.checkpoint.parent)
            elif each.reopen:
                each.known_step = self._find_known_step(start_point)
            answer = self._engine.start(each, lambda: [str(path / STATE) for path in start_point.pinned()])
            self._started = answer.has_step or not each.if_found
            if answer.has_step:
                recovery = self._going_on(answer)
                if lines is not None and changing:
                    lines.settle()
                return recovery
        if start_point.checkpoint is None and not start_point.fresh:
            config = self._spec.config
            raise InputError(f"resume_from_checkpoint: {nothing_to_resume(Path(config.output_dir), config.paths)}")
        return None

    def _find_known_step(self, start_point: StartPoint) -> int:
        """The newest step that metrics.jsonl proves durable; 0: none. The row of a step is written before its commit,
        and a commit waits for the commit before it."""
        if not (self._writes and start_point.durable and self._plan.durability == "step"):
            return 0
        return max(0, read_newest_step(Path(self._spec.config.output_dir) / METRICS) - 2)

    def _take_over(self, lines: Lines) -> Recovery | None:
        """Takes over the state that another number of processes left, if the run continues from it. The state becomes
        durable here, and then the other processes' volumes are removed. None: the run continues as it would without
        them."""
        way = lines.look(self._engine)
        if way.kind is WayKind.nothing:
            lines.begin(None)
        if way.kind is WayKind.open:
            lines.restore(way.line)
        if way.kind is not WayKind.redeal:
            return None
        lines.require_other_devices(way.line)
        lines.require_room(self._plan)
        line = lines.begin(way.line)
        self._engine.start(OpenOptions(line=line))
        self._started = True
        answer = self._engine.redeal(way.step, way.readers, way.places)
        recovery = self._going_on(answer)
        self._engine.commit(answer.payload)
        self._engine.flush()
        self._keep_step()
        self.precious = True
        lines.settle()
        return replace(recovery, words=f"{recovery.words}; {counted(way.line.world, 'process')} had made it")

    def _shared(self, start_point: StartPoint) -> DurableStep | None:
        """The start that all processes share: the run's line, and the last step that is durable on all of them. This
        process's state of another line is gone after the call. InputError where the volumes of one are. None in a world
        of one."""
        if self._world.ranks.world == 1 or not self._durable:
            return None
        own = self._engine.durable_step()  # refused where another run has them: before the line changes
        every = self._world.gather((own.step, own.line))
        line = start_point.line()
        if all(on == line for _, on in every):
            return DurableStep(step=min(step for step, _ in every), line=line)
        newest = max(step for step, _ in every)
        gone = [rank for rank, (_, on) in enumerate(every) if on == 0]
        if start_point.durable and gone and newest > 0:
            raise InputError(
                f"storage: step {newest} of the run is on the paths of other processes, and nothing of it on those of "
                f"rank {gone[0]}; mount them again, or go back to a checkpoint: --resume_from_checkpoint DIR"
            )
        # If one is not on the line, none has got beyond its beginning, which is made anew.
        if own.line not in (0, line):
            for volume in volumes.present(self._spec.config.paths):
                volumes.remove(volume, self._run)
        return DurableStep(step=-1, line=line)

    def _going_on(self, answer: _engine.Recovery) -> Recovery:
        try:
            payload = json.loads(answer.payload)
            self._set_counts(payload["session"])
            self._telemetry.written_before = {name: int(count) for name, count in payload["written"].items()}
            recovery = Recovery(answer.step, dict(payload["run"]), answer.words)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"storage: the durable step on the paths cannot be read: {error!r}") from None
        self._telemetry.note(answer.damage)
        return recovery

    def _load(self, start_point: StartPoint) -> None:
        adapters = self._spec.adapters
        if start_point.checkpoint is None or adapters is not None:
            self._load_model()
        if start_point.checkpoint is not None:
            self._load_checkpoint(start_point.checkpoint)
        elif adapters is not None:
            adapters.begin(self._engine, self._description, start_point.adapters or adapters.source)

    def _load_model(self) -> None:
        """The weights that the run begins with; of adapters the base, which no step changes."""
        spec = self._spec
        if spec.config.init == "random":
            initialise.draw(spec.meta_model, self._engine, spec.config.seed)
        else:
            files.load_weights(spec.meta_model, self._description, self._engine, spec.source)
            if files.list_drawn(spec.meta_model, spec.source):
                initialise.draw_head(spec.meta_model, self._engine, spec.config.seed)

    def _load_checkpoint(self, checkpoint: Path) -> None:
        state, spec = checkpoint / STATE, self._spec
        saved.check_files(checkpoint)
        self._set_counts(read_counts(state))
        self._telemetry.written_before = wear.read(state)
        if spec.adapters is not None:
            precision = spec.adapters.load(self._engine, self._description, state, self.steps)
        else:
            precision = files.load_state(
                spec.meta_model, self._description, self._engine, state, checkpoint, self.steps
            )
        asked = spec.config.state_format
        if precision != asked:
            self._telemetry.note([f"the optimizer state of {checkpoint} was {precision} and is converted to {asked}"])
        if self._durable:
            self._engine.set_step(self.calls)

    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"steps": self.steps, "calls": self.calls}
        counts |= {name: getattr(self._spec.config, name) for name in ("compute_dtype", "virtual_ranks")}
        if self._spec.config.weight_dtype == "fp16":
            counts["loss_scale"] = list(self._engine.loss_scale())
        return counts

    def _set_counts(self, counts: dict[str, Any]) -> None:
        self.steps, self.calls = int(counts["steps"]), int(counts["calls"])
        if "loss_scale" in counts:
            scale, good = counts["loss_scale"]
            self._engine.set_loss_scale(float(scale), int(good))
