"""The same as plain.py through the engine: streamed.py MODEL ROWS.jsonl OUTPUT_DIR STORAGE"""

import json
import sys

from transformers import AutoTokenizer, DataCollatorForLanguageModeling

import spillway

path, rows, output_dir = sys.argv[1:4]

tokenizer = AutoTokenizer.from_pretrained(path)
session = spillway.Session(
    model=path,
    storage=sys.argv[4],
    placement="path",
    compute_dtype="fp32",
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    max_length=64,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=3,
)

with open(rows, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
encoded = [tokenizer(text, truncation=True, max_length=64) for text in texts]
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
batches = [collate(encoded[first : first + 2]) for first in range(0, len(encoded), 2)]

with session:
    for first in range(0, len(batches), 3):  # three micro-batches a step
        micro_batches = batches[first : first + 3]
        print(f"loss {session.step(micro_batches)['loss']:.6f}")
    session.save(output_dir)
