"""transformers' Trainer over a streamed model: its loop, its data, its logs and checkpoints; the engine's steps.

`get_batch_samples` already gives all micro-batches of a step, so the first `training_step` computes the whole step
layer by layer, and each call returns its share of the loss. Of several processes, which torchrun or accelerate launch
have started, each has the micro-batches that accelerate gives to it, and a step is over those of all of them. The
optimizer is a proxy: its `step()` takes the learning rate that the schedule has reached by then and lets the engine
update. Nothing of the model is ever wrapped or moved.
Where steps are durable (`load(..., durability="step")`), one is committed where the Trainer has logged it.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from spillway.integrations import (
    alone,
    classified,
    generation_memory,
    grouped,
    peft_configs,
    ranked,
    referred,
    refusals,
)
from spillway.integrations.durable_steps import DurableSteps
from spillway.integrations.loaded_model import stream_by
from spillway.integrations.streamed_saves import StreamedSaves
from spillway.integrations.streamed_steps import StreamedSteps
from spillway.integrations.trl_ways import TrlLog, derives_from, is_trl, say_routers
from spillway.run.world import OneProcess, World, joined


class StreamedTraining(StreamedSteps, DurableSteps, StreamedSaves):
    """The mixin that makes a Trainer train a streamed model. List it before the Trainer among the bases:

    class Streamed(StreamedTraining, trl.SFTTrainer): ...
    """

    def __init__(self, *positional: Any, **named: Any) -> None:
        refusals.trainer_first(type(self))
        refusals.model_first(positional, named)
        peft_configs.take_adapters(positional, named)
        self._world: World = OneProcess()
        self._pairs = None
        if form := referred.find_form(type(self)):
            self._pairs = referred.Referred(form)
            positional, named, self._pairs.precomputes = referred.prepare_arguments(form, positional, named)
        elif objective := alone.find_objective(type(self)):
            self._pairs = alone.Unreferred(objective)
            alone.check(objective, named, positional)
        elif derives_from(type(self), generation_memory.NAME):
            self._pairs = grouped.Grouped()
            grouped.check(named, positional)
        elif derives_from(type(self), ranked.NAME):
            self._pairs = ranked.Ranked()
            ranked.check(positional[0] if positional else named.get("model"))
        elif classified.is_for(type(self), positional[0] if positional else named.get("model")):
            self._pairs = classified.Classified()
        self._streamed = self._session_run = self._run = self._from = self._sizes = self._items = None
        self._saving_in = self._lock = None
        self._with_state = self._over = self._left = self._in_step = self._has_trained = False
        self._samples, self._shares = [], []
        self._norm = torch.zeros(())
        self._saved = -1
        with (
            grouped.load_no_reference(self._pairs, positional, named),
            referred.run_no_reference(self._pairs, positional),
        ):
            super().__init__(*positional, **named)
        self._told = TrlLog() if is_trl(self) else None
        if self._told is not None:
            say_routers(self)
        if self._pairs is not None:
            self._pairs.fit(self)
        refusals.check_processes(self.args)
        self._world = joined(stays=True)
        with self._end_together():
            self._origin = refusals.check(self)
            refusals.check_images(self._origin, self._pairs is not None)
            stream_by(self.model, self)
            if self._durable:
                refusals.check_durable(self.args)


class Trainer(StreamedTraining, transformers.Trainer):
    """transformers.Trainer, over a model that `spillway.hf.load` made."""
