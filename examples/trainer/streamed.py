"""The same as plain.py through the engine, two lines changed: streamed.py MODEL ROWS.jsonl OUTPUT_DIR STORAGE"""

import json
import sys

from transformers import AutoTokenizer, DataCollatorForLanguageModeling, TrainingArguments
from spillway.hf import Trainer, load

path, rows, output_dir = sys.argv[1:4]

tokenizer = AutoTokenizer.from_pretrained(path)
model = load(path, storage=sys.argv[4], placement="path", dtype="float32")

with open(rows, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
encoded = [tokenizer(text, truncation=True, max_length=64) for text in texts]
train_dataset, eval_dataset = encoded[:-4], encoded[-4:]

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=2,
        learning_rate=1e-3,
        weight_decay=0.1,
        warmup_steps=2,
        lr_scheduler_type="cosine",
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()
