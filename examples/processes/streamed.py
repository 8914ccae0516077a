"""The same as plain.py through the engine, with each process's part of the state on a drive:

torchrun --standalone --nproc_per_node 2 streamed.py MODEL ROWS.jsonl OUTPUT_DIR STORAGE
"""

import sys
from pathlib import Path

import spillway

path, rows, output_dir, storage = sys.argv[1:5]

if __name__ == "__main__":
    for number in range(2):
        Path(f"{storage}{number}").mkdir(parents=True, exist_ok=True)
    spillway.train(
        {
            "model": path,
            "dataset": rows,
            "output_dir": output_dir,
            "storage": [storage + "{local_rank}"],
            "placement": "path",
            "compute_dtype": "fp32",
            "max_steps": 20,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_length": 64,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "adam_epsilon": 1e-6,
            "max_grad_norm": 1.0,
        }
    )
