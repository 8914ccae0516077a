"""The two configurations of the tour: one that learns, and one whose short runs are compared bit by bit."""

import time
from pathlib import Path

LENGTH = 128  # tokens of a row of the one that learns
SHORT_STEPS = 16  # steps of the other


def training(model: Path, train: Path, held_out: Path, output_dir: Path, steps: int, dtype: str) -> str:
    return f"""\
model: {model}
dataset: {train}
eval_dataset: {held_out}
output_dir: {output_dir}
max_length: {LENGTH}
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
per_device_eval_batch_size: 8
max_steps: {steps}
learning_rate: 4e-3
lr_scheduler_type: cosine
warmup_steps: 0.05
weight_decay: 0.1
adam_beta2: 0.95
eval_on_start: true
eval_steps: 0.5
logging_steps: {max(1, steps // 12)}
compute_dtype: {dtype}
seed: 7
"""


def comparison(model: Path, train: Path, dtype: str) -> str:
    """Small steps, with what could go wrong in them: clipping, two micro-batches, a schedule that moves."""
    return f"""\
model: {model}
dataset: {train}
max_length: 64
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: {SHORT_STEPS}
learning_rate: 1e-3
weight_decay: 0.1
compute_dtype: {dtype}
seed: 7
"""


def bf16_is_fast() -> bool:
    """Whether this processor multiplies bf16 matrices at no less than half the speed of fp32; old ones do not."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(torch.bfloat16) < 2 * seconds(torch.float32)
