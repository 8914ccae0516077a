"""Fine-tunes a language model in several processes, with DistributedDataParallel or FSDP2:

torchrun --standalone --nproc_per_node 2 plain.py MODEL ROWS.jsonl OUTPUT_DIR ddp|fsdp
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, ROWS, ACCUMULATION, LENGTH, RATE, CLIP, SEED = 20, 2, 2, 64, 1e-3, 1.0, 42
EPSILON = 1e-6

path, rows, output_dir, how = sys.argv[1:5]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

tokenizer = AutoTokenizer.from_pretrained(path)
with open(rows, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
encoded = [tokenizer(text).input_ids for text in texts]
encoded = [(ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id])[:LENGTH] for ids in encoded]

model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
if how == "fsdp":
    for layer in model.model.layers:
        fully_shard(layer)
    trained = fully_shard(model)
else:
    trained = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.0)


def micro_batches(step: int) -> list[list[list[int]]]:
    """All of a step's, of every process."""
    each = -(-len(encoded) // ROWS)
    steps = -(-each // (ACCUMULATION * world))
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(SEED + step // steps)).tolist()
    first = step % steps * ACCUMULATION * world
    last = min(first + ACCUMULATION * world, each)
    return [[encoded[row] for row in order[part * ROWS : (part + 1) * ROWS]] for part in range(first, last)]


def loss_sum(batch: list[list[int]]) -> torch.Tensor:
    length = max(map(len, batch))
    ids, labels = torch.zeros(len(batch), length, dtype=torch.int64), torch.full((len(batch), length), -100)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = torch.tensor(tokens)
    mask = (labels != -100).long()
    logits = trained(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


losses = []
for step in range(STEPS):
    batches = micro_batches(step)
    tokens = sum(len(row) - 1 for batch in batches for row in batch)
    mine, total = batches[rank::world], torch.zeros((), dtype=torch.float64)
    for number, batch in enumerate(mine):
        waits = how == "ddp" and number < len(mine) - 1
        with trained.no_sync() if waits else nullcontext():
            loss = loss_sum(batch)
            (loss * world / tokens).backward()  # gradients are averaged over the processes
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    whole = norm.full_tensor() if how == "fsdp" else norm
    losses.append({"step": step + 1, "loss": float(total) / tokens, "grad_norm": float(whole)})

if rank == 0:
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    Path(output_dir, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in losses))
dist.barrier()
dist.destroy_process_group()
