"""transformers' Trainer over a streamed model: its loop, its data, its logs and checkpoints; the engine's steps.

`get_batch_samples` already gives all micro-batches of a step, so the first `training_step` computes the whole step
layer by layer, and each call returns its share of the loss. The optimizer is a proxy: its `step()` takes the learning
rate that the schedule has reached by then and lets the engine update. Nothing of the model is ever wrapped or moved.
Where steps are durable (`load(..., durability="step")`), one is committed where the Trainer has logged it.
"""

from __future__ import annotations

import copy
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from spillway.base.files import replace_text, write_json
from spillway.config import Config, checks
from spillway.config.values import StoragePath
from spillway.data.batches import batch_of, pairs_of
from spillway.errors import InputError
from spillway.integrations import dpo, refusals
from spillway.integrations.durable import DurableRun, keep_newest, payload, saving
from spillway.integrations.loading import Origin, untouched
from spillway.integrations.sizes import Sizes, largest, row_count, saves, saving_of
from spillway.integrations.trl_ways import (
    TrlLog,
    averages_routers,
    hands_a_count,
    is_trl,
    logged_objective,
    say_routers,
)
from spillway.model import hub
from spillway.model.batch import Batch, WorkShape
from spillway.model.describe import decay_names
from spillway.model.freeze import frozen_names
from spillway.model.source import DTYPES, copy_processors, set_dtype
from spillway.output import checkpoints, directory, identity, left, saved, state, unsaved, volumes
from spillway.output.position import Due
from spillway.run.openings import STATE, read_counts
from spillway.run.protocol import Keeping, Opening
from spillway.run.session import EngineSession

LOGGER = transformers.logging.get_logger("spillway")

SCHEDULER = "scheduler.pt"
ARGUMENTS = "training_args.bin"


class StepProxy(torch.optim.Optimizer):
    """Parameters and groups as a schedule and a log want to see them; no state, and an update that the engine makes."""

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any], update: Callable[[float], None]) -> None:
        super().__init__(groups, defaults)
        self._update = update

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rates = {group["lr"] for group in self.param_groups}
        if len(rates) != 1:
            raise InputError(
                f"learning_rate: the groups of parameters have several, {sorted(rates)}; one is taken here"
            )
        self._update(float(rates.pop()))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There are no gradients outside the engine."""


class Unwrapped(nn.Module):
    """Stands where a wrapped model would, so that accelerate wraps nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *_: Any, **__: Any) -> Any:
        raise InputError("model: its weights live in the engine; the Trainer streams them, the model is not called")


class Unfinished(transformers.TrainerCallback):
    """Does what the process before left undone, when all else is in place."""

    def __init__(self, trainer: StreamedTraining) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._trainer._finish_step()


