"""Fine-tunes a language model in a plain PyTorch loop: plain.py MODEL ROWS.jsonl OUTPUT_DIR"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

path, rows, output_dir = sys.argv[1:4]

tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

with open(rows, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
encoded = [tokenizer(text, truncation=True, max_length=64) for text in texts]
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
batches = [collate(encoded[first : first + 2]) for first in range(0, len(encoded), 2)]

for first in range(0, len(batches), 3):  # three micro-batches a step
    micro_batches = batches[first : first + 3]
    labels = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in micro_batches)
    total = 0.0
    for batch in micro_batches:
        loss = model(**batch, num_items_in_batch=labels).loss
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {total:.6f}")

model.save_pretrained(output_dir)
tokenizer.save_pretrained(output_dir)
