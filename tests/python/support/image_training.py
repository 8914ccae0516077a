"""Training on rows with images as a person would write it, over the library's own class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from both_ways import CLIP, DECAY, EPSILON, RATE, load
from spillway.model.batches.batch import Batch
from spillway.model.batches.microbatch import IGNORED
from spillway.model.meta.building import build
from spillway.model.meta.describe import decay_names

Learns = Callable[[str], bool]  # of a parameter that text never passes, by its name


def choose_learning(model: PreTrainedModel, learns: Learns) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that learn: those that text passes, and of the others those that `learns` names."""
    carried = build(AutoConfig.from_pretrained(model.config._name_or_path), torch.float32).carried_names
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in carried or learns(name))
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def train_with_images(
    directory: Path, work: list[list[Batch]], learns: Learns = lambda name: False
) -> tuple[list[float], list[float], PreTrainedModel]:
    """Losses, gradient norms and the model of a plain loop."""
    model = load(directory).train()
    learning, decaying = choose_learning(model, learns), set(decay_names(model))
    losses, norms = run_loop(model, learning, [name in decaying for name, _ in learning], work)
    return losses, norms, model


def run_loop(
    model: Any, learning: list[tuple[str, Any]], decays: list[bool], work: list[list[Batch]]
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of steps that train `learning`, by name. `decays`: of each of them."""
    groups = [
        {"params": [p for (_, p), own in zip(learning, decays, strict=True) if own == decaying], "weight_decay": decay}
        for decaying, decay in ((True, DECAY), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPSILON)
    losses, norms = [], []
    for step in work:
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        total = 0.0
        for piece in step:
            assert piece.lengths is not None
            real = (torch.arange(piece.input_ids.shape[1]) < piece.lengths[:, None]).long()
            output = model(input_ids=piece.input_ids, attention_mask=real, use_cache=False, **(piece.images or {}))
            logits = output.logits[:, :-1].flatten(0, 1).float()
            labels = piece.labels[:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens
            loss.backward()
            total += float(loss.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in learning], CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms
