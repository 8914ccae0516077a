"""Directories with the configurations of real models and no weights, for plans: `python bench/model_shapes.py DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# hidden, feed-forward, layers, heads, key-value heads, vocabulary, tied
QWEN = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-14B": (5120, 13824, 48, 40, 8, 152064, False),
    "Qwen2.5-32B": (5120, 27648, 64, 40, 8, 152064, False),
}
LLAMA = {
    "Llama-2-13B": (5120, 13824, 40, 40, 40, 32000, False),
    "Llama-3.1-70B": (8192, 28672, 80, 64, 8, 128256, False),
}


# As published
MOE: dict[str, dict[str, Any]] = {
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    },
    "OLMoE-1B-7B": {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,  # of an expert
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 50304,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    },
}


def config(name: str) -> dict[str, Any]:
    if name in MOE:
        return MOE[name]
    family = "qwen2" if name in QWEN else "llama"
    hidden, inner, layers, heads, keys, vocabulary, tied = (QWEN | LLAMA)[name]
    return {
        "architectures": ["Qwen2ForCausalLM" if family == "qwen2" else "LlamaForCausalLM"],
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def write(folder: Path, name: str) -> Path:
    """The model's directory."""
    directory = folder / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(name), indent=2) + "\n", encoding="utf-8")
    return directory


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("python bench/model_shapes.py DIR")
    for shape in (*QWEN, *LLAMA, *MOE):
        print(write(Path(sys.argv[1]), shape))
