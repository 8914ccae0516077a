"""Teaches a model a format by TRL's GRPOTrainer: plain.py MODEL PROMPTS.jsonl OUTPUT_DIR"""

import sys

from datasets import load_dataset
from reward import reward_format
from trl import GRPOConfig
from trl import GRPOTrainer

path, prompts, output_dir = sys.argv[1:4]
model = path

trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward_format,
    args=GRPOConfig(
        output_dir=output_dir,
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_completion_length=16,
        max_steps=30,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=load_dataset("json", data_files=prompts, split="train"),
)
trainer.train(resume_from_checkpoint=sys.argv[-1] == "resume")
trainer.save_model()
trainer.save_state()
