"""One run: a Hugging Face model, the C++ engine that owns its state, and the stream that joins them.

Construction plans and allocates nothing; `start` loads; then steps, evaluations and saves in any order. Planning is a
pipeline of values, `Config -> ModelSpec -> Verified -> Profiled -> EngineSpec -> PlannedEngine`, each made of the one
before: which model it is and that it may be streamed (`model.spec`), what its computation takes here (`profiled`), what
the engine is told, and the engine with its plan (`engine_spec`).
"""

from __future__ import annotations

import gzip
import os
import time
import weakref
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway._engine import Delay, Fits, Silence, StepUpdate
from spillway.base import calls, silence
from spillway.base.calls import EngineType, translated
from spillway.base.files import flush, new_file
from spillway.config import optimizers
from spillway.machine import auto, device, process_memory
from spillway.machine.compute import compute
from spillway.machine.place import HOST
from spillway.model.batches.joining import join, join_shape
from spillway.model.batches.microbatch import Share, Work, arrange
from spillway.model.checkpoint.tower_weights import open_tower
from spillway.model.head.distillation import LargestLogits, TopTokens
from spillway.model.head.objective import Choice, Objective, RowSums
from spillway.model.head.preference import objective_of
from spillway.model.layers.saved import choice_of
from spillway.model.measure.slack import SAVED_SLACK
from spillway.model.meta import factors
from spillway.model.source import hub
from spillway.model.source.own import OwnConfig
from spillway.model.spec import model_spec, verified
from spillway.model.stream.generation import callable_model
from spillway.model.stream.stream import Stream
from spillway.model.whole import hold_model
from spillway.output import wear
from spillway.run import logits, replays
from spillway.run.engine_spec import engine_spec, plan_engine, work_size
from spillway.run.engine_state import EngineState
from spillway.run.profiled import profiled
from spillway.run.protocol import Keeping, Recovery, StartPoint, StepResult
from spillway.run.start_points import STATE
from spillway.run.telemetry import HeapWatch, Telemetry
from spillway.run.world import OneProcess, World

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from spillway.config import Config
    from spillway.model.batches.batch import Batch, WorkShape


