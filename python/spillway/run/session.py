"""One run: a Hugging Face model, the C++ engine that owns its state, and the stream that joins them.

Construction plans and allocates nothing; `start` loads; then steps, evaluations and saves in any order.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
import os
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.base import calls, silence, stages
from spillway.base.calls import EngineType, loss_kernels, translated
from spillway.config.optimizers import update
from spillway.base.files import flush, new_file
from spillway.errors import DoesNotFit, InputError
from spillway.machine import device, nodes, process_memory, products, threads
from spillway.model import files, freeze, hub, initialise, subspaces
from spillway.model.building import build
from spillway.model.describe import WorkSize, describe
from spillway.model.dry_run import DryRun, profile_dry_run
from spillway.model.equivalence import verify_equivalence, verify_mixed_types
from spillway.model.generation import callable_model
from spillway.model.library import kept_in_fp32
from spillway.model.lora import adapters_of
from spillway.model.meta_model import MetaModel
from spillway.model.microbatch import MicroBatch, Work, arrange, consecutive
from spillway.model.objective import Choice, CrossEntropy, Objective, RowSums
from spillway.model.own import OwnConfig
from spillway.model.preference import objective_of
from spillway.model.source import DTYPES, load_config, save_config
from spillway.model.stream import Outcome, Stream
from spillway.output import saved, volumes, wear
from spillway.output.directory import nothing_to_resume
from spillway.run import room
from spillway.run.openings import STATE, on_paths, read_counts, tries_of, write_counts
from spillway.run.protocol import Keeping, Opening, Recovery, StepResult
from spillway.run.settings import default_budget, engine_settings, subspace_checks, update_rule

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from spillway.config import Config
    from spillway.model.batch import Batch, WorkShape
    from spillway.run.protocol import PathBytes

HOLES, SHARE_OF_HOLES = 24 * 2**20, 0.1  # bytes by which the heap grows in one visit at most, as seen, or part of work
REGROWTH = 4 * 2**20  # bytes since the heap was given back that make it worth doing again: it takes a tenth of a second
MAX_SHARD = 5 * 10**9  # bytes of a safetensors file
# Two dry runs of one shape differ by so much at most, as seen (98 to 113 MiB): what the heap has free in between lies
# elsewhere in every process. A plan that is only asked for counts it, so that the run that follows it fits.
MARGIN, LEAST_MARGIN = 1 / 8, 16 * 2**20
LINK_WAYS = ("to_device", "from_device")
PIECE = 256  # tokens whose logits are widened at a time


class Session:
    """See spillway.run.protocol.Session."""

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
    ) -> None:
        """`engine_type`: what is called with description and settings; the C++ engine when None. `model_config`: the
        model's own, changed by whoever opens the session; as it lies in the directory when None. `frozen`: names of
        the parameters that do not learn; None: as the configuration says. `only_plan`: for another process to follow,
        whose working set is not the same to the byte. `objective`: None: as the configuration says."""
        process_memory.settle()
        self._objective = objective or objective_of(config)
        self._place = device.place(config)
        self._threads = threads.settle()
        self._config = config = hub.settled(products.settled(config), only=("model", "tokenizer"))
        self._source = hub.model_directory(config)
        self._model_config = model_config or load_config(self._source)
        if config.init == "pretrained" and not config.resume_from_checkpoint and not hub.is_name(config.model):
            require_weights(self._source)
        self._packing = packing = config.packing or bool(config.eval_packing)
        computes, kept = DTYPES[config.compute_dtype], DTYPES[config.weight_dtype]
        self._meta_model = build(copy.deepcopy(self._model_config), computes, kept)
        self._adapters = adapters_of(config)
        if config.init == "random" and self._meta_model.carried and not only_plan:
            raise InputError(
                f"init: random draws the tower of text alone, and {self._model_config.model_type} has others, which a "
                "checkpoint has to hold; leave init at pretrained"
            )
        if self._adapters is not None:
            self._adapters.adapt(self._meta_model)
        elif frozen is None:
            freeze.choose(self._meta_model, config, self._source)
        else:
            freeze.freeze_like(self._meta_model, frozen)
        if config.disable_dropout:
            without_dropout(self._meta_model.model)
        subspaces.choose(self._meta_model, config)
        stages.say("comparing a small copy with plain PyTorch")
        proof = verify_equivalence(copy.deepcopy(self._model_config), packing)
        self._meta_model.unused, self._unneeded = proof.unused, proof.unneeded
        if self._adapters is not None:
            self._meta_model.unused |= self._adapters.unused(copy.deepcopy(self._model_config))
        wide = any(map(self._meta_model.wide, self._meta_model.streamed))
        if wide and computes != torch.float32:
            verify_mixed_types(copy.deepcopy(self._model_config), computes)
        engine_type = engine_type or calls.native_engine()
        self._engine_type, self._shape = engine_type, shape
        self._dry_run = self._profile_dry_run(shape, half=only_plan)
        logits = shape.logits * self._meta_model.vocabulary * self._meta_model.dtype.itemsize
        drawn = initialise.work_bytes(self._meta_model) if config.init == "random" else 0  # before the first step
        work = max(self._dry_run.work_bytes + logits, self._dry_run.left_bytes + drawn)
        if only_plan:
            work += max(LEAST_MARGIN, int(MARGIN * work))
        self._dry_run = replace(self._dry_run, work_bytes=work)
        self._tokens = work_size(shape).tokens
        model = describe(self._meta_model, work_size(shape), config.compute_dtype)
        self.description = model | update_rule(config) | subspace_checks(config) | {"seed": config.seed}
        self._keeping = keeping or Keeping(str(Path(config.output_dir).absolute()))
        learning = sum(p.numel() for p in self._meta_model.model.parameters() if p.requires_grad)
        self.settings = engine_settings(
            config, self._dry_run, self._keeping, learning, self._update_cores(), self._place
        )
        memory, self._news = nodes.node_settings(
            config.node,
            self._dry_run.process_bytes,
            self.settings["dram_budget"],
            update_rule(config),
            None if config.profile is None else self.settings["profile"],
            self._place.device.index if self._place.on_gpu else None,
            self.settings["storage"],
        )
        self.settings |= memory | room.settings(
            config, self._keeping.saving, self._converted(), files.carried_bytes(self._meta_model)
        )
        self.settings["keeps_logits"] = self._meta_model.simple_head and not self._place.on_gpu
        self._news += rounded_tables(self._meta_model)
        stages.say("planning")
        with translated(), self._told_what_was_measured():
            self._engine = engine_type(json.dumps(self.description), json.dumps(self.settings))
            self.plan: dict[str, Any] = json.loads(self._engine.plan())
        if config.chosen:
            self.plan["compute_why"] = config.chosen
        if words := device.passed_over(config):
            self.plan["device_why"] = words
        if shape.pairs:
            self.plan["reference"] = first_pass(shape, self.plan, self.settings.get("seconds", {}))
        self.plan["threads"] = {"compute": self._threads.compute, "words": self._threads.words}
        self._durable = self.plan.get("durability", "none") != "none"
        self._stream: Stream | None = None
        self._calls = 0  # steps begun: the step number of dropout
        self._steps = 0  # updates made
        self._began = 0.0  # when the step's gradients were asked for
        self._half = (0.0, 0)  # its loss and label tokens
        self._path_bytes: PathBytes = {}
        self._link_bytes: dict[str, int] = {}
        self._node_updates: dict[str, dict[str, float]] = {}
        self._written_before: wear.Written = {}  # by the run's earlier processes
        self._peak = 0
        self._in_use = 0  # bytes of the process that stayed when the heap was given back last
        self._told: set[str] = set()
        self._started = False  # the volumes are open, and ours
        self._process = os.getpid()
        self._silence: silence.SilenceWatch | None = None
        self._precious = False  # they hold something that a later one may go on from

    def _profile_dry_run(self, shape: WorkShape, half: bool) -> DryRun:
        dtype = self._config.compute_dtype
        with loss_kernels(self._engine_type, dtype, device.small(self._config, self._place)) as kernels:
            budget = self._config.dram_budget or default_budget()
            arguments = (self._meta_model, dtype, shape, self._packing, self._unneeded, kernels, self._place)
            return profile_dry_run(*arguments, half, budget)

    @contextmanager
    def _told_what_was_measured(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            known, shape = self._dry_run, self._shape
            if (known.measured_rows, known.measured_length) in ((0, 0), (shape.batch, shape.length)):
                raise
            raise DoesNotFit(
                f"{error}. (The working set of {shape.batch} x {shape.length} tokens is extrapolated from "
                f"{known.measured_rows} x {known.measured_length}: more would have passed dram_budget already while it "
                "was measured)"
            ) from error

    @property
    def config(self) -> Config:
        return self._config

    @property
    def run(self) -> str:
        """Its identity, as its volumes have it."""
        return self._keeping.run

    def _converted(self) -> bool:
        """Whether files hold tensors in another form than the engine does, so that they are written twice."""
        return self._adapters is None and files.converts(
            self._meta_model, self.description, self._began_with(), MAX_SHARD
        )

    def what_fits(self) -> dict[str, Any]:
        """`fit_table` and `longest_sequence` of plan.json, of a session that was opened with `only_plan`: its dry run
        has seen rows of half the length, too, and the working set for others lies on the line through both."""
        shape, per_token = self._shape, self._dry_run.per_token
        with translated():
            found: dict[str, Any] = json.loads(self._engine.what_fits(shape.length, shape.batch, *per_token))
        return found

    def _update_cores(self) -> int:
        """Cores that only updates use: all but two when a GPU computes, which are for the caller and for copies."""
        threads = self._threads
        return max(1, threads.compute + threads.update_cores - 2) if self._place.on_gpu else threads.update_cores

    def start(self, opening: Opening) -> Recovery | None:
        """Maps the memory and opens the volumes; state from there, from a checkpoint, or the model's weights."""
        hub.fetch_weights(self._config)
        process_memory.give_back()  # what it was planned in
        with silence.watched([path.place for path in self._config.paths]), translated(reading=True):
            recovery = self._recover(opening)
            if recovery is None:
                self._load(opening)
            elif self._config.init == "pretrained":
                files.load_buffers(self._meta_model, self._source)
        process_memory.give_back()  # what weights were drawn or converted in lies elsewhere than what steps take
        self._in_use = process_memory.resident()
        self._place.watch_peak()
        self._place.bound(device.left(self.plan))
        self._stream = Stream(
            self._meta_model,
            self._engine,
            self._config.seed,
            self._unneeded,
            after_visit=self._keep_to_plan,
            place=self._place,
            objective=self._objective,
            kept_logits=self.plan.get("kept_logits", 0),
        )
        if self._config.paths:
            self._silence = silence.SilenceWatch(weakref.WeakMethod(self._silences))
        before = [wear.read(path / STATE) for path in opening.pinned()]
        self._written_before = wear.most([self._written_before, *before])
        self._path_bytes, self._link_bytes = self._paths(), self._link()
        return recovery

    def commit(self, state: dict[str, Any]) -> None:
        if self._durable:
            with translated():
                self._engine.commit(self._payload(state))

    def settle(self) -> None:
        with translated():
            self._engine.flush()

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
        work = arrange(batches, over, routers)
        with translated():
            loss_sum = self._running().gradients(work, self.rates(learning_rate), self._calls)
        self._half = (loss_sum, work.units)
        return self._half

    def update(self, rates: dict[str, float]) -> StepResult:
        """The last part of a step, with rates as `rates` makes them."""
        with translated():
            update = self._running().update(rates)
        self._calls += 1
        self._precious = True
        self._steps = int(update["step"])
        return StepResult(
            loss_sum=self._half[0],
            label_tokens=self._half[1],
            grad_norm=update["grad_norm"],
            seconds=time.perf_counter() - self._began,
            path_bytes=self._new_path_bytes(),
            link_bytes=self._new_link_bytes(),
            skipped=bool(update["skipped"]),
            loss_scale=update.get("loss_scale", 1.0),
            written=self._written(),
            node_updates=self._new_node_updates(),
            subspaces=subspaces.told(self._engine) if self._meta_model.spaces else {},
            told=self.told() if self._config.objective == "dpo" else [],
        )

    def evaluate(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """(loss summed over label tokens, label tokens), or pairs."""
        with translated():
            outcome = self._running().evaluate(arrange(batches))
        return outcome.loss_sum, outcome.label_tokens

    def told(self) -> list[dict[str, float]]:
        """Of the last step or evaluation, by micro-batch: what the objective tells besides its loss."""
        return self._running().tell()

    def log_probabilities(self, batches: Sequence[Batch]) -> list[list[float]]:
        """By micro-batch, of each row: the log-probability of its labels."""
        made: list[RowSums] = []

        def sums(work: Work, training: bool) -> Objective:
            made.append(RowSums(work, training))
            return made[0]

        with translated():
            self._running().evaluate(arrange(batches), objective=sums)
        return made[0].rows

    def evaluate_whole(self, batch: Batch) -> tuple[float, int, torch.Tensor]:
        """The same of one micro-batch, and its logits [rows, length, vocabulary]."""
        rows, length = batch.input_ids.shape
        (arranged,) = arrange([batch]).micro_batches
        logits, outcome = self._logits(
            batch.input_ids, torch.arange(rows * length), arranged.position_ids, arranged.real
        )
        parts = list(zip(arranged.labelled.split(PIECE), arranged.labels.split(PIECE), strict=True))
        loss_sum = math.fsum(
            float(torch.nn.functional.cross_entropy(logits[part].float(), labels, reduction="sum"))
            for part, labels in parts
        )
        right = sum(int((logits[part].argmax(1) == labels).sum()) for part, labels in parts)
        accuracy = right / max(1, arranged.labelled.numel())
        self._running().tell = lambda: [{"mean_token_accuracy": accuracy}]
        loss_sum += outcome.auxiliary / max(1, outcome.label_tokens) * arranged.labelled.numel()
        return loss_sum, arranged.labelled.numel(), logits.view(rows, length, -1)

    def logits(self, ids: torch.Tensor, last: int = 0) -> torch.Tensor:
        """Of the `last` positions of every row (0: of all): [rows, positions, vocabulary]. ids: [rows, length]."""
        rows, length = ids.shape
        if rows * length > self._tokens:
            raise InputError(
                f"max_length: {rows} rows of {length} tokens are more than was planned for, {self._tokens} tokens"
            )
        kept = min(last or length, length)
        tokens = torch.arange(rows * length).view(rows, length)[:, length - kept :].reshape(-1)
        return self._logits(ids, tokens, None, None)[0].view(rows, kept, -1)

    def _logits(
        self, ids: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor | None, real: torch.Tensor | None
    ) -> tuple[torch.Tensor, Outcome]:
        """[tokens, vocabulary], of these tokens counted row by row; the outcome of a pass in which each had label 0."""
        rows, length = ids.shape
        labels, ones = torch.zeros_like(tokens), 0.0 if real is None else float(real.sum())
        batch = MicroBatch(0, 0, rows, length, positions, tokens, labels, real, consecutive(tokens), ones)
        work = Work(ids.reshape(-1), [batch])
        found = torch.empty(tokens.numel(), self._meta_model.vocabulary, dtype=self._meta_model.dtype)

        def watch(_: MicroBatch, logits: torch.Tensor, first: int) -> None:
            found[:, first : first + logits.shape[1]] = logits

        with translated():
            outcome = self._running().evaluate(work, watch, CrossEntropy)
        return found, outcome

    @property
    def model(self) -> PreTrainedModel:
        """The model, to be called or to generate with; every pass streams its layers. For looking, not for training."""
        return callable_model(self._meta_model.model, self.logits)

    def save_model(self, directory: Path) -> None:
        """Safetensors (and index), config.json, generation_config.json: what `from_pretrained` reads; of adapters what
        `PeftModel.from_pretrained` reads beside the base."""
        self._running()
        if self._adapters is not None:
            with translated():
                self._adapters.save(self._engine, self.description, self._config.model, directory)
            return
        with translated():
            files.save_weights(
                self._meta_model, self.description, self._engine, directory, MAX_SHARD, self._began_with()
            )
        if not isinstance(self._model_config, OwnConfig):  # what is built by code of its own is described by that
            save_config(self._source, self._model_config, self._config.weight_dtype, directory)

    def masters(self) -> dict[str, torch.Tensor]:
        """All weights as fp32, by name: for a model that fits in memory."""
        self._running()
        found, number = {}, 0
        with translated():
            for block in self.description["blocks"]:
                for tensor in block["tensors"]:
                    values = torch.empty(tensor["shape"])
                    self._engine.fetch_tensor(number, 0, values.view(-1))
                    found[tensor["name"]] = values
                    number += 1
        return found

    def save_state(self, directory: Path) -> None:
        """What the model files lack to go on bit by bit, under directory/spillway/."""
        self._running()
        state = directory / STATE
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with translated():
            if self._durable and on_paths(self.plan, "state"):
                self._engine.save_manifest(str(state))
            else:
                self._engine.save_state(str(state), self._steps)
                if self._adapters is not None:
                    self._adapters.save_weights(self._engine, self.description, state)
        write_counts(state, self._counts())
        wear.save(state, self._written())

    def measured(self) -> dict[str, Any]:
        """Peaks, bytes and stalls of this process so far; see spillway.run.protocol.Session."""
        counters = json.loads(self._engine.counters())
        self._peak = max(self._peak, process_memory.peak())
        found = nodes.where(self.plan, self._engine)
        tiers = nodes.measured_peaks(self.plan, found, self._peak)
        for name, path in counters.get("paths", {}).items():
            tiers[name] = volume_bytes(path.get("volume"))
        if "device" in counters:
            tiers["device"] = counters["device"]["memory"] + self._place.peak()
        return {
            "tiers": tiers,
            **({"nodes": found} if found else {}),
            "process_peak": self._peak,
            "path_bytes": self._paths(),
            **({"link_bytes": link} if (link := self._link()) else {}),
            "written": self._written(),
            "stall_seconds": counters.get("stall_seconds", {}),
            "waits": counters.get("waits", {}),
            "flushes": {
                name: {"count": path.get("syncs", 0), "seconds": path.get("sync_seconds", 0.0)}
                for name, path in counters.get("paths", {}).items()
            },
            **({"subspaces": subspaces.summed(self._engine)} if self._meta_model.spaces else {}),
            "rehearsed": {"work_bytes": self._dry_run.work_bytes, "seconds": self._dry_run.seconds},
        }

    def _silences(self) -> str:
        return self._engine.silence()

    def notices(self) -> list[str]:
        """What a person should know about the paths and was not told yet: no O_DIRECT, one that was taken out."""
        counters = json.loads(self._engine.counters())
        found = [path["notice"] for path in counters.get("paths", {}).values() if path.get("notice")]
        found += [counters["device"]["notice"]] if counters.get("device", {}).get("notice") else []
        found += self._news
        found += [outage["reason"] for outage in counters.get("outages", [])]
        new = [notice for notice in found if notice not in self._told]
        self._told.update(new)
        return new

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
        if self._silence is not None:
            self._silence.close()
            self._silence = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self._place.bound(None)
        if self._started and self._keeping.keep and not self._precious:
            self._engine.give_up_volumes()
        self._started = False
        with translated():
            self._engine.close()

    def leave(self, state: dict[str, Any]) -> bytes:
        with translated():
            manifest = bytes(self._engine.leave(self._payload(state)))
        self._precious = True
        return manifest

    def take_back(self) -> None:
        """What `leave` has left was saved after all."""
        if not self._durable:
            self._engine.take_back()

    def _payload(self, state: dict[str, Any]) -> str:
        payload = {"session": self._counts(), "written": self._written(), "run": state}
        return json.dumps(payload, separators=(",", ":"))

    def release(self, manifest: bytes) -> None:
        if self._durable:
            with translated():
                self._engine.release_manifest(manifest)

    def give_up_volumes(self) -> None:
        self._precious = False

    def _recover(self, opening: Opening) -> Recovery | None:
        """Starts the engine, with what its paths hold where that is asked for. None: state and weights are to come."""
        tries = tries_of(opening, self._durable)
        self._precious = "reopen" in tries[0] and bool(volumes.present(self._config.paths))
        for words in tries:
            if "checkpoint" in words:
                saved.check(Path(words["checkpoint"]).parent)
            told = self._engine.start(json.dumps(words), lambda: [str(path / STATE) for path in opening.pinned()])
            found = json.loads(told)
            self._started = found["found"] or "if_found" not in words
            if found["found"]:
                return self._going_on(found)
        if opening.checkpoint is None and not opening.fresh:
            raise InputError(f"resume_from_checkpoint: {nothing_to_resume(Path(self._config.output_dir))}")
        return None

    def _going_on(self, found: dict[str, Any]) -> Recovery:
        try:
            payload = json.loads(found["payload"])
            self._set_counts(payload["session"])
            self._written_before = {name: int(count) for name, count in payload["written"].items()}
            recovery = Recovery(int(found["step"]), dict(payload["run"]), found["words"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"storage: the durable step on the paths cannot be read: {error!r}") from None
        self._news += [str(damage) for damage in found.get("damage", [])]
        return recovery

    def _load(self, opening: Opening) -> None:
        if opening.checkpoint is None or self._adapters is not None:
            self._load_model()
        if opening.checkpoint is not None:
            self._load_checkpoint(opening.checkpoint)
        elif self._adapters is not None:
            self._adapters.begin(self._engine, self.description, opening.adapters)

    def _load_model(self) -> None:
        """The weights that the run begins with; of adapters the base, which no step changes."""
        if self._config.init == "random":
            initialise.draw(self._meta_model, self._engine, self._config.seed)
        else:
            files.load_weights(self._meta_model, self.description, self._engine, self._source)

    def _load_checkpoint(self, checkpoint: Path) -> None:
        state = checkpoint / STATE
        saved.check(checkpoint)
        self._set_counts(read_counts(state))
        self._written_before = wear.read(state)
        if self._adapters is not None:
            found = self._adapters.load(self._engine, self.description, state, self._steps)
        else:
            found = files.load_state(self._meta_model, self.description, self._engine, state, checkpoint, self._steps)
        if found != self._config.state_format:
            self._news.append(
                f"the optimizer state of {checkpoint} was {found} and is converted to {self._config.state_format}"
            )
        if self._durable:
            self._engine.set_step(self._calls)

    def _began_with(self) -> Path:
        """The checkpoint whose other tensors are carried along; none where weights were drawn."""
        return self._source if self._config.init == "pretrained" else self._source / "none"

    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"steps": self._steps, "calls": self._calls}
        counts["compute_dtype"] = self._config.compute_dtype
        if self._config.weight_dtype == "fp16":
            counts["loss_scale"] = list(self._engine.loss_scale())
        return counts

    def _set_counts(self, counts: dict[str, Any]) -> None:
        self._steps, self._calls = int(counts["steps"]), int(counts["calls"])
        if "loss_scale" in counts:
            scale, good = counts["loss_scale"]
            self._engine.set_loss_scale(float(scale), int(good))

    def _written(self) -> wear.Written:
        """By the run, in this process and before it."""
        return wear.total(self._written_before, {name: moved["written"] for name, moved in self._paths().items()})

    def _running(self) -> Stream:
        if self._stream is None:
            raise RuntimeError("the session is not started")
        return self._stream

    def rates(self, learning_rate: float) -> dict[str, float]:
        """What an update goes by, the configuration's but for the learning rate."""
        return {**update(self._config, learning_rate), "max_grad_norm": self._config.max_grad_norm}

    def _paths(self) -> PathBytes:
        paths = json.loads(self._engine.counters()).get("paths", {})
        return {name: {"read": path["read"], "written": path["written"]} for name, path in paths.items()}

    def _keep_to_plan(self) -> None:
        """Products of many shapes wear holes into the heap; before these exceed the plan they are given back."""
        planned = nodes.memory_peak(self.plan)
        holes = max(HOLES, int(SHARE_OF_HOLES * self._dry_run.work_bytes))
        if planned and process_memory.resident() > max(planned - holes, self._in_use + REGROWTH):
            process_memory.give_back()
            self._in_use = process_memory.resident()

    def _new_path_bytes(self) -> PathBytes:
        """Bytes moved since the last call."""
        before, self._path_bytes = self._path_bytes, self._paths()
        return {
            name: {direction: count - before.get(name, {}).get(direction, 0) for direction, count in now.items()}
            for name, now in self._path_bytes.items()
        }

    def _link(self) -> dict[str, int]:
        """Bytes over a device's link so far; empty without one that has memory of its own."""
        found = json.loads(self._engine.counters()).get("device", {})
        return {way: found[way] for way in LINK_WAYS} if self.plan.get("device_bytes_per_step") else {}

    def _new_link_bytes(self) -> dict[str, int]:
        before, self._link_bytes = self._link_bytes, self._link()
        return {way: now - before.get(way, 0) for way, now in self._link_bytes.items()}

    def _new_node_updates(self) -> dict[str, dict[str, float]]:
        """Since the last call; nothing where DRAM is one tier."""
        if len(nodes.names(self.plan)) < 2:
            return {}
        before, self._node_updates = self._node_updates, json.loads(self._engine.counters()).get("updates", {})
        return {
            name: {kind: count - before.get(name, {}).get(kind, 0) for kind, count in now.items()}
            for name, now in self._node_updates.items()
        }


def work_size(shape: WorkShape) -> WorkSize:
    tokens = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
    return WorkSize(shape.micro_batches, shape.micro_batches * tokens)


def first_pass(shape: WorkShape, plan: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """`reference` of plan.json. A forward pass takes at most what forward is of a step's visits, whose others move more
    bytes than it does. `seconds`: of visits, as profiled."""
    found: dict[str, Any] = {"pairs": shape.pairs, "passes": shape.passes}
    step, visits = plan.get("predicted_step_seconds"), seconds.get("forward", 0) + seconds.get("backward", 0)
    return found | ({"predicted_seconds": shape.passes * step * seconds["forward"] / visits} if step and visits else {})


def without_dropout(model: torch.nn.Module) -> None:
    """As TRL does it: modules of dropout, and nothing that a layer's own code drops."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def require_weights(directory: Path) -> None:
    """InputError when there is nothing to load, before anything is measured."""
    if any((directory / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return
    others = [path.name for path in sorted(directory.glob("*.bin"))]
    found = f"; {others[0]} is there: save it as safetensors first" if others else ""
    raise InputError(f"{directory}: no model.safetensors and no model.safetensors.index.json{found}")


def rounded_tables(meta_model: MetaModel) -> list[str]:
    """What a person should know of tables that `from_pretrained` would keep in fp32."""
    fp32 = kept_in_fp32(meta_model.model, meta_model.kept)
    tables = {meta_model.names[id(table.weight)] for table in (meta_model.embedding, meta_model.head)}
    return [
        f"transformers computes with {name} in fp32; here this table is kept in "
        f"{str(meta_model.kept).removeprefix('torch.')}, as the layers are, and its master is fp32"
        for name in sorted(tables)
        if fp32.search(name)
    ]


def volume_bytes(volume: str | None) -> int:
    """Bytes that a volume's file holds on its file system."""
    try:
        return os.stat(volume).st_blocks * 512 if volume else 0
    except OSError:
        return 0
