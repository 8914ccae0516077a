"""Trains a module of one's own in a plain PyTorch loop: plain.py WEIGHTS_DIR OUTPUT_DIR"""

import sys
from pathlib import Path

import torch
from decoder import Decoder
from safetensors.torch import load_model, save_model
from torch.nn import functional

weights, output_dir = map(Path, sys.argv[1:3])

model = Decoder(vocabulary=300, width=64, heads=4, depth=3)
load_model(model, weights / "model.safetensors")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

generator = torch.Generator().manual_seed(1)
for _ in range(6):
    ids = torch.randint(0, 300, (2, 32), generator=generator)
    loss = functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.6f}")

output_dir.mkdir(parents=True, exist_ok=True)
save_model(model, output_dir / "model.safetensors", {"format": "pt"})
