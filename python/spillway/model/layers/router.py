"""The auxiliary loss of a mixture of experts, which asks its routers to use all experts alike.

Switch Transformers (https://arxiv.org/abs/2101.03961), equations 4 to 6, as transformers' `load_balancing_loss_func`
has it: over the router logits of all layers of one micro-batch, padding left out,

    loss = E * sum_e f_e P_e,    f_e = (times that expert e was among the top k) / N,    P_e = (sum of p_te) / N

with E experts, N rows of all layers together and p the softmax of a row. f is a count, without a gradient; so once all
layers have run forward, what a layer adds to the gradient is that of sum_t p_te * (E f_e / N), which it can take in its
own backward pass.

That the sum is the library's is verified on a tiny copy (`equivalence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spillway.model.batches.microbatch import MicroBatch

Sink = Callable[[torch.Tensor], None]


class Routers:
    """A model's routers, watched; what their logits add to its loss."""

    def __init__(self, experts: int, top_k: int, coefficient: float) -> None:
        self.experts = experts
        self.top_k = top_k
        self.coefficient = coefficient
        self._sink: Sink | None = None

    @contextmanager
    def seen_by(self, sink: Sink) -> Iterator[None]:
        """Inside, `sink` is given the logits [rows, experts] of every router that runs."""
        self._sink = sink
        try:
            yield
        finally:
            self._sink = None

    def watch(self, module: nn.Module, index: int) -> None:
        """`index`: where in the tuple that the module returns its logits stand."""

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            logits = output[index] if isinstance(output, tuple) else output
            if self._sink is not None and logits is not None:
                self._sink(logits)

        module.register_forward_hook(hook)


class Balance:
    """One micro-batch in one step: what its layers add up to, and each one's part of the gradient."""

    def __init__(self, routers: Routers, batch: MicroBatch, scale: float, device: torch.device | None = None) -> None:
        """`scale`: what the loss is multiplied by before backward."""
        self._routers = routers
        self._scale = scale
        self._real, self._real_tokens = batch.real, batch.real_tokens
        self._chosen = torch.zeros(routers.experts, device=device)  # times that each expert was among the top k
        self._probability = torch.zeros(routers.experts, device=device)
        self._rows = 0.0

    @contextmanager
    def forward(self) -> Iterator[None]:
        """A layer runs forward inside."""
        with self._routers.seen_by(self._add):
            yield

    @contextmanager
    def again(self, outputs: list[torch.Tensor], gradients: list[torch.Tensor]) -> Iterator[None]:
        """A layer runs again inside, to be differentiated; all have run forward. What its routers make and the
        gradients of that go to the lists."""
        factor = self._scale * self._routers.coefficient * self._routers.experts / self._rows / self._rows
        weights = self._chosen * factor

        def add(logits: torch.Tensor) -> None:
            probability = self._sum(logits.softmax(-1))
            if probability.requires_grad:
                outputs.append(probability)
                gradients.append(weights)

        with self._routers.seen_by(add):
            yield

    def loss(self) -> float:
        """Times the coefficient, once every layer has run forward."""
        return self._routers.coefficient * self.mean()

    def mean(self) -> float:
        """The mean of the whole micro-batch, as the library gives it beside the loss."""
        shares = (self._chosen.double() / self._rows) * (self._probability.double() / self._rows)
        return self._routers.experts * float(shares.sum())

    def _add(self, logits: torch.Tensor) -> None:
        probabilities = logits.softmax(-1)
        chosen = probabilities.topk(self._routers.top_k, dim=-1).indices.reshape(-1)
        if self._real is None:
            self._chosen.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.float32))
            self._rows += logits.shape[0]
        else:
            self._chosen.scatter_add_(0, chosen, self._real.repeat_interleave(self._routers.top_k))
            self._rows += self._real_tokens
        self._probability += self._sum(probabilities)

    def _sum(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Over the rows that are no padding, fp32."""
        values = probabilities.float()
        return (values if self._real is None else values * self._real[:, None]).sum(0)
