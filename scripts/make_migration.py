#!/usr/bin/env python3
"""Writes docs/how-to/migrate.md from the tables that the program's refusals use; with --check only compares.

scripts/make_migration.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from spillway.config.foreign import OF_EXPERTS, OF_PEFT, OF_TRAINERS, RENAMES, advise
from spillway.config.front_ends import ENTRIES, METHODS, OWN, SHARED
from spillway.config.keys import KEYS

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "how-to" / "migrate.md"

HEAD = """\
# Migrate from another trainer

<!-- Made from python/spillway/config/foreign.py and front_ends.py by scripts/make_migration.py; a test compares. -->

## What you lose

{lost}

Spillway also lacks these, whichever tool you come from:

- datasets mixed by probability (join the files), and a share of the rows held out (`eval_dataset` names the rows)
- whole modules trained beside adapters (`modules_to_save`), except a classification head
- learning rates by parameter group, such as LoRA+
- rows grouped by length
- NEFTune, `torch_compile`, and label smoothing outside DPO

[The comparison](../comparison.md) says when to stay with the other tool.

## One file, before and after

Axolotl's file for QLoRA:

```yaml
{before}
```

Spillway's file for the same run. The last key has no counterpart in Axolotl. It limits DRAM. This run needs no
drive. A larger one may name a drive with `storage`:

```yaml
{after}
```

## A script of Unsloth, before and after

Unsloth's scripts train with TRL's SFTTrainer. These lines make the model and its tokenizer:

```text
{unsloth}
```

Spillway's lines in their place. The trainer then comes from `spillway.hf` as well ([trainers](trainer.md)).
`lora_dropout=0` is Unsloth's default. Spillway's is 0.05:

```python
{streamed}
```

The dataset, `SFTConfig` and `trainer.train()` stay. If the model fits your GPU, Unsloth is faster.

## How to read the tables

Each table has the keys of one tool, and the Spillway key for each. If `spillway plan` finds a key
that Spillway does not take, it prints the text of the cell and exits with code 2. Spillway never ignores a key
in silence.

A Spillway file is flat: one key a line. Only `lr_scheduler_kwargs`, `lora_rank_pattern` and
`lora_alpha_pattern` take mappings.
[The reference](../reference/configuration.md) has every key, its default and its meaning.
Keys with the same answer share a row. A row's second cell begins with one of these:

- *The same*: Spillway has the key, with the same meaning. Its default may differ.
- *Taken*: Spillway accepts the key in place of its own.
- A Spillway key: write it instead.
- *See the rows of its entries*: the key holds other keys, and each has its own row.
- *Not needed*: Spillway does this by itself. Some cells name a key that changes how it does so. Remove the old key.
- *Not supported*: Spillway does not do this. Remove the key. *Not supported by the command*: a script with
  `spillway.hf.Trainer` does this.
"""
LOST = {  # tool: what a person loses, and what stays
    "[DeepSpeed](#deepspeed-json)": (
        "Training on several GPUs, which Spillway has run only in simulation. Tensor and pipeline parallelism. GPUs of "
        "AMD and Intel",
        "Optimizer and weights on drives. ZeRO's split over processes, on CPUs",
    ),
    "[Axolotl](#axolotl-yaml)": (
        "Preferences and rewards in its file. Kernels that replace layers. Several GPUs. Architectures that Axolotl "
        "brings",
        "Its command and its file, with [a plug-in](axolotl.md)",
    ),
    "[LLaMA-Factory](#llama-factory-yaml)": (
        "The web interface. Videos and audio. GaLore, BAdam and other low-rank optimizers. Preferences in its file",
        "Its file for SFT, with [a command](llama-factory.md)",
    ),
    "[TRL](#trl-sftconfig-dpoconfig-and-modelconfig)": (
        "Trainers other than the [seven](trainer.md#trls-trainers). vLLM in the training process. Some losses of GRPO "
        "and DPO",
        "The script, with [two lines changed](trainer.md)",
    ),
    "Unsloth": (
        "Kernels for a model that fits the GPU. Its notebooks. Models in 4 bits other than NF4. GPUs of AMD and Intel",
        "Data and hyperparameters. Its scripts use TRL, so [a few lines](#a-script-of-unsloth-before-and-after) "
        "replace `FastLanguageModel`",
    ),
}
BEFORE = """\
base_model: Qwen/Qwen2.5-7B
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: alpaca
sequence_len: 2048
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-4
bf16: true
gradient_checkpointing: true
output_dir: runs/qlora"""
AFTER = """\
model: Qwen/Qwen2.5-7B
method: lora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: all-linear
dataset: rows.jsonl
prompt_template: alpaca
max_length: 2048
packing: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
num_train_epochs: 1
optim: adamw_torch
lr_scheduler_type: cosine
learning_rate: 2e-4
bf16: true
gradient_checkpointing: true
output_dir: runs/qlora
dram_budget: 48GiB"""
UNSLOTH = """\
from trl import SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("./Qwen2.5-1.5B", max_seq_length=1024, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])"""
STREAMED = """\
from transformers import AutoTokenizer

from spillway.hf import SFTTrainer, load

