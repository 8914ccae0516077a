"""How many experts of a layer the tokens of a batch meet: a small mixture of experts, trained on text and counted.

    experts_met.py [--experts 128] [--top 8] [--layers 4] [--minutes 5] [--text DIR]

The router has the shape of Qwen3-30B-A3B's (128 experts, 8 for a token, its auxiliary loss); widths are small. The text
is Python's own standard library unless a folder is named; its tokens are byte pairs learned from it. After training the
model reads text that it has not seen, in order. A batch is so many consecutive tokens of it. The result has, for each
size of a batch, the share of a layer's experts that at least one token met: the mean over layers and batches, the least
and the most. `uniform` is the share if each token drew its experts at random.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from figures import processor, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

NAME = "experts-met"
SIZES = (64, 256, 1024, 4096, 16384)  # tokens of a batch
VOCABULARY, ROW = 4096, 512
HELD_OUT = 65536  # tokens that are counted


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=5, help="of training")
    parser.add_argument(
        "--text", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), help="a folder of .py or .txt"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def read_tokens(folder: Path, seed: int) -> torch.Tensor:
    files = sorted(path for path in folder.glob("*.*") if path.suffix in (".py", ".txt"))
    random.Random(seed).shuffle(files)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    return torch.tensor([token for text in texts for token in tokenizer.encode(text).ids])


def make_model(experts: int, top: int, layers: int, width: int = 96) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=experts,
        num_experts_per_tok=top,
        norm_topk_prob=True,
        output_router_logits=True,
        router_aux_loss_coef=0.001,
        max_position_embeddings=ROW,
    )
    return Qwen3MoeForCausalLM(config)


def train(model: Qwen3MoeForCausalLM, tokens: torch.Tensor, minutes: float, seed: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    draw = torch.Generator().manual_seed(seed)
    began, steps, losses = time.monotonic(), 0, []
    while time.monotonic() - began < 60 * minutes:
        starts = torch.randint(len(tokens) - ROW, (4,), generator=draw)
        batch = torch.stack([tokens[start : start + ROW] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        steps += 1
        if steps % 50 == 0:
            print(f"step {steps}: loss {statistics.mean(losses[-50:]):.3f}", flush=True)
    return {"steps": steps, "tokens_a_step": 4 * ROW, "loss": statistics.mean(losses[-50:])}


@torch.no_grad()
def find_choices(model: Qwen3MoeForCausalLM, tokens: torch.Tensor, top: int) -> torch.Tensor:
    """The experts of each token [layers, tokens, top]."""
    model.eval()
    parts = []
    for start in range(0, len(tokens) - ROW + 1, ROW):
        logits = model(input_ids=tokens[None, start : start + ROW]).router_logits
        parts.append(torch.stack([layer.topk(top, dim=-1).indices for layer in logits]))
    return torch.cat(parts, dim=1)


def count_met(choices: torch.Tensor, size: int, experts: int) -> dict[str, float]:
    shares = [len(batch.unique()) / experts for layer in choices for batch in layer.split(size) if len(batch) == size]
    uniform = 1 - (1 - choices.shape[2] / experts) ** size
    return {
        "tokens": size,
        "mean": statistics.mean(shares),
        "least": min(shares),
        "most": max(shares),
        "uniform": uniform,
    }


def main() -> None:
    arguments = parser().parse_args()
    torch.manual_seed(arguments.seed)
    tokens = read_tokens(arguments.text, arguments.seed)
    held_out, rest = tokens[:HELD_OUT], tokens[HELD_OUT:]
    model = make_model(arguments.experts, arguments.top, arguments.layers)
    print(f"{len(tokens)} tokens, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    before = find_choices(model, held_out, arguments.top)
    training = train(model.train(), rest, arguments.minutes, arguments.seed)
    after = find_choices(model, held_out, arguments.top)
    routing = {"untrained": before, "trained": after}
    result = {
        "processor": processor(),
        "experts": arguments.experts,
        "top": arguments.top,
        "layers": arguments.layers,
        "training": training,
        "met": {name: [count_met(it, size, arguments.experts) for size in SIZES] for name, it in routing.items()},
    }
    for name, rows in result["met"].items():
        for row in rows:
            print(f"{name}: {row['tokens']} tokens meet {row['mean']:.1%} ({row['least']:.1%} to {row['most']:.1%})")
    save(NAME, result)


if __name__ == "__main__":
    main()
