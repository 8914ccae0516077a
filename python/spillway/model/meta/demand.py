"""Experts that come when tokens are routed to them (`expert_loading: on_demand`): what a plan expects of it."""

from __future__ import annotations

import statistics
from typing import Any

from spillway._engine import Description

MOST_MET = 0.999  # of experts: beyond it layers come whole
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_OF_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")


def estimate_met(config: Any, tokens: int) -> float:
    """The share of a layer's experts that some of so many tokens meet if each token is as likely to meet one as
    another, as training with an auxiliary loss aims for. 1: next to all. `config`: of a mixture of experts."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    experts, of_a_token = read_number(text, EXPERTS), read_number(text, EXPERTS_OF_A_TOKEN)
    return clip_share(1 - (1 - min(of_a_token, experts) / experts) ** max(tokens, 1))


def clip_share(share: float) -> float:
    """The share that a plan counts on. 1: layers come whole."""
    return share if share < MOST_MET else 1


def read_number(config: Any, names: tuple[str, ...]) -> int:
    """The first of these that the configuration has; 1 where it has none."""
    return next((int(it) for it in (getattr(config, name, None) for name in names) if it), 1)


def mean_share(description: Description) -> float | None:
    """The share of a layer's experts that a plan counts on; None where they come whole by request."""
    shares = [tensor.asked for block in description.blocks for tensor in block.tensors if tensor.apart]
    return statistics.mean(shares) if shares else None


def demand_notice(description: Description, is_recorded: bool = False) -> list[str]:
    """A notice of how many experts a plan counts on; none where they come whole by request. `is_recorded`: earlier
    steps of the run met so many."""
    if (share := mean_share(description)) is None:
        return []
    spread = "as in earlier steps of the run" if is_recorded else "if they are spread evenly"
    met = f"expert_loading: {description.tokens} tokens, {spread}, meet"
    if share == 1:
        return [f"{met} all experts of a layer, so layers come whole; fewer tokens in a step would need fewer experts"]
    first = ", and keeps those in memory first that most steps met" if is_recorded else ""
    return [f"{met} {share:.0%} of a layer's experts; the plan counts on so many{first}"]
