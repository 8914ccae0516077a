"""The configurations of the tour: one that learns, a large one, and one whose runs are compared."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from spillway.demo.devices import Device

SHORT_STEPS = 8  # steps of the runs that are compared bit by bit
LARGE_STEPS = 2
LEAST_LAYERS = 14  # of the large model
LAYER_STATE = 170 * 2**20  # bytes of weights and optimizer states of a layer, at least
STATE_SHARE = 2.5  # of the large model's state on the disk in the memory of the process


@dataclass(frozen=True)
class Lesson:
    """How a model is taught."""

    length: int  # tokens of a row
    rows: int  # of a micro-batch
    accumulation: int
    steps: int
    learning_rate: float
    held_out: int  # bytes of the held-out text that are looked at, so that this takes seconds
    fall: float  # share of the held-out loss that has to go

    def yaml(self, model: Path, train: Path, held_out: Path, output_dir: Path, device: Device) -> str:
        return f"""\
model: {model}
dataset: {train}
eval_dataset: {held_out}
output_dir: {output_dir}
max_length: {self.length}
per_device_train_batch_size: {self.rows}
gradient_accumulation_steps: {self.accumulation}
per_device_eval_batch_size: 8
max_steps: {self.steps}
learning_rate: {self.learning_rate}
lr_scheduler_type: cosine
warmup_steps: 0.05
weight_decay: 0.1
adam_beta2: 0.95
eval_on_start: true
eval_steps: {self.steps}
logging_steps: {max(1, self.steps // 12)}
seed: 7
{device.yaml()}"""


def comparison(model: Path, train: Path, device: Device) -> str:
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
seed: 7
{device.yaml()}"""


def large(model: Path, train: Path, output_dir: Path, device: Device) -> str:
    """Every byte of weights, optimizer states and gradients on the disk, and no more memory than that takes."""
    return f"""\
model: {model}
init: random
dataset: {train}
output_dir: {output_dir}
max_length: 64
per_device_train_batch_size: 2
max_steps: {LARGE_STEPS}
placement: path
save_only_model: true
seed: 7
{device.yaml()}"""


def count_layers(budget: int, device: Device) -> int:
    """Layers of the large model. A GPU holds as much of their state as it can, and the disk several times the memory of
    the process."""
    return max(LEAST_LAYERS, math.ceil((STATE_SHARE * budget + device.memory) / LAYER_STATE))


def large_model(directory: Path, tokenizer: Path, layers: int) -> None:
    """A configuration: layers of Qwen2.5-0.5B's widths, with the tokenizer of the small model."""
    directory.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((tokenizer / name).read_bytes())
    small = json.loads((tokenizer / "config.json").read_text())
    content = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": layers,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": small["vocab_size"],
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": small["bos_token_id"],
        "eos_token_id": small["eos_token_id"],
        "pad_token_id": small["pad_token_id"],
    }
    (directory / "config.json").write_text(json.dumps(content, indent=2) + "\n")
