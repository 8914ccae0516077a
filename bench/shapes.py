"""Models of real shapes with random weights, for benchmarks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from model_shapes import MOE

# hidden, feed-forward, layers, heads, key-value heads: those of Qwen2.5; 8b: Llama 3's
SHAPES = {
    "tiny": (256, 1024, 4, 4, 2),
    "wide": (1024, 4096, 8, 16, 4),
    "0.5b": (896, 4864, 24, 14, 2),
    "1.5b": (1536, 8960, 28, 12, 2),
    "3b": (2048, 11008, 36, 16, 2),
    "7b": (3584, 18944, 28, 28, 4),
    "8b": (4096, 14336, 32, 32, 8),
    "14b": (5120, 13824, 48, 40, 8),
    "32b": (5120, 27648, 64, 40, 8),
    "72b": (8192, 29568, 80, 64, 8),
}
SMALL = ("0.5b", "1.5b", "3b")
VOCABULARY = dict.fromkeys(SHAPES, 152064) | dict.fromkeys(SMALL, 151936) | {"tiny": 8192, "wide": 8192, "8b": 128256}
UNTIED = ("7b", "8b", "14b", "32b", "72b")
MIXTURES: dict[str, dict[str, Any]] = {
    "30b-a3b": MOE["Qwen3-30B-A3B"],
    "olmoe": MOE["OLMoE-1B-7B"],
    "tiny-moe": MOE["Qwen3-30B-A3B"]
    | {"hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2,
       "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8192},
}  # fmt: skip
VOCABULARY |= {shape: values["vocab_size"] for shape, values in MIXTURES.items()}


FULL, FROZEN = 6, 4  # operations for a token and a weight: products of a frozen weight have no gradient of the weight


def model_flops(shape: str, sequence: int, tokens: int, layers: int | None = None, per_weight: int = FULL) -> float:
    """Floating-point operations of a training step over `tokens` tokens in rows of `sequence`: `per_weight` for each
    token and each weight that a product reads (the head included, the input table not), and causal attention.
    Recomputation does not count. A mixture counts the experts that a token goes to."""
    if shape in MIXTURES:
        return mixture_flops(MIXTURES[shape], sequence, tokens, layers, per_weight)
    hidden, feed_forward, own_layers, heads, kv_heads = SHAPES[shape]
    layer_count = layers or own_layers
    layer_weights = 2 * hidden * hidden * (1 + kv_heads / heads) + 3 * hidden * feed_forward
    products = layer_count * layer_weights + VOCABULARY[shape] * hidden
    return per_weight * products * tokens + 6 * layer_count * hidden * sequence * tokens


def mixture_flops(config: dict[str, Any], sequence: int, tokens: int, layers: int | None, per_weight: int) -> float:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    inner, keys = heads * head, config["num_key_value_heads"] * head
    layer_count = layers or config["num_hidden_layers"]
    feed_forward = config.get("moe_intermediate_size", config["intermediate_size"])
    experts = config["num_experts_per_tok"] * 3 * hidden * feed_forward
    layer_weights = 2 * hidden * (inner + keys) + hidden * config["num_experts"] + experts
    products = layer_count * layer_weights + config["vocab_size"] * hidden
    return per_weight * products * tokens + 6 * layer_count * inner * sequence * tokens


def config_of(shape: str, layers: int | None = None) -> Any:
    from transformers import AutoConfig, Qwen2Config

    if shape in MIXTURES:
        values = MIXTURES[shape]
        return AutoConfig.for_model(**values | {"num_hidden_layers": layers or values["num_hidden_layers"]})
    hidden, feed_forward, own_layers, heads, kv_heads = SHAPES[shape]
    return Qwen2Config(
        hidden_size=hidden, intermediate_size=feed_forward, num_hidden_layers=layers or own_layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=VOCABULARY[shape],
        tie_word_embeddings=shape not in UNTIED, use_cache=False, max_position_embeddings=524288,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip


def random_tokens(shape: str, sequence: int, step: int) -> Any:
    """[1, sequence] int64."""
    import torch

    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, VOCABULARY[shape], (1, sequence), generator=generator)


def use_liger() -> None:
    """Replaces norms, rotary embedding, SwiGLU and loss of Qwen2 by those of liger-kernel."""
    from liger_kernel.transformers import apply_liger_kernel_to_qwen2

    apply_liger_kernel_to_qwen2()


def settle(device: Any) -> None:
    """Waits until a GPU has run everything that it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_peak(device: Any) -> int:
    """Most bytes of a GPU that PyTorch has reserved; 0 on a CPU."""
    import torch

    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


@contextmanager
def refuses() -> Iterator[None]:
    """Ends the program with exit code 3, as the command line does, where a GPU's memory or a plan has no room."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        print(error, file=sys.stderr)
        sys.exit(3)


@contextmanager
def peak_watch() -> Iterator[SimpleNamespace]:
    """`bytes`: most resident memory of this process while open, looked at every 20 ms."""
    watch, stop = SimpleNamespace(bytes=0), threading.Event()

    def look() -> None:
        while not stop.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    watch.bytes = max(watch.bytes, int(line.split()[1]) * 1024)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
