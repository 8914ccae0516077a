"""The key table as text for a terminal, and as Markdown for the reference."""

from __future__ import annotations

import textwrap

from spillway.config.foreign import FOREIGN
from spillway.config.key import Key
from spillway.config.keys import GROUPS, KEYS


def default_of(key: Key) -> str:
    if key.required:
        return "required"
    if key.default_text:
        return key.default_text
    if key.default is None:
        return "none"
    return str(key.default).lower() if isinstance(key.default, bool) else str(key.default)


# What a first run is about. Every other key has a default that fits.
MAIN = (
    "model", "dataset", "output_dir", "max_length", "packing", "per_device_train_batch_size",
    "gradient_accumulation_steps", "learning_rate", "num_train_epochs", "max_steps", "method", "dram_budget", "storage",
    "durability", "resume_from_checkpoint",
)  # fmt: skip


def main_keys() -> str:
    """The keys that matter, for `--help`."""
    return "\n".join(["Keys:", *(line for name in MAIN for line in described(KEYS[name])), "", HOW_GIVEN])


def key_help() -> str:
    """Every key, for `--help-all`."""
    lines = []
    for title, keys in GROUPS.items():
        lines += [f"{title}:", *(line for key in keys for line in described(key)), ""]
    return "\n".join([*lines, HOW_GIVEN])


def described(key: Key) -> list[str]:
    text = f"{key.help} [{default_of(key)}]".replace("`", "")
    return textwrap.wrap(text, 118, initial_indent=f"  --{key.name:30} ", subsequent_indent=" " * 35)


HOW_GIVEN = """\
Sizes take GiB, MiB, GB, MB or plain bytes. Underscores and dashes are the same. A flag is written --KEY,
--KEY true, --KEY false or --no-KEY. The command line wins over the file, and the file over the default."""


def reference() -> str:
    """docs/reference/configuration.md."""
    lines = [REFERENCE_HEAD]
    for title, keys in GROUPS.items():
        lines += [f"## {title}", "", "| key | expects | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{key.name}` | {cell(expected(key))} | {cell(default_of(key))} | {cell(key.help)} |" for key in keys
        ]
        lines.append("")
    lines += [FOREIGN_HEAD, *(f"| `{name}` | {cell(words)} |" for name, words in FOREIGN.items()), ""]
    return "\n".join(lines)


def expected(key: Key) -> str:
    return f"list of {key.kind.expected}" if key.kind.many else key.kind.expected


def cell(text: str) -> str:
    return text.replace("|", "\\|")


FOREIGN_HEAD = """\
## Refused keys of transformers, TRL, PEFT and other trainers

| key | instead |
|---|---|"""

REFERENCE_HEAD = """\
# Configuration

<!-- Made from python/spillway/config/keys.py by scripts/make_reference.py; a test compares the two. -->

A key is a line of a flat YAML file (`learning_rate: 2e-5`), or an option of the command line (`--learning_rate 2e-5`).
The command line wins over the file, and the file over the default.

- Underscores and dashes are the same.
- A flag stands alone (`--packing`), has a value (`--packing true`), or is negated (`--no-packing`).
- A list repeats its key: `--storage A --storage B`.
- Sizes take `GiB`, `MiB`, `GB`, `MB` or plain bytes.
- `none` or `null` means not given.
- A path is relative to the working directory. `output_dir/config.yaml` stores it as an absolute path.

Keys of transformers' `TrainingArguments`, TRL's `SFTConfig` and TRL's `DPOConfig` keep their names and meanings. These
defaults differ:

- Every step is logged.
- Without `save_steps` only the last step is saved.
- `eval_dataset` alone means an evaluation after every epoch.
- In messages, the loss counts only the assistant's turns.
- Weights are bf16. Layers multiply in bf16 or fp32, whichever is faster on the machine.

These other names are accepted:

| name | key |
|---|---|
| `warmup_ratio`, a share | `warmup_steps` below 1 |
| `bf16: true`, `fp16: true` | `compute_dtype: bf16`, `compute_dtype: fp16` |
| `gradient_checkpointing`, `activation_checkpointing` | `activation_recompute`: `all` or `none`, with a notice |
| `adapter`, a directory | `lora_adapter` |
| `deterministic` | `full_determinism` |

A key or a value whose feature is not in this release is refused by name.
"""
