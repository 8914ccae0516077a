#!/usr/bin/env python3
"""Writes docs/reference/configuration.md from the key table; with --check only says whether it is up to date.

The table is that of the package that is installed: the engine describes its optimizers. The column `resume` is what
the program compares when a run resumes (spillway.output.state).
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from reference_sections import COMMON, DEFAULTS, PAGES, SAME_BITS, SECTIONS, Section
from spillway.cli.help import default_of
from spillway.config import resolve
from spillway.config.key import Key
from spillway.config.keys import GROUPS, KEYS
from spillway.config.objectives import OWN_KEYS
from spillway.output.state import ENCODING, fixed_keys

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "configuration.md"
LONGEST_LIST = 60  # characters of values in a cell; longer lists have a section
TITLES = {name: title for title, keys in GROUPS.items() for name in (key.name for key in keys)}
SECTION_OF = {name: it for sections in SECTIONS.values() for it in sections for name in it.keys}
KEPT, ROWS = "kept", "rows"
ORIGINS = ("tokenizer", "tokenizer_revision", "chat_template_path", "dataset_revision")
FIXED_KEYS = fixed_keys(resolve({"model": str(ROOT)}, {}))

HEAD = """\
# Configuration

<!-- Made from python/spillway/config/keys.py by scripts/make_reference.py; a test compares the two. -->

A key is a line of a flat YAML file (`learning_rate: 2e-5`), or an option of the command line (`--learning_rate 2e-5`).
The command line wins over the file, and the file over the default. Only `model`, `dataset` and `output_dir` are
required.

- Underscores and dashes are the same.
- A flag stands alone (`--packing`), has a value (`--packing true`), or is negated (`--no-packing`).
- A list repeats its key: `--storage A --storage B`.
- Sizes take `GiB`, `MiB`, `GB`, `MB` or plain bytes.
- `none` or `null` means not given.
- A path is relative to the working directory. `output_dir/config.yaml` stores it as an absolute path.

Spillway refuses an unknown key or value by name. [Migrate](../how-to/migrate.md) lists the refused keys of other tools,
and the advice for each.
"""

OTHERS = """\
## Defaults and names of other tools

Keys of transformers' `TrainingArguments`, TRL's configs and PEFT's `LoraConfig` keep their names and meanings. Keys of
`LoraConfig` begin with `lora_`. These defaults differ:

{defaults}

- Weights and gradients are stored in bf16, with exact fp32 masters and moments ([types](#values-of-weight_dtype)).
  The plan chooses the layers that recompute activations. The flags `bf16` and `gradient_checkpointing` of the other
  tools select both.
- `none` for `ddp_backend` means NCCL on GPUs and gloo on CPUs.

Spillway accepts these other names:

| name | key |
|---|---|
| `warmup_ratio`, a share | `warmup_steps` below 1 |
| `bf16: true`, `fp16: true` | `compute_dtype: bf16`, `compute_dtype: fp16` |
| `gradient_checkpointing`, `activation_checkpointing` | `activation_recompute`: `all` or `none`, with a notice |
| `adapter`, a directory | `lora_adapter` |
| `deterministic` | `full_determinism` |

## How to read the tables

The column *resume* says what a resume does with another value of the key:

| mark | another value is |
|---|---|
| kept | refused, because the run would not be the same run. A model or a file that only moved is the same |
| rows | refused if it changes the tokens of the rows |
| | taken |

The column *bits* marks a key whose values all give the same losses, norms and weights, bit for bit. On a GPU this needs
`full_determinism`.
"""


def page() -> str:
    lines = [HEAD, "## Common keys", "", *draw_common(), "", OTHERS.replace("{defaults}", draw_defaults())]
    for title, keys in GROUPS.items():
        lines += [f"## {title}", "", *draw_group(keys), ""]
        for section in SECTIONS.get(title, []):
            lines += [*draw_section(section), ""]
    return "\n".join(lines)


def draw_common() -> list[str]:
    keys = [KEYS[name] for name in COMMON]
    rows = [(f"[`{key.name}`](#{slug(TITLES[key.name])})", default_of(key), key.help) for key in keys]
    return list(draw_table(("key", "default", "meaning"), rows))


def draw_defaults() -> str:
    head = ("key", "Spillway", "`TrainingArguments`", "TRL", "PEFT")
    return "\n".join(draw_table(head, [(f"`{name}`", *(cell or "-" for cell in cells)) for name, *cells in DEFAULTS]))


def draw_group(keys: Sequence[Key]) -> list[str]:
    """The table of a group, without a column of marks that no key has."""
    columns = {
        "key": [f"`{key.name}`" for key in keys],
        "expects": [describe_values(key) for key in keys],
        "default": [default_of(key) for key in keys],
        "resume": [find_mark(key) for key in keys],
        "bits": ["same" if key.name in SAME_BITS else "" for key in keys],
        "meaning": [explain(key) for key in keys],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    return list(draw_table(tuple(shown), [*zip(*shown.values(), strict=True)]))


def draw_section(section: Section) -> Iterator[str]:
    yield f"### {section.heading}"
    if section.intro:
        yield from ("", section.intro)
    if section.rows:
        yield ""
        yield from draw_table(section.head, section.rows)
    if section.notes:
        yield ""
        for note in section.notes:
            yield textwrap.fill(
                f"- {note}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )


def draw_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"


def find_mark(key: Key) -> str:
    """The reaction of a resume to another value of the key."""
    if key.name in {*FIXED_KEYS, *OWN_KEYS, "model_revision"}:
        return KEPT
    return ROWS if key.name in {*ENCODING, *ORIGINS} else ""


def describe_values(key: Key) -> str:
    if is_long(key):
        return f"[one of {len(key.kind.names)} values](#{slug(SECTION_OF[key.name].heading)})"
    return f"list of {key.kind.expected}" if key.kind.many else key.kind.expected


def is_long(key: Key) -> bool:
    """True if a section has the key's values, which would fill a cell."""
    return key.name in SECTION_OF and bool(key.kind.names) and len(key.kind.expected) > LONGEST_LIST


def explain(key: Key) -> str:
    """A key's line, and where the rest is, unless the list of values leads there."""
    if is_long(key):
        return key.help
    page = f"#{slug(SECTION_OF[key.name].heading)}" if key.name in SECTION_OF else PAGES.get(key.name)
    return f"{key.help} ([more]({page}))" if page else key.help


def slug(heading: str) -> str:
    """The anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        same = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        if not same:
            print(f"{TARGET.relative_to(ROOT)} is not up to date: run scripts/make_reference.py", file=sys.stderr)
        return 0 if same else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
