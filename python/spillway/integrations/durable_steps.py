"""Durable steps of a Trainer: each is committed where the Trainer has logged it, and what a process that died has left
undone is done when training goes on.
"""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

import torch
import transformers

from spillway.base import streams
from spillway.errors import InputError
from spillway.integrations import referred
from spillway.integrations.durable import DurableRun
from spillway.integrations.loading import LOGGER, untouched
from spillway.integrations.sizes import row_count, saves
from spillway.integrations.streamed_session import StreamedSession
from spillway.output import directory
from spillway.output.position import Due
from spillway.run.beginning import load_existing_run
from spillway.run.run import open_run


class Unfinished(transformers.TrainerCallback):
    """Does what the process before left undone, when all else is in place."""

    def __init__(self, trainer: DurableSteps) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._trainer._finish_step()


class DurableSteps(StreamedSession):
    """Goes on at the step that is durable."""

    _over: bool  # the last step was done before this process

    def train(self, resume_from_checkpoint: Any = None, *positional: Any, **named: Any) -> Any:
        """Trains, or resumes at `resume_from_checkpoint`. True or `output_dir`: the newest checkpoint, or with durable
        steps the newest step. "auto": the same, or a fresh start. A path: that checkpoint."""
        self._has_trained = self._has_trained and self._streamed is not None
        with streams.guard(), self._end_together():
            self._try_save()  # type: ignore[attr-defined]
            result = self._trained(find_checkpoint(resume_from_checkpoint, self.args.output_dir), *positional, **named)
            self._record_experts()
            return result

    def _trained(self, resume_from_checkpoint: Any, *positional: Any, **named: Any) -> Any:
        self._lock_directory(resume_from_checkpoint)
        if not self._durable:
            newest = find_newest(resume_from_checkpoint, self.args.output_dir)
            if self._pairs is not None:
                from_where = Path(newest) if newest else None
                self._pairs.refer(self, from_where, began=from_where is not None, durable=False)
            return super().train(newest, *positional, **named)  # type: ignore[misc]
        run = self._open_run(resume_from_checkpoint)
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

    def _open_run(self, resume: Any) -> DurableRun:
        self._close_session()
        untouched(self.model)
        with torch.random.fork_rng(devices=[]):
            sizes = self._measure_sizes()
            asked = self._origin.config.replaced(resume_from_checkpoint=resume or None, output_dir=self.args.output_dir)
            asked, before, _ = load_existing_run(asked, self._world)
            begun = before.fixed if before is not None and asked.resume_from_checkpoint is not None else {}
            config = self._config(sizes.shape, sizes.packing, asked, begun)
            rows = row_count(self.train_dataset)  # type: ignore[attr-defined]
            opened = open_run(config, self._world, LOGGER.warning)
            run = DurableRun(opened, saves(self), rows, self._saving(config))
            self._streamed = run.open(self._plan_session)
        self._session_run, self._run, self._over = opened, run, False
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
            self._require_volumes()
        if due or run.ending:
            super()._maybe_log_save_evaluate(*positional, **named)  # type: ignore[misc]
            run.done(self)
            self._require_volumes()
        return None

    def _require_volumes(self) -> None:
        """VolumeDisplaced if a volume lost its file, after a save that needs no volume."""
        assert self._run is not None
        self._run.run.require_volumes(self.session, lambda: self._save_checkpoint(self.model, None))  # type: ignore[attr-defined]

    def _finish_step(self) -> None:
        """Does the work that a killed process left undone after the step from which this process continues."""
        assert self._run is not None
        position = self._run.position
        if position is None:
            return
        self._tr_loss: torch.Tensor = self._tr_loss + position.loss
        self._total_loss_scalar: float = self._total_loss_scalar - position.loss  # of steps of this process only
        self._globalstep_last_logged = position.last_logged
        self.current_flos = position.flos if self._world.leads else 0
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
        self._save_own_rng_state(str(self._run.scratch))  # type: ignore[attr-defined]

    def _run_epoch(self, *positional: Any, **named: Any) -> Any:
        """None of a run that had stopped already, and has now done what was left to be done."""
        if self._over:
            return None
        return super()._run_epoch(*positional, **named)  # type: ignore[misc]

    def evaluate(self, *positional: Any, **named: Any) -> Any:
        with self._end_together():
            if self._pairs is not None and self._run is None:
                self._pairs.refer(self, None, began=False, durable=False)
            return super().evaluate(*positional, **named)  # type: ignore[misc]

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Called by TRL: by its constructor, when nothing can be computed yet, and for the rows of one evaluation."""
        return referred.refer_rows(self, dataset) if hasattr(self, "_origin") else dataset

    def _load_best_model(self) -> None:
        best = Path(self.state.best_model_checkpoint)  # type: ignore[attr-defined]
        if self._run is None:
            return self._reopen_from(best, with_state=False)
        self._streamed = self._run.go_back_to(best, self._plan_session)
        weakref.finalize(self, self._streamed.close)


def find_checkpoint(resume: Any, output_dir: str) -> Any:
    """The checkpoint's path that `resume_from_checkpoint` gives, or True, "auto" or None. A directory of checkpoints
    stands for its newest one, and `output_dir` for True. InputError for any other value."""
    if resume in (None, False, True, "auto"):
        return resume or None
    path = Path(resume)
    if not path.is_dir() and str(resume).lower() in ("true", "auto"):
        return True if str(resume).lower() == "true" else "auto"
    checkpoints = directory.checkpoints(path)
    if checkpoints:
        return True if path.resolve() == Path(output_dir).resolve() else str(checkpoints[-1][1])
    if not (path / transformers.trainer.TRAINER_STATE_NAME).is_file():
        reason = "holds no checkpoint" if path.is_dir() else "is no directory"
        raise InputError(
            f"resume_from_checkpoint: {path} {reason}; name a checkpoint-N, or the directory that holds it"
        )
    return str(path)


def find_newest(resume: Any, output_dir: str) -> str | None:
    """The path of the checkpoint to resume; None for a fresh start. InputError if True finds no checkpoint."""
    if resume not in (True, "auto"):
        return resume  # type: ignore[no-any-return]
    inside = directory.checkpoints(Path(output_dir))
    if not inside and resume is True:
        raise InputError(f"resume_from_checkpoint: {output_dir} holds no checkpoint; leave it out to begin")
    return str(inside[-1][1]) if inside else None
