"""Steps and evaluations of a Trainer over the engine: what `training_step` and `prediction_step` give back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spillway.data.batches import batch_of
from spillway.errors import InputError
from spillway.integrations import refusals
from spillway.integrations.classified import Classified
from spillway.integrations.grouped import Grouped
from spillway.integrations.image_sizes import require_room
from spillway.integrations.loading import LOGGER
from spillway.integrations.prompt_order import PromptOrder
from spillway.integrations.streamed_session import StreamedSession
from spillway.integrations.trl_ways import (
    averages_routers,
    hands_a_count,
)
from spillway.model.batches.batch import Batch
from spillway.model.meta.describe import decay_names
from spillway.output.summary import describe_skipped_run
from spillway.run.world import interleaved


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

    is_gradient_checkpointing = False  # as TRL asks before it generates

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *positional: Any, **named: Any) -> Any:
        return self.module(*positional, **named)

    def generate(self, *positional: Any, **named: Any) -> Any:
        return self.module.generate(*positional, **named)  # type: ignore[operator]


class StreamedSteps(StreamedSession):
    """Computes; nothing of the model is wrapped or moved."""

    _samples: list[Any]  # micro-batches of the step to come
    _items: int | None  # that transformers divides its loss by; releases count differently
    _shares: list[float]  # of its loss, not handed over yet
    _norm: torch.Tensor
    _update_count, _skip_count = 0, 0  # counts of one call of train()

    def train(self, *positional: Any, **named: Any) -> Any:
        self._update_count = self._skip_count = 0
        output = super().train(*positional, **named)  # type: ignore[misc]
        if words := describe_skipped_run(self._update_count, self._skip_count):
            LOGGER.warning(words)
        return output

    def get_batch_samples(self, *positional: Any, **named: Any) -> Any:
        samples = super().get_batch_samples(*positional, **named)  # type: ignore[misc]
        self._samples, self._shares = list(samples[0]), []
        self._items = None if samples[1] is None else int(samples[1])
        return samples

    def _get_train_sampler(self, *positional: Any, **named: Any) -> Any:
        sampler = super()._get_train_sampler(*positional, **named)  # type: ignore[misc]
        return PromptOrder(sampler, self) if isinstance(self._pairs, Grouped) else sampler

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        if self._samples:
            began = time.perf_counter()
            self._take_back()
            own = [self._batch(self._take(sample)) for sample in self._samples]
            self._in_step = True
            every = self._gather("a step", (own, self._items))
            batches, items = interleaved([each for each, _ in every]), [count for _, count in every]
            rate = self.optimizer.param_groups[0]["lr"]
            over = None if self._pairs or None in items else sum(filter(None, items))
            routers = 1 / len(batches) if over and averages_routers(type(self)) else None
            loss_sum, tokens = self.session.gradients(batches, rate, over, routers)
            self._shares = [loss_sum / tokens / len(own) if tokens else float("nan")] * len(own)
            self._samples = []
            if isinstance(self._pairs, Grouped):
                self._pairs.keep(self, own)
            if self._told is not None:
                self._total_train_tokens: int = self._total_train_tokens + sum(batch.tokens for batch in batches)
            self._tell("train")
            if isinstance(self._pairs, Grouped):
                self._pairs.tell_seconds(self, time.perf_counter() - began)
        return torch.tensor(self._shares.pop(), device=self.args.device)

    def _take(self, sample: Any) -> Any:
        """A collator's micro-batch; of a trainer that generates the completions of one."""
        return self._pairs.take(self, sample) if isinstance(self._pairs, Grouped) else sample

    def _update(self, learning_rate: float) -> None:
        session = self.session
        result = session.update(session.rates(learning_rate))
        self._in_step, self._has_trained = False, True
        self._norm.fill_(result.grad_norm)
        self._update_count, self._skip_count = self._update_count + 1, self._skip_count + result.skipped
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
        self._require_whole_step("an evaluation")
        if isinstance(self._pairs, Grouped):
            inputs = self._pairs.sample(self, inputs)
        batches, logits, own = self._gather("an evaluation", self._batch(inputs)), None, self._world.ranks.rank
        if isinstance(self._pairs, Classified):
            loss_sum, tokens = self.session.evaluate_each(batches)[own]
            logits = None if prediction_loss_only else self._pairs.take_scores(own, batches[own])
        elif self._pairs is not None and not prediction_loss_only:
            raise InputError("compute_metrics: of pairs there are no logits to look at; the log has TRL's own figures")
        elif prediction_loss_only:
            loss_sum, tokens = self.session.evaluate_each(batches)[own]
        elif self._measure_sizes().shape.logits:
            loss_sum, tokens, logits = self.session.evaluate_whole(batches, own)
        else:
            raise InputError(refusals.NO_LOGITS)
        self._tell("eval")
        if self._pairs is None:
            tokens = self._counted(inputs) or tokens
        loss = loss_sum / tokens if tokens else float("nan")
        return torch.tensor(loss, device=self.args.device), logits, None if logits is None else inputs["labels"]

    def predict(self, *positional: Any, **named: Any) -> Any:
        with self._end_together():
            return super().predict(*positional, **named)  # type: ignore[misc]

    def _counted(self, inputs: Any) -> int | None:
        """The label count by which transformers divides the loss of an evaluation batch, if it counts them itself."""
        if not hands_a_count(type(self)):
            return None
        count = self._get_num_items_in_batch([inputs], self.args.device)  # type: ignore[attr-defined]
        return None if count is None else int(count)

    def _batch(self, inputs: Any) -> Batch:
        sizes = self._measure_sizes()
        if self._pairs:
            batch = self._pairs.batch(inputs)
        else:
            batch = batch_of(inputs, sizes.packing, self._origin.images.arguments)
        shape, (rows, length) = sizes.shape, batch.input_ids.shape
        room = max(shape.batch * shape.length, shape.eval_batch * shape.eval_length)
        if rows * length > room:
            raise InputError(
                f"max_length: a batch of {rows} rows of {length} tokens was not planned for (the largest was "
                f"{shape.batch} of {shape.length}); say it beforehand: load(..., max_length={length})"
            )
        require_room(batch.images, shape)
        return batch

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

    def _tell(self, mode: str) -> None:
        if self._told is not None:
            self._told.add(mode, self.session.list_figures())

    def log(self, logs: dict[str, float], *positional: Any, **named: Any) -> None:
        if self._told is not None:
            self._told.give(self, "train" if self.model.training else "eval", logs)
        super().log(logs, *positional, **named)  # type: ignore[misc]
