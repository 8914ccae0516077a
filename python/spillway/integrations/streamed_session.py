"""The engine's session behind a Trainer: planned for its data and arguments, opened when it is first needed."""

from __future__ import annotations

import copy
import os
import threading
import traceback
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import PreTrainedModel

from spillway.base.calls import translated
from spillway.base.silence import tell_person
from spillway.config import Config, several
from spillway.config.checks import check_places
from spillway.errors import InputError
from spillway.integrations import alone, classified, grouped, ranked, referred, refusals
from spillway.integrations.durable import DurableRun
from spillway.integrations.image_sizes import refuse_images
from spillway.integrations.loading import LOGGER, Origin, untouched
from spillway.integrations.server_sampling import ServerSampler
from spillway.integrations.sizes import Sizes, join_sizes, largest, saving_of
from spillway.integrations.trl_ways import TrlLog, choose_objective
from spillway.machine import device, process_memory
from spillway.model.batches.batch import WorkShape
from spillway.model.checkpoint.freeze import frozen_names
from spillway.model.head.objective import Choice
from spillway.model.head.preference import objective_of
from spillway.model.source.source import is_classifier
from spillway.output import left, state
from spillway.output.directory_lock import DirectoryLock
from spillway.run.alike import places, same
from spillway.run.beginning import lock_directory
from spillway.run.leaving import close_after_failure, close_all, close_in_order
from spillway.run.protocol import Keeping, Saving, StartPoint
from spillway.run.run import Run, open_unrecorded_run
from spillway.run.session import EngineSession
from spillway.run.start_points import STATE, read_counts
from spillway.run.world import World, ended_together

NOTHING: Mapping[str, Any] = MappingProxyType({})
ALONE_AFTER = 60.0  # seconds in which the others come to the end that a failure makes for all


class StreamedSession:
    """The base of the other parts of `StreamedTraining`."""

    _world: World  # the processes that train together
    _origin: Origin  # how the model was loaded
    # of a trainer of preferences or classes
    _pairs: referred.Referred | alone.Unreferred | ranked.Ranked | grouped.Grouped | classified.Classified | None
    _told: TrlLog | None  # of a trainer of TRL's
    _streamed: EngineSession | None
    _session_run: Run | None  # the run of the open session
    _run: DurableRun | None  # while steps are durable
    _from: Path | None  # a checkpoint to open the session with
    _with_state: bool  # optimizer state and all
    _sizes: Sizes | None
    _saved: int  # the step of the model in output_dir
    _left: bool  # a save failed, and the state stays on the storage paths
    _in_step: bool  # a step has gradients and no update
    _has_trained: bool  # True after the first step of a training
    _lock: DirectoryLock | None  # the lock of output_dir, from the first `train` on

    # what the Trainer behind has
    args: Any
    model: PreTrainedModel
    optimizer: Any
    processing_class: Any
    data_collator: Any
    control: Any

    @property
    def session(self) -> EngineSession:
        """The engine's session; planned and opened when it is first needed."""
        if self._streamed is None:
            self._streamed = self._open()
        return self._streamed

    def close(self) -> None:
        """Releases the memory, the storage paths and `output_dir`. Unsaved state is lost."""
        close_in_order(self._close_session, self._unlock)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _lock_directory(self, resume: Any) -> None:
        """Locks `output_dir` until `close`. Other trainers of this process share the lock."""
        if self._lock is None:
            self._lock = DirectoryLock(Path(self.args.output_dir), is_shared=True)
            weakref.finalize(self, self._lock.release)
        config = self._origin.config.replaced(resume_from_checkpoint=resume or None, output_dir=self.args.output_dir)
        lock_directory(self._lock, config, self._world, LOGGER.warning)

    def _close_session(self) -> None:
        self._in_step = False
        if self._streamed is None:
            return
        if self._run is not None and self._all_is_saved():
            self._run.run.give_up_volumes(self._streamed)
        self._streamed.close()
        self._streamed = self._session_run = self._run = None

    def logits(self, ids: torch.Tensor, last: int = 0) -> torch.Tensor:
        """The current model's logits, [rows, positions, vocabulary], for the `last` positions of every row; 0: all.
        All processes make the same call. InputError in the middle of a step."""
        self._require_whole_step("the model")
        if is_classifier(self.model.config):
            raise InputError(
                "model: scores of rows are computed in steps and evaluations alone; trainer.save_model(DIR) writes "
                "what AutoModelForSequenceClassification.from_pretrained(DIR) loads"
            )
        with self._end_together():
            self._gather("the model", None)
            return self.session.logits(ids, last)

    @contextmanager
    def whole_model(self) -> Iterator[PreTrainedModel | None]:
        """The library's own model with the current weights, of a trainer that generates in each step; else None."""
        if not isinstance(self._pairs, grouped.Grouped):
            yield None
            return
        self._require_whole_step("the model")
        try:
            with translated(), self.session.hold_whole_model(self._pairs.samples_on_host) as model:
                yield model
        finally:
            process_memory.trim()

    def find_sampler(self) -> ServerSampler | None:
        """The server that generates; None: this process does."""
        return self._pairs.sampler if isinstance(self._pairs, grouped.Grouped) else None

    def write_for_server(self, place: Path) -> None:
        """Writes the weights, or the adapters alone, and the files beside them, for a server."""
        raise NotImplementedError

    def computes_on(self) -> str:
        """The type of the device that layers compute on."""
        return torch.device(self._origin.config.device.replace("simulated", "cpu")).type

    def _require_whole_step(self, what: str) -> None:
        """InputError while a step's gradients wait for their update, and after the trained state was lost."""
        if self._in_step:
            raise InputError(
                f"{what} cannot be asked for in the middle of a step, whose update has not been made: do it in "
                "on_step_end, not in on_substep_end or on_pre_optimizer_step"
            )
        if self._streamed is None and self._has_trained:
            raise InputError(
                "trainer: it was closed, and what it had trained is gone from memory; load what was saved, before "
                "close()"
            )

    def _gather(self, call: str, value: Any) -> list[Any]:
        """The values of all processes, by rank. InputError if another process makes another call."""
        answers = self._world.gather((call, value))
        if other := next((name for name, _ in answers if name != call), None):
            raise InputError(
                f"Trainer: this process asked for {call}, and another one for {other}; all processes of a run make "
                "the same calls in the same order, callbacks too"
            )
        return [each for _, each in answers]

    def _end_together(self) -> AbstractContextManager[None]:
        """Around what all processes do together."""
        return ended_together(self._world, self._let_go)

    def _let_go(self) -> None:
        """All processes end by the failure of one. Where another waits in a collective of transformers' own, which
        this one will not come to, it does not hear of that before this one is gone."""
        words = traceback.format_exc()

        def end() -> None:
            if not self._world.ended:
                tell_person(words)
                os._exit(1)

        alone = threading.Timer(ALONE_AFTER, end)
        alone.daemon = True
        alone.start()
        session, self._streamed, self._session_run, self._run = self._streamed, None, None, None
        close_all(*([] if session is None else [session.close]), self._unlock)

    @property
    def _durable(self) -> bool:
        return bool(self._origin.config.durability != "none")

    @property
    def _adapted(self) -> bool:
        """True if the run trains adapters alone; files hold only the adapters."""
        return bool(self._origin.config.method == "lora")

    def _measure_sizes(self) -> Sizes:
        if self._sizes is None:
            if isinstance(self._pairs, grouped.Grouped):
                config = apply_arguments(self._origin.config, self.args)
                own = self._pairs.measure(self, self._origin, config)
            else:
                own = largest(self, self._origin)
            self._sizes = join_sizes(self._world, own)
        return self._sizes

    def _open(self) -> EngineSession:
        untouched(self.model)
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):  # the caller may generate, without gradients
            sizes = self._measure_sizes()
            begun = self._from if self._with_state else None
            config = self._config(sizes.shape, sizes.packing, before=parts_of(begun, self._world.ranks.world))
            if self._durable:  # outside of train() nothing is
                refusals.check_free(config)
                config = config.replaced(durability="none")
            start_point = StartPoint()
            if begun is not None:
                config = restore_products(config, begun).replaced(resume_from_checkpoint=str(begun))
                start_point = StartPoint(checkpoint=begun)
            elif self._from is not None and self._adapted:
                start_point = StartPoint(adapters=self._from)
            elif self._from is not None:
                config = config.replaced(model=str(self._from), init="pretrained")
            self._session_run = run = open_unrecorded_run(config, self._world, start_point)
            session = self._plan_session(config, run.keep(0, self._saving(config)))
            with close_after_failure(self._world, session.close):
                run.restore(session)
        weakref.finalize(self, session.close)
        return session

    def _plan_session(self, config: Config, keeping: Keeping) -> EngineSession:
        """Planned, not started."""
        shape = self._measure_sizes().shape
        naming = self._pairs.name_generation() if isinstance(self._pairs, grouped.Grouped) else nullcontext()
        with naming:
            session = EngineSession(
                config,
                shape,
                keeping=keeping,
                model_config=self._model_config(),
                frozen=frozen_names(self.model),
                objective=self._choose_objective(config),
                world=self._world,
            )
        refusals.same_parameters(self.model, session.description)
        if self._adapted:
            refusals.same_learning(self.model, session.description)
        return session

    def _choose_objective(self, config: Config) -> Choice | None:
        """The objective, where it is another one than that of the configuration alone."""
        if isinstance(self._pairs, classified.Classified):
            return self._pairs.choose
        if isinstance(self._pairs, grouped.Grouped):
            return self._pairs.watch(objective_of(config))
        return choose_objective(self)

    def _model_config(self) -> Any:
        """The model's, as it was when `load` made it: a trainer or a script may name another padding token since then,
        and the embedding learns from that token all the same."""
        config = copy.deepcopy(self.model.config)
        config.get_text_config().pad_token_id = getattr(self.model.get_input_embeddings(), "padding_idx", None)
        return config

    def _saving(self, config: Config) -> Saving | None:
        return saving_of(self, config) if self._world.leads else None

    def _config(
        self, shape: WorkShape, packing: bool, asked: Config | None = None, before: Mapping[str, Any] = NOTHING
    ) -> Config:
        """`asked`: what `load` was, and what is to be gone on with; `before`: keys of the run that is, of which those
        count that nobody says."""
        args, world = self.args, self._world.ranks.world
        asked = apply_arguments(asked or self._origin.config, args)
        said = "virtual_ranks" in self._origin.given
        resolved = asked.replaced(
            virtual_ranks=asked.virtual_ranks if said else before.get("virtual_ranks") or world,
            output_dir=str(Path(args.output_dir).absolute()),
            packing=packing,
            max_length=shape.length,
            per_device_train_batch_size=shape.batch,
            gradient_accumulation_steps=shape.micro_batches,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            adam_beta1=args.adam_beta1,
            adam_beta2=args.adam_beta2,
            adam_epsilon=args.adam_epsilon,
            max_grad_norm=args.max_grad_norm or 0.0,
            seed=args.seed,
            data_seed=args.seed if args.data_seed is None else args.data_seed,
            optim=refusals.optimizer(str(getattr(args.optim, "value", args.optim))),
            **(self._pairs.keys(args) if self._pairs is not None else {}),
        )
        if world > 1:
            resolved = self._joined(resolved)
        if shape.largest_images is not None:
            refuse_images(resolved)
        return resolved

    def _joined(self, config: Config) -> Config:
        """The configuration of one of several processes, which computes in what rank 0 has chosen."""
        leading = self._world.agreed(lambda: self._origin.config)
        resolved = config.among(self._world.ranks).computing(leading.compute_dtype, leading.chosen)
        same(self._world, resolved.values())
        several.check(resolved)
        check_places(resolved)
        places(self._world, resolved)
        return resolved

    def _take_back(self) -> None:
        """It was saved after all, or training goes on."""
        if self._left and self._streamed is not None:
            left.forget(Path(self.args.output_dir), self._streamed.config.paths)
            self._streamed.take_back()
        self._left = False

    def _record_experts(self) -> None:
        """Writes the counts of the experts that steps met, for the plan of a resume."""
        if self._world.leads and self._streamed is not None:
            self._streamed.record_experts(Path(self.args.output_dir))

    def _reopen_from(self, checkpoint: Path, with_state: bool) -> None:
        self._close_session()
        self._has_trained = False
        self._from, self._with_state = checkpoint.absolute(), with_state

    def _all_is_saved(self) -> bool:
        """True if the run is at its end and its model in `output_dir`."""
        state: Any = self.state  # type: ignore[attr-defined]
        return bool(state.max_steps and state.global_step >= state.max_steps and self._saved == state.global_step)


def parts_of(checkpoint: Path | None, world: int) -> dict[str, Any]:
    """Key `virtual_ranks` of what was saved there, where so many processes can go on with as many."""
    ranks = 0 if checkpoint is None else read_counts(checkpoint / STATE).get("virtual_ranks", 0)
    return {"virtual_ranks": ranks} if ranks >= world else {}


def apply_arguments(config: Config, args: Any) -> Config:
    """`config` with NCCL where TrainingArguments names it, and on the CPUs where it asks for them, and nobody has asked
    for a GPU."""
    if args.ddp_backend == "nccl":
        config = config.replaced(ddp_backend="nccl")
    if args.use_cpu and device.is_unasked(config):
        return config.computing_on("cpu", "the CPUs, as use_cpu says")
    return config


def restore_products(config: Config, checkpoint: Path) -> Config:
    """The configuration with the compute dtype that the checkpoint's run used, unless the user sets another."""
    before = read_counts(checkpoint / STATE).get("compute_dtype", config.weight_dtype)  # as earlier releases had it
    return state.same_products({"compute_dtype": before}, config)
