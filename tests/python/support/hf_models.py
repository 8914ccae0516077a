"""Tiny models of several families, and batches for them: built in the test, nothing is read."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from spillway.model.batches.batch import Batch

torch.set_num_threads(1)  # tiny tensors
VOCABULARY = 97
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_config(kind: str, tied: bool = True, **more: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **{**SIZES, "tie_word_embeddings": tied, **more})


def tiny_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Random weights from a fixed seed, biases and norms off their starting values."""
    torch.manual_seed(7)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.train()


def batch(
    ids: torch.Tensor,
    labels: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
) -> Batch:
    """What the trainer hands over."""
    tokens = ids.numel() if lengths is None else int(lengths.sum())
    return Batch(ids, ids.clone() if labels is None else labels, positions, tokens, lengths)


def random_ids(rows: int, length: int, seed: int, lowest: int = 0) -> torch.Tensor:
    return torch.randint(lowest, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
