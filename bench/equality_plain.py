"""The plain side of equality.py: a model in memory, torch.optim.AdamW, autograd; nothing of Spillway in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer

Steps = Sequence[tuple[Sequence[Any], float]]  # of each step: micro-batches (input_ids, labels) and learning rate


def load(model: Path, dtype: torch.dtype) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, local_files_only=True)
    loaded.config.use_cache = False
    return loaded.train()


def untied(model: Path, directory: Path) -> Path:
    """The same weights with a head of its own: a copy of the embedding."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", local_files_only=True)
    loaded.config.tie_word_embeddings = False
    loaded.lm_head.weight = torch.nn.Parameter(loaded.get_input_embeddings().weight.detach().clone())
    loaded.save_pretrained(directory)
    return directory


def train_fp32(model: Path, steps: Steps, decay: float, max_norm: float, exact: bool = False) -> list[float]:
    """Losses of each step: weights, gradients and optimizer in fp32; `exact`: clipped by a norm summed in fp64."""
    loaded = load(model, torch.float32)
    named = dict(loaded.named_parameters())
    return list(run(loaded, named, steps, decay, max_norm, exact))


def train_bf16(model: Path, steps: Steps, decay: float, max_norm: float, seed: int, share: float) -> list[float]:
    """Losses of each step: bf16 weights and gradients as autograd leaves them, fp32 masters under AdamW.

    Before the first step `share` of the weights, drawn from `seed`, move by one bf16 ulp.
    """
    loaded = load(model, torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    for parameter in loaded.parameters():
        nudge(parameter.data, share, generator)
    masters = {name: torch.nn.Parameter(p.detach().float()) for name, p in loaded.named_parameters()}
    return list(run(loaded, masters, steps, decay, max_norm))


def nudge(weight: torch.Tensor, share: float, generator: torch.Generator) -> None:
    """Moves about `share` of the elements one bf16 ulp up or down in magnitude; zeros stay."""
    chosen = (torch.rand(weight.shape, generator=generator) < share) & (weight != 0)
    direction = torch.randint(0, 2, weight.shape, generator=generator, dtype=torch.int16) * 2 - 1
    weight.view(torch.int16).add_(direction * chosen)


def clip(parameters: list[torch.nn.Parameter], norm: float, exact: bool) -> None:
    """torch.nn.utils.clip_grad_norm_, or the same by a norm whose sum is fp64: in fp32 it is off by some 1e-5."""
    if not exact:
        torch.nn.utils.clip_grad_norm_(parameters, norm)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = math.sqrt(math.fsum(float(g.double().square().sum()) for g in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, norm / (total + 1e-6)))


def run(
    model: Any, masters: dict[str, torch.nn.Parameter], steps: Steps, decay: float, norm: float, exact: bool = False
) -> Iterator[float]:
    """`masters`: the model's own parameters, or fp32 copies of them by name."""
    optimizer = torch.optim.AdamW(groups(model, masters, decay))
    parameters = dict(model.named_parameters())
    for batches, rate in steps:
        yield accumulate(model, batches)
        for name, master in masters.items():
            if master is not parameters[name]:
                master.grad = parameters[name].grad.float()
        clip(list(masters.values()), norm, exact)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
        with torch.no_grad():
            for name, master in masters.items():
                if master is not parameters[name]:
                    parameters[name].copy_(master)


def accumulate(model: Any, batches: Sequence[Any]) -> float:
    """Backward of each micro-batch; the loss is the mean over the label tokens of them all."""
    tokens = sum(int((batch.labels[:, 1:] != -100).sum()) for batch in batches)
    losses = []
    for batch in batches:
        loss = model(input_ids=batch.input_ids, labels=batch.labels, num_items_in_batch=tokens).loss
        loss.backward()
        losses.append(float(loss.detach()))
    return math.fsum(losses)


def groups(model: Any, masters: dict[str, torch.nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Decayed and not, as transformers' Trainer tells them apart."""
    names: Callable[..., list[str]] = Trainer.get_decay_parameter_names
    decayed = set(names(None, model))
    return [
        {"params": [p for name, p in masters.items() if name in decayed], "weight_decay": decay},
        {"params": [p for name, p in masters.items() if name not in decayed], "weight_decay": 0.0},
    ]