class StreamedTraining:
    """What turns a Trainer into one over a streamed model; stands before it among the bases:

    class Streamed(StreamedTraining, trl.SFTTrainer): ...
    """

    def __init__(self, *positional: Any, **named: Any) -> None:
        refusals.trainer_first(type(self))
        refusals.model_first(positional, named)
        self._pairs = dpo.Pairs() if dpo.is_dpo(type(self)) else None
        if self._pairs is not None:
            positional, named = dpo.prepared(positional, named)
        self._streamed: EngineSession | None = None
        self._from: Path | None = None  # a checkpoint to open the session with
        self._with_state = False  # optimizer state and all
        self._samples: list[Any] = []  # micro-batches of the step to come
        self._items: int | None = None  # that transformers divides its loss by; releases count differently
        self._shares: list[float] = []  # of its loss, not handed over yet
        self._sizes: Sizes | None = None
        self._norm = torch.zeros(())
        self._run: DurableRun | None = None  # while steps are durable
        self._over = False  # its last step was done before this process
        self._saving_in: str | None = None  # instead of output_dir
        self._saved = -1  # the step of the model in output_dir
        self._left = False  # a save failed, and the state stays on the storage paths
        super().__init__(*positional, **named)
        self._told = TrlLog() if is_trl(self) else None
        if self._told is not None:
            say_routers(self)
        if self._pairs is not None:
            self.ref_model = None
        self._origin: Origin = refusals.check(self)
        if self._durable:
            refusals.check_durable(self.args)
        checks.check_processes()

    @property
    def session(self) -> EngineSession:
        """The engine's session; planned and opened when it is first needed."""
        if self._streamed is None:
            self._streamed = self._open()
        return self._streamed

    def close(self) -> None:
        """Gives the memory and the storage paths back. What was not saved is gone."""
        if self._streamed is None:
            return
        if self._run is not None and self._all_is_saved():
            self._streamed.give_up_volumes()
        self._streamed.close()
        self._streamed = self._run = None

    # ---- one step

    def get_batch_samples(self, *positional: Any, **named: Any) -> Any:
        samples = super().get_batch_samples(*positional, **named)  # type: ignore[misc]
        self._samples, self._shares = list(samples[0]), []
        self._items = None if samples[1] is None else int(samples[1])
        return samples

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        if self._samples:
            self._take_back()
            batches = [self._batch(sample) for sample in self._samples]
            rate = self.optimizer.param_groups[0]["lr"]
            count = len(batches)
            over = None if self._pairs else self._items
            routers = 1 / count if over and averages_routers(type(self)) else None
            loss_sum, tokens = self.session.gradients(batches, rate, over, routers)
            self._shares = [loss_sum / tokens / count if tokens else float("nan")] * count
            self._samples = []
            if self._told is not None:
                self._total_train_tokens: int = self._total_train_tokens + sum(batch.tokens for batch in batches)
            self._tell("train")
        return torch.tensor(self._shares.pop(), device=self.args.device)

    def _update(self, learning_rate: float) -> None:
        session = self.session
        result = session.update(session.rates(learning_rate))
        self._norm.fill_(result.grad_norm)
        if result.skipped:
            LOGGER.warning("the gradient of this step is not finite, nothing was updated")
        for notice in session.notices():
            LOGGER.warning(notice)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """The tensor that holds the norm from `optimizer.step()` on, which clips."""
        self._norm = torch.zeros((), dtype=torch.float64)
        return self._norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor:
        return self._clip_grad_norm(model) if grad_norm is None else grad_norm

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        batch, logits = self._batch(inputs), None
        if self._pairs is not None and not prediction_loss_only:
            raise InputError("compute_metrics: of pairs there are no logits to look at; the log has TRL's own figures")
        if prediction_loss_only:
            loss_sum, tokens = self.session.evaluate([batch])
        elif self._known_sizes().shape.logits:
            loss_sum, tokens, logits = self.session.evaluate_whole(batch)
        else:
            raise InputError(refusals.NO_LOGITS)
        self._tell("eval")
        if self._pairs is None:
            tokens = self._counted(inputs) or tokens
        loss = loss_sum / tokens if tokens else float("nan")
        return torch.tensor(loss, device=self.args.device), logits, None if logits is None else inputs["labels"]

    def _counted(self, inputs: Any) -> int | None:
        """What transformers divides the loss of an evaluation's batch by, where it counts for itself."""
        if not hands_a_count(type(self)):
            return None
        count = self._get_num_items_in_batch([inputs], self.args.device)  # type: ignore[attr-defined]
        return None if count is None else int(count)

    def _batch(self, inputs: Any) -> Batch:
        batch = pairs_of(inputs, referred=False) if self._pairs else batch_of(inputs, self._known_sizes().packing)
        shape, (rows, length) = self._known_sizes().shape, batch.input_ids.shape
        room = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
        if rows * length > room:
            raise InputError(
                f"max_length: a batch of {rows} rows of {length} tokens was not planned for (the largest was "
                f"{shape.batch} of {shape.length}); say it beforehand: load(..., max_length={length})"
            )
        return batch

    # ---- what the library would wrap, move or make

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """It stays on meta."""

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return model if isinstance(model, Unwrapped) else Unwrapped(model)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            decaying = set(self.get_decay_parameter_names(self.model))  # type: ignore[attr-defined]
            if decaying != set(decay_names(self.model)):
                raise InputError(
                    "weight_decay: which parameters decay is transformers' own rule; this Trainer has another"
                )
            learning = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
            parameters = [(name in decaying, parameter) for name, parameter in learning]
            groups = [
                {"params": [p for decays, p in parameters if decays], "weight_decay": self.args.weight_decay},
                {"params": [p for decays, p in parameters if not decays], "weight_decay": 0.0},
            ]
            self.optimizer = StepProxy(groups, {"lr": self.args.learning_rate}, self._update)
        return self.optimizer

    # ---- what TRL logs

    def _tell(self, mode: str) -> None:
        if self._told is not None:
            self._told.add(mode, self.session.told())

    def log(self, logs: dict[str, float], *positional: Any, **named: Any) -> None:
        if self._told is not None:
            self._told.give(self, "train" if self.model.training else "eval")
        super().log(logs, *positional, **named)  # type: ignore[misc]

    # ---- pairs

    def evaluate(self, *positional: Any, **named: Any) -> Any:
        if self._pairs is not None and self._run is None:
            self._pairs.refer(self, None, began=False, durable=False)
        return super().evaluate(*positional, **named)  # type: ignore[misc]

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Called by TRL: by its constructor, when nothing can be computed yet, and for the rows of one evaluation."""
        return dpo.of_rows(self, dataset) if hasattr(self, "_origin") else dataset

    # ---- durable steps

    @property
    def _durable(self) -> bool:
        return bool(self._origin.config.durability != "none")

    def train(self, resume_from_checkpoint: Any = None, *positional: Any, **named: Any) -> Any:
        """With durable steps `resume_from_checkpoint`: True, the newest durable step; "auto", that or a fresh start; a
        checkpoint of this run, to go back to it."""
        if not self._durable:
            if self._pairs is not None:
                from_where = checkpoint_of(resume_from_checkpoint, self.args.output_dir)
                self._pairs.refer(self, from_where, began=from_where is not None, durable=False)
            return super().train(resume_from_checkpoint, *positional, **named)  # type: ignore[misc]
        run = self._begun(resume_from_checkpoint)
        if self._pairs is not None:
            self._pairs.refer(self, run.began_in, began=run.committed > 0, durable=True)
        unfinished = Unfinished(self)
        self.add_callback(unfinished)  # type: ignore[attr-defined]
        try:
            return super().train(run.resumed(), *positional, **named)  # type: ignore[misc]
        finally:
            self.remove_callback(unfinished)  # type: ignore[attr-defined]
            if self._run is not None:
                self._run.sweep()

    def _begun(self, resume: Any) -> DurableRun:
        self.close()
        untouched(self.model)
        with torch.random.fork_rng(devices=[]):
            sizes = self._known_sizes()
            config = self._config(sizes.shape, sizes.packing)
            rows = row_count(self.train_dataset)  # type: ignore[attr-defined]
            run = DurableRun(config, resume, saves(self), rows, saving_of(self, config))
            self._streamed = run.open(self._made)
        self._run, self._over = run, False
        weakref.finalize(self, self._streamed.close)
        return run

    def _maybe_log_save_evaluate(self, *positional: Any, **named: Any) -> None:
        """After a step, and once more after the last of an epoch. The step is logged, committed, and then the rest."""
        run, control = self._run, self.control
        if run is None:
            return super()._maybe_log_save_evaluate(*positional, **named)  # type: ignore[misc, no-any-return]
        run.ending = run.committed == self.state.global_step  # type: ignore[attr-defined]
        due = Due(control.should_evaluate, control.should_save)
        if not run.ending:
            control.should_evaluate = control.should_save = False
            super()._maybe_log_save_evaluate(*positional, **named)  # type: ignore[misc]
            self.control.should_evaluate |= due.evaluate
            self.control.should_save |= due.save
            run.commit(self, positional[1], named.get("learning_rate"), due)
        if due or run.ending:
            super()._maybe_log_save_evaluate(*positional, **named)  # type: ignore[misc]
            run.done(self)
        return None

    def _finish_step(self) -> None:
        """What a process that died left to be done after the step that this one goes on from."""
        assert self._run is not None
        position = self._run.position
        if position is None:
            return
        self._tr_loss: torch.Tensor = self._tr_loss + position.loss
        self._total_loss_scalar: float = self._total_loss_scalar - position.loss  # of steps of this process only
        self._globalstep_last_logged = position.last_logged
        self.current_flos = position.flos
        if self._told is not None:
            self._told.go_on(self, position.told)
        self._load_rng_state(str(self._run.scratch))  # type: ignore[attr-defined]
        state: Any = self.state  # type: ignore[attr-defined]
        self.control.should_training_stop = self._run.is_over(state.max_steps)
        rest = (self._tr_loss, position.gradient_norm, self.model, None, state.epoch, None, time.time())
        if position.due:
            self.control.should_evaluate, self.control.should_save = position.due["evaluate"], position.due["save"]
            super()._maybe_log_save_evaluate(*rest, learning_rate=position.learning_rate)  # type: ignore[misc]
            self._run.done(self)
        elif self._run.saved_last:
            self._run.keep_newest(self.args.save_total_limit, state.best_model_checkpoint)
        ended = self.control.should_training_stop or float(state.epoch).is_integer()
        if ended and not position.epoch_ended:
            self.control = self.callback_handler.on_epoch_end(self.args, state, self.control)  # type: ignore[attr-defined]
            self._maybe_log_save_evaluate(*rest, learning_rate=position.learning_rate)
        self._over = self.control.should_training_stop
        self._save_rng_state(str(self._run.scratch))  # type: ignore[attr-defined]

    def _run_epoch(self, *positional: Any, **named: Any) -> Any:
        """None of a run that had stopped already, and has now done what was left to be done."""
        if self._over:
            return None
        return super()._run_epoch(*positional, **named)  # type: ignore[misc]

    def _get_output_dir(self, *positional: Any, **named: Any) -> str:
        return self._saving_in or super()._get_output_dir(*positional, **named)  # type: ignore[misc, no-any-return]

    def _save_checkpoint(self, *positional: Any, **named: Any) -> None:
        if self.args.push_to_hub:  # from where it is written
            return super()._save_checkpoint(*positional, **named)  # type: ignore[misc, no-any-return]
        state: Any = self.state  # type: ignore[attr-defined]
        run, release = self._run, self.session.release
        trial = named["trial"] if "trial" in named else (*positional, None, None)[1]
        output_dir = Path(super()._get_output_dir(trial=trial))  # type: ignore[misc]
        with run.saving(self) if run else saving(output_dir, release, lambda made: None) as place:
            self._saving_in = str(place)
            try:
                super()._save_checkpoint(*positional, **named)  # type: ignore[misc]
            finally:
                self._saving_in = None
            best = Path(state.best_model_checkpoint or "")
            if best.parent == place:
                state.best_model_checkpoint = os.path.join(output_dir, best.name)
                state.save_to_json(str(best / "trainer_state.json"))
        limit, chosen = self.args.save_total_limit, state.best_model_checkpoint
        if run is not None:
            run.keep_newest(limit, chosen)
        else:
            keep_newest(output_dir, limit, chosen, release)
        return None

    def _all_is_saved(self) -> bool:
        """Nobody needs what is on the storage paths: the run is at its end and its model in `output_dir`."""
        state: Any = self.state  # type: ignore[attr-defined]
        ended = state.max_steps and state.global_step >= state.max_steps and self._saved == state.global_step
        return bool(ended and not directory.manifests(Path(self.args.output_dir)))

    # ---- checkpoints

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        place = Path(output_dir or self.args.output_dir)
        with self._left_where_it_fails():
            place.mkdir(parents=True, exist_ok=True)
            self.session.save_model(place)
            if not self._adapted:
                self._save_configs(place)
            tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)  # type: ignore[attr-defined]
            if tokenizer is not None:
                tokenizer.save_pretrained(place)
            torch.save(self.args, place / ARGUMENTS)
            if self._saving_in is None:
                checkpoints.flush_files(place)
        if self._saving_in is None:
            self._take_back()
        if place == Path(self.args.output_dir):
            self._saved = self.state.global_step  # type: ignore[attr-defined]

    @contextmanager
    def _left_where_it_fails(self) -> Iterator[None]:
        """A failure to save leaves the state on the storage paths and says so."""
        try:
            yield
        except Exception as error:
            LOGGER.error(f"{unsaved.why(error)}. {self._leave()}")
            raise

    def _leave(self) -> str:
        session, output_dir = self.session, Path(self.args.output_dir)
        config, state = session.config, {}
        try:
            if self._run is None:
                name_run(session, output_dir)
            elif self._run.position is not None:
                state = payload(self._run.position)
            words = unsaved.leave(session, config, output_dir, state)
            self._left = True
            return f"The step is not saved, but {words}"
        except Exception as error:
            return f"The session still has the state: save_model() elsewhere before it closes ({unsaved.why(error)})"

    def _take_back(self) -> None:
        """It was saved after all, or training goes on."""
        if self._left and self._streamed is not None:
            left.forget(Path(self.args.output_dir), self._streamed.config.paths)
            self._streamed.take_back()
        self._left = False

    def _save_configs(self, directory: Path) -> None:
        saved = copy.deepcopy(self.model.config)
        set_dtype(saved, DTYPES[self.session.config.weight_dtype])
        saved.architectures = [type(self.model).__name__]
        saved.save_pretrained(directory)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(directory)
        copy_processors(hub.model_directory(self._origin.config), directory)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._left_where_it_fails():
            self.session.save_state(Path(output_dir))
            if self._pairs is not None:
                self._pairs.save(Path(output_dir))
            saved.seal(Path(output_dir))
        torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER))  # type: ignore[attr-defined]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._run is not None:
            return  # the session is at that step
        checkpoint = Path(resume_from_checkpoint)
        self._reopen_from(checkpoint, with_state=(checkpoint / STATE / "session.json").is_file())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The optimizer's part has come with the session, but for the rates that the schedule had reached."""
        path = Path(checkpoint or "", SCHEDULER)
        if checkpoint is None or not path.is_file():
            return
        schedule: Any = self.lr_scheduler  # type: ignore[attr-defined]
        schedule.load_state_dict(torch.load(path, weights_only=True))
        if hasattr(schedule, "get_last_lr"):
            for group, rate in zip(self.optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group["lr"] = rate

    def _load_best_model(self) -> None:
        best = Path(self.state.best_model_checkpoint)  # type: ignore[attr-defined]
        if self._run is None:
            return self._reopen_from(best, with_state=False)
        self._streamed = self._run.go_back_to(best, self._made)
        weakref.finalize(self, self._streamed.close)

    def _reopen_from(self, checkpoint: Path, with_state: bool) -> None:
        self.close()
        self._from, self._with_state = checkpoint.absolute(), with_state

    # ---- the session

    @property
    def _adapted(self) -> bool:
        """What learns are adapters, and files hold these alone."""
        return bool(self._origin.config.method == "lora")

    def _known_sizes(self) -> Sizes:
        if self._sizes is None:
            self._sizes = largest(self, self._origin)
        return self._sizes

    def _open(self) -> EngineSession:
        untouched(self.model)
        with torch.random.fork_rng(devices=[]):
            sizes = self._known_sizes()
            config = self._config(sizes.shape, sizes.packing)
            if self._durable:  # outside of train() nothing is
                refusals.check_free(config)
                config = config.replaced(durability="none")
            opening = Opening()
            if self._from is not None and self._with_state:
                config = begun_with(config, self._from)
                opening = Opening(checkpoint=self._from)
            elif self._from is not None and self._adapted:
                opening = Opening(adapters=self._from)
            elif self._from is not None:
                config = config.replaced(model=str(self._from), init="pretrained")
            run = identity.new(Path(self.args.output_dir)).run
            session = self._made(config, Keeping(run, saving=saving_of(self, config)))
            session.start(opening)
        weakref.finalize(self, session.close)
        return session

    def _made(self, config: Config, keeping: Keeping) -> EngineSession:
        """Planned, not started."""
        session = EngineSession(
            config,
            self._known_sizes().shape,
            keeping=keeping,
            model_config=copy.deepcopy(self.model.config),
            frozen=frozen_names(self.model),
            objective=logged_objective(self),
        )
        refusals.same_parameters(self.model, session.description)
        if self._adapted:
            refusals.same_learning(self.model, session.description)
        return session

    def _config(self, shape: WorkShape, packing: bool) -> Config:
        args = self.args
        return self._origin.config.replaced(
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
            **(dpo.keys(args) if self._pairs is not None else {}),
        )

    if not hasattr(object, "args"):  # for readers and checkers: the Trainer behind has these
        args: Any
        model: PreTrainedModel
        optimizer: Any
        processing_class: Any
        data_collator: Any
        paths: list[StoragePath]
        control: Any


def checkpoint_of(resume: Any, output_dir: str) -> Path | None:
    """What transformers takes `resume_from_checkpoint` for."""
    if resume is True:
        resume = transformers.trainer_utils.get_last_checkpoint(output_dir)
    return Path(resume) if resume else None


class Trainer(StreamedTraining, transformers.Trainer):
    """transformers.Trainer, over a model that `spillway.hf.load` made."""


def begun_with(config: Config, checkpoint: Path) -> Config:
    """What layers multiplied in before the checkpoint, where nobody says what they are to."""
    before = read_counts(checkpoint / STATE).get("compute_dtype", config.weight_dtype)  # as earlier releases had it
    return state.same_products({"compute_dtype": before}, config)


def name_run(session: EngineSession, output_dir: Path) -> None:
    """What `spillway export` needs to find what a run without durable steps leaves on its paths."""
    if not volumes.present(session.config.paths):
        raise InputError("nothing of this run lies on a storage path")
    known = identity.load(output_dir)
    if known is not None and known.durability != "none":
        raise InputError(f"output_dir: {output_dir} is that of another run")
    known = identity.new(output_dir)
    known.run = session.run
    (output_dir / identity.FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(output_dir / identity.DESCRIPTION, session.description)
    replace_text(output_dir / "config.yaml", session.config.text())
    known.save(output_dir)  # the last, since it flushes the directories
