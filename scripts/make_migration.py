#!/usr/bin/env python3
"""Writes docs/how-to/migrate.md from the tables that the program's refusals use; with --check only compares.

scripts/make_migration.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from spillway.config.foreign import OF_PEFT, OF_TRAINERS, advise
from spillway.config.front_ends import METHODS, OWN, SHARED
from spillway.config.keys import KEYS

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "how-to" / "migrate.md"

HEAD = """\
# Migrate from another trainer

<!-- Made from python/spillway/config/foreign.py and front_ends.py by scripts/make_migration.py; a test compares. -->

Each table has the keys of one tool, and the Spillway key for each. If `spillway plan` finds a key
that Spillway does not take, it prints the text of the cell and exits with code 2. Spillway never ignores a key
in silence.

A Spillway file is flat: one key a line. Only `lr_scheduler_kwargs`, `lora_rank_pattern` and
`lora_alpha_pattern` take mappings.
[The reference](../reference/configuration.md) has every key, its default and its meaning.
A cell begins with one of these:

- *The same*: Spillway has the key, with the same meaning. Its default may differ.
- *Taken*: Spillway accepts the key in place of its own.
- A Spillway key: write it instead.
- *Not needed*: Spillway does this by itself. Some cells name a key that changes how it does so. Remove the old key.
- *Not supported*: Spillway does not do this. Remove the key. *Not supported by the command*: a script with
  `spillway.hf.Trainer` does this.

A script that uses transformers or TRL may stay a script: [two lines change](trainer.md).
"""
TOOLS = {
    "Axolotl": "Axolotl YAML",
    "LLaMA-Factory": "LLaMA-Factory YAML",
    "DeepSpeed": "DeepSpeed JSON",
    "TrainingArguments": "TrainingArguments",
    "TRL": "TRL: SFTConfig, DPOConfig and ModelConfig",
    "LoraConfig": "PEFT: LoraConfig",
}
ABOUT = {
    "Axolotl": "Axolotl's own command trains with [a plug-in](axolotl.md). This table is for `spillway train`. Axolotl "
    "has no key for a drive: name a directory with `storage` if memory cannot hold the state.",
    "LLaMA-Factory": "`llamafactory-cli train config.yaml` becomes `spillway train config.yaml`. Rows in Alpaca and "
    "ShareGPT form train as they are ([data](../reference/data.md)).",
    "DeepSpeed": "A dot separates the levels of the JSON file. Spillway plans transfers and buffers by itself, so most "
    "sizes have no key.",
    "TrainingArguments": "These are the arguments of transformers' `Trainer`.",
    "TRL": "TRL's configurations also have every argument of the table above.",
    "LoraConfig": "`method: lora` trains adapters; [the how-to](adapters.md) has the details.",
}
TAKEN = {
    "adapter": f"taken: a directory of adapters means `lora_adapter`. In place of Axolotl's values: {METHODS}",
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


def tool_keys(tool: str) -> list[str]:
    names = {*SHARED[tool], *OWN.get(tool, ())}
    if tool == "TrainingArguments":
        names |= OF_TRAINERS.keys() - {*SHARED["TRL"]}
    if tool == "LoraConfig":
        names |= OF_PEFT.keys()
    return sorted(names)


def describe(tool: str, name: str) -> str:
    """The second cell of a key's row."""
    same = "the same" if name in KEYS else ""
    return REMARKS.get((tool, name)) or TAKEN.get(name) or same or advise(name)


def page() -> str:
    lines = [HEAD]
    for tool, title in TOOLS.items():
        lines += [f"## {title}", "", ABOUT[tool], "", f"| {tool} | Spillway |", "|---|---|"]
        lines += [f"| `{name}` | {describe(tool, name)} |" for name in tool_keys(tool)]
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
