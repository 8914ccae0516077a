"""The key table as text for a terminal."""

from __future__ import annotations

import textwrap

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
    unsaid = [name for name in key.kind.names if f"`{name}`" not in key.help]
    values = f" ({', '.join(key.kind.names)})" if unsaid else ""
    text = f"{key.help}{values} [{default_of(key)}]".replace("`", "")
    return textwrap.wrap(text, 118, initial_indent=f"  --{key.name:30} ", subsequent_indent=" " * 35)


HOW_GIVEN = """\
Sizes take GiB, MiB, GB, MB or plain bytes. Underscores and dashes are the same. A flag is written --KEY,
--KEY true, --KEY false or --no-KEY. The command line wins over the file, and the file over the default."""