class EngineSession:
    """See spillway.run.protocol.SessionProtocol."""

    def __init__(
        self,
        config: Config,
        shape: WorkShape,
        engine_type: EngineType | None = None,
        keeping: Keeping | None = None,
        model_config: PreTrainedConfig | OwnConfig | None = None,
        frozen: Collection[str] | None = None,
        only_plan: bool = False,
        objective: Choice | None = None,
        world: World | None = None,
    ) -> None:
        """`engine_type`: called with description and settings; None: the C++ engine. `model_config` and `frozen` as
        `model_spec` takes them. `only_plan`: another process follows, whose working set differs by some bytes.
        `objective`: None: that of the configuration. `world`: processes that make the same calls; None: this one."""
        process_memory.settle()
        self._world = world or OneProcess()
        ranks = self._world.ranks
        config = auto.settled(config)
        self._objective = objective or objective_of(config)
        computing = compute(config, ranks.local_world)
        self._world.carry(config.ddp_backend, computing.place)
        self._verified = verified(model_spec(config, model_config, frozen, only_plan))
        self._spec = self._verified.spec
        self._verified.refuse_longer(max(shape.length, shape.eval_length))
        engine_type = engine_type or calls.native_engine()
        self._share = Share(ranks.rank, ranks.world, config.virtual_ranks, self._world.gather)
        most = self._share.most(shape.micro_batches) if ranks.world > 1 else 0
        shape = replace(shape, virtual_ranks=config.virtual_ranks, share=most, refers=config.refers_in_step)
        shape = join_shape(shape, self._spec.config, self._spec.meta_model)
        self._keeping = keeping or Keeping(str(Path(config.output_dir).absolute()))
        with device.done_without(config):
            self._profiled = profiled(self._verified, computing, shape, engine_type, only_plan, ranks.local_world)
            told = engine_spec(self._profiled, self._keeping, self._world)
            self._network = self._world.port()
            planned = plan_engine(told, self._profiled, engine_type, self._network)
        replays.check_place(config, self._profiled.compute.place)
        self.description, self.settings = told.description, told.settings
        self.planned, self.plan = planned.summary, planned.plan
        self._engine, self._durable, self._place = planned.engine, planned.durable, self._profiled.compute.place
        each_durable = self.planned.durability == "step"
        self._replays = replays.Replays(config, self._engine, self.description, self._share.gather, each_durable)
        self._telemetry = Telemetry(planned, self._place, told.notices, told.recorded)
        self._state = EngineState(self._spec, planned, self._telemetry, self._keeping, self._world)
        self._serving = ExitStack()  # of the network, from before the engine starts until it has closed
        self._heap = HeapWatch(self.planned, self._profiled.dry_run.work_bytes)
        self._stream: Stream | None = None
        self._silence: silence.SilenceWatch | None = None
        self._began, self._half = 0.0, (0.0, 0)  # when the step's gradients were asked for; its loss and label tokens
        self._process = os.getpid()

    @property
    def config(self) -> Config:
        return self._spec.config

    @property
    def run(self) -> str:
        """Its identity, as its volumes have it."""
        return self._keeping.run

    def what_fits(self) -> Fits:
        """This model at other budgets, sequences and batches, of a session that was opened with `only_plan`: its dry
        run has seen rows of half the length, too, and the working set for others lies on the line through both."""
        shape, per_token = self._profiled.shape, self._profiled.dry_run.per_token
        with translated():
            return self._engine.what_fits(shape.length, shape.batch, *per_token)

    def graph(self, format: str) -> str:
        with translated():
            return self._engine.graph(format)

    def start(self, start_point: StartPoint) -> Recovery | None:
        """Maps the memory and opens the volumes; state from there, from a checkpoint, or the model's weights."""
        config = self.config
        hub.fetch_weights(config)
        process_memory.give_back()  # what it was planned in
        self._serving.enter_context(self._world.serve(self._network, self._engine if self._durable else None))
        with silence.watched([path.place for path in config.paths]), translated(reading=True):
            recovery = self._state.start(start_point)
        self._heap.give_back()  # what weights were drawn or converted in lies elsewhere than what steps take
        self._telemetry.bound_device(device.count_torch_bytes(self.planned))
        with translated():
            self._stream = Stream(
                self._spec.meta_model,
                self._engine,
                config.seed,
                self._verified.unneeded,
                before_passes=self._heap.begin_round,
                after_pass=self._heap.look,
                place=self._place,
                objective=self._objective,
                kept_logits=self.planned.kept_logits,
                saved=choice_of(self.planned.saved_activations, SAVED_SLACK),
                tiles=self._verified.tiles,
                share=self._share,
                fused=self._verified.fused,
                tower=open_tower(self._spec.meta_model, self._spec.source, self._place.device),
                base=config.divisor if config.refers_in_step else None,
            )
        if config.paths or self._place.on_gpu:
            self._silence = silence.SilenceWatch(weakref.WeakMethod(self._silences))
        ask, place = weakref.WeakMethod(self._lateness), config.output_dir
        self._world.listen(lambda: method() if (method := ask()) else None, Path(place) if place else None)
        before = [wear.read(path / STATE) for path in start_point.pinned()]
        self._telemetry.written_before = wear.most([self._telemetry.written_before, *before])
        self._telemetry.begin()
        return recovery

    def commit(self, state: dict[str, Any]) -> None:
        if self._durable:
            with translated():
                self._engine.commit(self._state.payload(state))

    def settle(self) -> None:
        with translated():
            self._engine.flush()

    # ---- steps

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        self.gradients(batches, learning_rate)
        return self.update(self.rates(learning_rate))

    def gradients(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        over: int | None = None,
        routers: float | None = None,
    ) -> tuple[float, int]:
        """The first part of a step: (loss summed over label tokens, or pairs, their number). `learning_rate` is a
        guess, for updates during backward; `update` takes the true one. `over`: that number, where the caller counts
        otherwise; `routers`: how much of each micro-batch's routers' loss is added, where it is another part than
        Work.routers_weight."""
        self._began = time.perf_counter()
        work = arrange(join(batches, self._profiled.shape.joined), over, routers, self.config.virtual_ranks)
        stream, calls = self._running(), self._state.calls
        with translated():
            if self._replays.begin_step(calls + 1):
                loss_sum = self._replays.compute(stream, work, calls)
            else:
                loss_sum = stream.gradients(work, self.rates(learning_rate), calls)
        self._half = (loss_sum, work.units)
        return self._half

    def update(self, rates: StepUpdate) -> StepResult:
        """The last part of a step, with rates as `rates` makes them."""
        rates.skip = self._replays.skips
        with translated():
            result = self._running().update(rates)
        self._state.updated(result.step)
        return StepResult(
            loss_sum=self._half[0],
            label_tokens=self._half[1],
            grad_norm=result.grad_norm,
            seconds=time.perf_counter() - self._began,
            skipped=result.skipped,
            loss_scale=result.loss_scale,
            refits=factors.summarise_step(self._engine) if self._spec.meta_model.spaces else {},
            replayed=self._replays.is_replayed,
            replay_difference=self._replays.difference,
            told=self.list_figures() if self.config.objective_entry.tells else [],
            **self._telemetry.count_step(),
        )

    def rates(self, learning_rate: float) -> StepUpdate:
        """Values of one update. `learning_rate` overrides the configuration."""
        return optimizers.make_update(self.config, learning_rate)

    # ---- evaluations

    def evaluate(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """(loss summed over label tokens, label tokens), or pairs."""
        with translated():
            outcome = self._running().evaluate(arrange(batches))
        return outcome.loss_sum, outcome.label_tokens

    def list_figures(self) -> list[dict[str, float]]:
        """Figures of the objective beside its loss, for the last step or evaluation, by micro-batch."""
        return self._running().tell()

    def log_probabilities(self, batches: Sequence[Batch]) -> list[list[float]]:
        """The log-probability of each row's labels, by micro-batch."""
        made: list[RowSums] = []

        def sums(work: Work, training: bool) -> Objective:
            made.append(RowSums(work, training, self.config.divisor))
            return made[0]

        with translated():
            self._running().evaluate(arrange(batches), objective=sums)
        numbered = [each for part in self._share.gather(made[0].numbered()) for each in part]
        return [rows for _, rows in sorted(numbered, key=lambda each: each[0])]

    def top_tokens(self, batches: Sequence[Batch], top_k: int, temperature: float) -> list[TopTokens]:
        """The largest logits of each label token and the rest, by micro-batch. For a run of one process."""
        made: list[LargestLogits] = []

        def largest(work: Work, training: bool) -> Objective:
            made.append(LargestLogits(top_k, temperature, work, training))
            return made[0]

        with translated():
            self._running().evaluate(arrange(batches), objective=largest)
        return made[0].take()

    def evaluate_each(self, batches: Sequence[Batch]) -> list[tuple[float, int]]:
        """`evaluate`, by micro-batch."""
        work = arrange(batches)
        with translated():
            self._running().evaluate(work)
        losses, routers = self._running().losses, self._running().auxiliaries
        return [(losses[at] + routers.get(at, 0.0), batch.units) for at, batch in enumerate(work.micro_batches)]

    def evaluate_whole(self, batches: Sequence[Batch], own: int = 0) -> tuple[float, int, torch.Tensor]:
        """`evaluate` of micro-batch `own`, and its logits [rows, length, vocabulary]. `batches`: one of each
        process."""
        return logits.evaluate_whole(self._running(), batches, own)

    def logits(self, ids: torch.Tensor, last: int = 0) -> torch.Tensor:
        """The logits of the `last` positions of every row (0: of all): [rows, positions, vocabulary]. ids: [rows,
        length]."""
        return logits.logits(self._running(), work_size(self._profiled.shape).tokens, ids, last, self._share)

    @property
    def model(self) -> PreTrainedModel:
        """The model, to be called or to generate with; every pass streams its layers. For looking, not for training."""
        return callable_model(self._spec.meta_model.model, self.logits)

    def hold_whole_model(self, on_host: bool = False) -> AbstractContextManager[PreTrainedModel]:
        """The library's own model with the current weights, whole where layers compute, or `on_host`."""
        self._running()
        place = HOST if on_host else self._place
        return hold_model(self._spec.meta_model, self.description, self._engine.fetch_tensor, place)

    # ---- what is kept of it

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json: what `from_pretrained` reads; of adapters what
        `PeftModel.from_pretrained` reads beside the base. Rank 0 alone writes; the others give it what they have."""
        self._running()
        self._state.save_model(directory)

    def save_weights_alone(self, directory: Path) -> None:
        """Saves the trained weights, and the other files that can be saved, after a save has failed."""
        self._running()
        self._state.save_weights_alone(directory)

    def save_state(self, directory: Path, alone: bool = False) -> None:
        """Writes the state that the model files lack, under directory/spillway/. `alone`: also that on the paths."""
        self._running()
        self._state.save(directory, alone)

    def masters(self) -> dict[str, torch.Tensor]:
        """All weights as fp32, by name: for a model that fits in memory."""
        self._running()
        with translated():
            return self._state.masters()

    def leave(self, state: dict[str, Any]) -> bytes:
        with translated():
            return self._state.leave(state)

    def take_back(self) -> None:
        """Takes back the state that `leave` left: it was saved after all."""
        if not self._durable:
            self._engine.take_back()

    def displaced_volumes(self) -> list[str]:
        """Volumes whose file was removed or replaced since they were opened."""
        return list(self._engine.displaced_volumes()) if self.config.paths else []

    def stand_alone(self) -> None:
        """Makes later checkpoints need no volume."""
        self._state.stand_alone()

    def release(self, manifest: bytes) -> None:
        if self._durable:
            with translated():
                self._engine.release_manifest(manifest)

    def give_up_volumes(self) -> None:
        self._state.precious = False

    # ---- what is told of it

    def measured(self) -> dict[str, Any]:
        """Peaks, bytes and stalls of this process so far; see spillway.run.protocol.SessionProtocol."""
        dry_run = self._profiled.dry_run
        return {
            **self._telemetry.measured(),
            **self._replays.measured(),
            **(factors.summed(self._engine) if self._spec.meta_model.spaces else {}),
            "rehearsed": {"work_bytes": dry_run.work_bytes, "seconds": dry_run.seconds},
            **({} if self._stream is None else self._stream.most.summarise()),
        }

    def list_plan_notices(self) -> list[str]:
        return self._telemetry.list_plan_notices()

    def notices(self) -> list[str]:
        return [*self._telemetry.notices(), *self._replays.take_notices()]

    def record_experts(self, output_dir: Path) -> None:
        self._telemetry.record_experts(output_dir)

    def write_timeline(self, path: Path) -> None:
        """Whole or not at all: the page about a running run reads it."""
        temporary = path.with_name(f".tmp-{path.name}")
        with open(new_file(temporary), "wb") as file, gzip.open(file, "wt", encoding="utf-8") as stream:
            stream.write(self._engine.timeline())
        flush(temporary)
        os.replace(temporary, path)

    def close(self) -> None:
        """In a forked child nothing: engine and volumes are its parent's."""
        if self._process != os.getpid():
            return
        self._world.listen(None)
        if self._silence is not None:
            self._silence.close()
            self._silence = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._place.bound(None)
        self._state.close()
        try:
            with translated():
                self._engine.close()
        finally:
            self._serving.close()
            process_memory.trim()  # what steps had of the heap; the process may go on

    def _silences(self) -> dict[str, Silence]:
        return dict(self._engine.silence())

    def _lateness(self) -> Delay | None:
        delay: Delay | None = self._engine.lateness()
        return delay

    def _running(self) -> Stream:
        if self._stream is None:
            raise RuntimeError("the session is not started")
        return self._stream