tokenizer = AutoTokenizer.from_pretrained("./Qwen2.5-1.5B")
model = load("./Qwen2.5-1.5B", max_length=1024, load_in_4bit=True, method="lora", lora_r=16, lora_alpha=32,
             lora_dropout=0, lora_target_modules=["q_proj", "v_proj"], dram_budget="4GiB",
             storage="/mnt/nvme/spillway")"""
TOOLS = {
    "Axolotl": "Axolotl YAML",
    "LLaMA-Factory": "LLaMA-Factory YAML",
    "DeepSpeed": "DeepSpeed JSON",
    "TrainingArguments": "TrainingArguments",
    "TRL": "TRL: SFTConfig, DPOConfig and ModelConfig",
    "LoraConfig": "PEFT: LoraConfig",
    "Megatron": "Mixtures of experts: Megatron and ms-swift",
    "elsewhere": "Names in other tools",
}
ABOUT = {
    "Axolotl": "Axolotl's own command trains with [a plug-in](axolotl.md). This table is for `spillway train`. Axolotl "
    "has no key for a drive: name a directory with `storage` if memory cannot hold the state.",
    "LLaMA-Factory": "[A command](llama-factory.md) trains LLaMA-Factory's own file for SFT. This table is for "
    "`spillway train`. Rows in ShareGPT form train as they are. Rows in Alpaca form need `prompt_template: chat` to "
    "become turns of the chat template ([data](../reference/data.md)).",
    "DeepSpeed": "A dot separates the levels of the JSON file. Spillway plans transfers and buffers by itself, so most "
    "sizes have no key.",
    "TrainingArguments": "These are the arguments of transformers' `Trainer`.",
    "TRL": "TRL's configurations also have every argument of the table above.",
    "LoraConfig": "`method: lora` trains adapters; [the how-to](adapters.md) has the details. PEFT's default of "
    "`lora_dropout` is 0, and Spillway's is 0.05, as TRL's.",
    "Megatron": "Libraries of experts have some of these keys, too. [Data](../reference/data.md#mixtures-of-experts) "
    "has the loss of routers.",
    "elsewhere": "These names have one Spillway key, whichever tool you come from.",
}
TAKEN = {
    "adapter": f"taken: in place of Axolotl's values {METHODS}. A directory of adapters means `lora_adapter`",
    "activation_checkpointing": "taken: `true` means `activation_recompute: all`",
    "bf16": "taken: `true` means `compute_dtype: bf16`",
    "fp16": "taken: `true` means `compute_dtype: fp16`",
    "gradient_checkpointing": "taken: `true` means `activation_recompute: all`",
    "warmup_ratio": "taken: `warmup_steps` below 1 means the same",
}
REMARKS = {
    ("LLaMA-Factory", "dataset"): "the same, but a file or a name on the hub instead of an entry of dataset_info.json",
    ("LLaMA-Factory", "eval_dataset"): "the same, but a file or a name on the hub",
    ("TRL", "loss_type"): "the same with `objective: dpo`",
    ("TrainingArguments", "hub_strategy"): "the same, with `end` alone",
}
GROUPS = {  # heading of a table: the beginnings of its cells
    "Keep": ("the same", "taken: "),
    "Write instead": ("",),
    "Remove: Spillway does this by itself": ("not needed: ",),
    "Remove: not supported": ("not supported",),
}
BELOW = "see the rows of its entries"  # on the page, in place of the page's name
MOST = 8  # keys of a row
ADVISED = {  # keys with advice, by the tool that has them
    "TrainingArguments": OF_TRAINERS.keys() - {*SHARED["TRL"]},
    "LoraConfig": OF_PEFT,
    "Megatron": OF_EXPERTS,
    "elsewhere": RENAMES,
}


def tool_keys(tool: str) -> list[str]:
    return sorted({*SHARED.get(tool, ()), *OWN.get(tool, ()), *ADVISED.get(tool, ())})


def describe(tool: str, name: str) -> str:
    """The second cell of a key's row."""
    same = "the same" if name in KEYS else ""
    words = REMARKS.get((tool, name)) or TAKEN.get(name) or same or advise(name)
    return words.replace(ENTRIES, BELOW)


def find_group(words: str) -> str:
    """The heading of the table that has this cell."""
    named = (heading for heading, starts in GROUPS.items() if starts != ("",) and words.startswith(starts))
    return next(named, "Write instead")


def group_keys(tool: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Each second cell with the keys that share it, by heading."""
    shared: dict[str, list[str]] = {}
    for name in tool_keys(tool):
        shared.setdefault(describe(tool, name), []).append(name)
    groups: dict[str, list[tuple[str, list[str]]]] = {heading: [] for heading in GROUPS}
    for words, names in shared.items():
        groups[find_group(words)] += [(words, names[at : at + MOST]) for at in range(0, len(names), MOST)]
    return {heading: rows for heading, rows in groups.items() if rows}


def draw_losses() -> str:
    rows = [f"| {tool} | {lost} | {kept} |" for tool, (lost, kept) in LOST.items()]
    return "\n".join(["| from | you lose | you keep |", "|---|---|---|", *rows])


def page() -> str:
    lines = [HEAD.replace("{lost}", draw_losses()).replace("{before}", BEFORE).replace("{after}", AFTER)]
    lines[0] = lines[0].replace("{unsloth}", UNSLOTH).replace("{streamed}", STREAMED)
    for tool, title in TOOLS.items():
        lines += [f"## {title}", "", ABOUT[tool], ""]
        for heading, rows in group_keys(tool).items():
            lines += [f"**{heading}**", "", f"| {tool} | Spillway |", "|---|---|"]
            lines += [f"| {', '.join(f'`{name}`' for name in names)} | {words} |" for words, names in rows]
            lines.append("")
    return "\n".join(lines)


def main() -> int:
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page(), encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != page():
        print(f"{TARGET.relative_to(ROOT)} is not up to date: run scripts/make_migration.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
