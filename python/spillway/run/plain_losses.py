"""Losses as a plain loop in memory has them, of one micro-batch: what `spillway check` compares the engine with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from spillway.config import Config
from spillway.model.batches.batch import Batch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Loss = Callable[["PreTrainedModel", Batch, list[Batch]], "torch.Tensor"]  # a micro-batch's part of its step's loss

COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


def choose_loss(config: Config) -> Loss:
    if config.objective_entry.is_labelled:
        return lambda model, batch, step: classify(model, batch, step, config)
    if config.objective_entry.labels:
        return lambda model, batch, step: ranked(model, batch, config) / len(step)
    if config.objective_entry.is_sampled:
        return lambda model, batch, step: sampled(model, batch, step, config) / len(step)
    if config.objective_entry.compares:
        return lambda model, batch, step: compared(model, batch, config) / len(step)
    return next_token


def gradients(model: PreTrainedModel, step: list[Batch], loss_of: Loss) -> float:
    """The loss of a step; its gradients are left in the model."""
    total = 0.0
    for batch in step:
        loss = loss_of(model, batch, step)
        loss.backward()
        total += float(loss.detach())
    return total


def next_token(model: PreTrainedModel, batch: Batch, step: list[Batch]) -> torch.Tensor:
    """Its part of the mean over all label tokens of the step. Many multimodal classes take no number of them: of these
    the loss is that of their logits."""
    from torch.nn.functional import cross_entropy

    from spillway.model.source.model_code import call_model
    from spillway.model.source.source import is_multimodal

    labels = sum(int((batch.labels[:, 1:] != -100).sum()) for batch in step)
    if is_multimodal(model.config):
        output = call_model(model, batch.input_ids, batch.position_ids, **(batch.images or {}))
        logits = output.logits[:, :-1].flatten(0, 1).float()
        return cross_entropy(logits, batch.labels[:, 1:].flatten(), reduction="sum") / labels
    more = {"labels": batch.labels, "num_items_in_batch": labels, **mask_for_routers(model, batch)}
    return call_model(model, batch.input_ids, batch.position_ids, **more).loss  # type: ignore[no-any-return]


def compared(model: PreTrainedModel, batch: Batch, config: Config) -> torch.Tensor:
    """The mean over its examples, and what routers add."""
    from spillway.model.head.row_losses import ROW_LOSSES, Rows
    from spillway.model.source.model_code import call_model

    output = call_model(model, batch.input_ids, **mask_for_routers(model, batch))
    objective = ROW_LOSSES[config.objective](config)
    sums, tokens = row_sums(output.logits, batch), (batch.labels[:, 1:] != -100).sum(1)
    if batch.prompts is None:
        loss = objective.loss(Rows(sums, tokens, batch.reference, verdicts=batch.verdicts))
    else:
        prompts = row_sums(output.logits, only_prompts(batch))
        loss = objective.loss(Rows(sums - prompts, tokens - batch.prompts, batch.reference, prompts, batch.prompts))
    if (auxiliary := getattr(output, "aux_loss", None)) is not None:
        loss = loss + routers_weight(model) * auxiliary
    return loss


def sampled(model: PreTrainedModel, batch: Batch, step: list[Batch], config: Config) -> torch.Tensor:
    """The loss of a micro-batch of sampled completions, and what routers add."""
    from spillway.model.head.policy import PolicyLoss, Tokens
    from spillway.model.source.model_code import call_model

    assert batch.sampled is not None
    output = call_model(model, batch.input_ids, **mask_for_routers(model, batch))
    counts = [(each.labels[:, 1:] != -100).sum(1) for each in step]
    own = (batch.labels[:, 1:] != -100).sum(1)
    values = token_values(output.logits / config.divisor, batch)
    tokens = Tokens(values, own, batch.sampled, batch.reference)
    loss = PolicyLoss.from_config(config).loss(tokens, sum(int(each.sum()) for each in counts) / len(step))
    if (auxiliary := getattr(output, "aux_loss", None)) is not None:
        loss = loss + routers_weight(model) * auxiliary
    return loss


def ranked(model: PreTrainedModel, batch: Batch, config: Config) -> torch.Tensor:
    """The mean over its pairs. `model`: gives scores of every token."""
    from spillway.model.head.scores import Ranking
    from spillway.model.source.model_code import call_model

    scores = call_model(model, batch.input_ids).logits.flatten(0, 1)[batch.scored]
    return Ranking.from_config(config).loss(scores.double(), batch.targets)


def classify(model: PreTrainedModel, batch: Batch, step: list[Batch], config: Config) -> torch.Tensor:
    """Its part of the mean over all labels of the step. `model`: gives scores of every token."""
    from spillway.model.head.scores import Classification
    from spillway.model.source.model_code import call_model

    counts = [len(each.scored) for each in (batch, *step) if each.scored is not None]
    scores = call_model(model, batch.input_ids).logits.flatten(0, 1)[batch.scored]
    return Classification.read(config).loss(scores.double(), batch.targets) * counts[0] / sum(counts[1:])


def only_prompts(batch: Batch) -> Batch:
    """The batch whose prompts alone have labels."""
    labelled = (batch.labels[:, 1:] != -100).cumsum(1)
    labels = batch.labels.clone()
    labels[:, 1:][labelled > batch.prompts[:, None]] = -100  # type: ignore[index]
    return replace(batch, labels=labels)


def routers_weight(model: PreTrainedModel) -> float:
    """The weight of the routers' auxiliary loss in the model's loss."""
    config = model.config.get_text_config()
    return float(next(getattr(config, name) for name in COEFFICIENTS if hasattr(config, name)))


def log_probabilities(model: PreTrainedModel, step: list[Batch], divisor: float = 1.0) -> list[list[float]]:
    """The log probabilities of each micro-batch's rows. `divisor`: of all logits."""
    import torch

    from spillway.model.source.model_code import call_model

    with torch.no_grad():
        return [
            (row_sums if each.sampled is None else token_values)(
                call_model(model, each.input_ids).logits / divisor, each
            ).tolist()
            for each in step
        ]


def row_sums(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The log-probability of each row's label tokens together."""
    return (every_value(logits, batch) * (batch.labels[:, 1:] != -100)).sum(1)


def token_values(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The log-probability of each label token, row by row."""
    return every_value(logits, batch)[batch.labels[:, 1:] != -100]


def every_value(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """fp64 [rows, length - 1]: the log-probabilities of labels; without a meaning where there is none."""
    labels = batch.labels[:, 1:].clamp(min=0)
    return logits[:, :-1].float().log_softmax(-1).gather(-1, labels[..., None])[..., 0].double()


def mask_for_routers(model: PreTrainedModel, batch: Batch) -> dict[str, torch.Tensor]:
    """Padding is no matter of a causal model's labels, but the auxiliary loss of routers would count it."""
    import torch

    if not getattr(model.config, "output_router_logits", False) or batch.lengths is None:
        return {}
    return {"attention_mask": (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()}
