"""Distillation in memory by plain PyTorch, over the rows and in the order of `spillway train`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tiny
from hf_models import tiny_model

VOCABULARY = 320


def make_teacher(path: Path, **changes: Any) -> Path:
    """A llama with the tokenizer of the tests' student, wider and deeper, with another initialisation."""
    from transformers import AutoConfig

    model = tiny.model_directory(path)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    torch.manual_seed(7)
    made = tiny_model(AutoConfig.from_pretrained(model, **{**shape, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0)  # so that its distributions are far from uniform
    made.save_pretrained(model)
    return path


@dataclass
class Plain:
    """What plain PyTorch trained."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """The loss of label tokens [tokens, vocabulary] as the documentation states it, without slices."""

    top_k: int = VOCABULARY
    reverse: bool = False
    temperature: float = 1.0
    alpha: float = 1.0

    def of(self, model: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The summed loss, and the summed divergence."""
        p = self.buckets((teacher / self.temperature).log_softmax(1), teacher)
        q = self.buckets((model / self.temperature).log_softmax(1), teacher)
        one, other = (q, p) if self.reverse else (p, q)
        divergence = (one.exp() * (one - other)).sum()
        cross_entropy = torch.nn.functional.cross_entropy(model, labels, reduction="sum")
        return self.alpha * self.temperature**2 * divergence + (1 - self.alpha) * cross_entropy, divergence

    def buckets(self, logarithms: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """The teacher's `top_k` entries of each token, and one bucket for all others, as logarithms."""
        if self.top_k == teacher.shape[1]:
            return logarithms
        order = teacher.argsort(1, descending=True)
        ordered = logarithms.gather(1, order)
        return torch.cat([ordered[:, : self.top_k], ordered[:, self.top_k :].logsumexp(1, keepdim=True)], 1)


def train(
    given: Path,
    work: Any,
    steps: int,
    loss: Loss,
    model: Any = None,
    learning_rate: float = 1e-3,
    epsilon: float = 1e-8,
) -> Plain:
    """`work`: of `run.train.load_work`. `model`: the student; None: that of `given`."""
    from transformers import AutoModelForCausalLM

    teacher = AutoModelForCausalLM.from_pretrained(given / "teacher", dtype="float32")
    model = model or AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0, eps=epsilon)
    made = Plain()
    for step in range(steps):
        batches = [work.train.batch(part) for part in work.order.step(step)]
        tokens = sum(int((batch.labels[:, 1:] != -100).sum()) for batch in batches)
        total, divergences = 0.0, []
        for batch in batches:
            labelled = batch.labels[:, 1:] != -100
            labels = batch.labels[:, 1:][labelled]
            with torch.no_grad():
                expected = teacher(batch.input_ids, position_ids=batch.position_ids).logits[:, :-1][labelled]
            found = model(batch.input_ids, position_ids=batch.position_ids).logits[:, :-1][labelled]
            part, divergence = loss.of(found.double(), expected.double(), labels)
            (part / tokens).backward()
            total += float(part.detach()) / tokens
            divergences.append(float(divergence.detach()) / len(labels))
        made.losses.append(total)
        made.divergences.append(math.fsum(divergences) / len(divergences))
        made.norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 1.0)))
        for group in optimizer.param_groups:
            group["lr"] = work.rate(step)
        optimizer.step()
        optimizer.zero_grad()
    made.weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    return made


def evaluate(given: Path, work: Any, loss: Loss, model: Any) -> float:
    """The mean over the label tokens of held-out rows."""
    from transformers import AutoModelForCausalLM

    teacher = AutoModelForCausalLM.from_pretrained(given / "teacher", dtype="float32")
    total, tokens = 0.0, 0
    for row in range(len(work.held_out)):
        batch = work.held_out.batch(np.array([row]))
        labelled = batch.labels[:, 1:] != -100
        with torch.no_grad():
            found, expected = (each(batch.input_ids).logits[:, :-1][labelled].double() for each in (model, teacher))
        total += float(loss.of(found, expected, batch.labels[:, 1:][labelled])[0])
        tokens += int(labelled.sum())
    return total / tokens
