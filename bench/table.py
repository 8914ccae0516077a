"""bench/results/README.md: the claims, each number read from the file that holds it.

    python bench/table.py           writes it
    python bench/table.py --check   says whether it is what the files say; exit code 1 where it is not

The rows are bench/table.toml. One that is `pending` is left out until its file is there.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from recorded import RESULTS, filled, words

ROWS = Path(__file__).with_suffix(".toml")
PAGE = RESULTS / "README.md"
TEXTS = ("topic", "claim", "how", "number", "set", "machine", "date", "command", "file", "pending")

HEAD = """# Claims and their files

<!-- Made by bench/table.py from bench/table.toml and the files beside; not to be edited. -->

Each number is read from the file of its claim. Repeats of a measurement are all quoted, or the claim says how they were
combined. A step's time is the median of a process without its first step. The steps of one micro-batch in
headline.json are without their first two. Other trials are in
[the notes](../../docs/notes/README.md). No claim rests on them.

`0.5B`, `1.5B` and the like are shapes of Qwen2.5 with random weights, unless a claim says otherwise.
"""
OTHERS = """## Other files

No claim above quotes these files. Three of them hold the plans of whole pages: `machines.json` of
[machines](../../docs/machines.md), `smallest.json` of [the smallest GPU memory](../../docs/gpu-memory.md), and
`papers.json` of [other systems' papers](../../docs/papers.md). README takes its times for an RTX 4090 from
`machines.json`.
"""
CLAIM = """### {claim}

{how}

{numbers}

{machine}, {date}. `{command}` made [{file}]({file}).
"""


def rows() -> list[dict[str, Any]]:
    found = tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"]
    return [row for row in found if not row.get("pending") or (RESULTS / row["file"]).is_file()]


def read_text(row: dict[str, Any], key: str) -> str:
    """A text, or what a file says at a place."""
    value = row[key]
    return words(value) if re.match(r"[\w-]+\.jsonl?:", value) else value


def describe(row: dict[str, Any]) -> str:
    """The section of a claim. Semicolons of its number part the lines of a list."""
    figures = {name: value for name, value in row.items() if name not in TEXTS}
    numbers = filled(row["number"], figures).split("; ")
    return CLAIM.format(
        claim=row["claim"],
        how=row["how"],
        numbers="\n".join(f"- {number}" for number in numbers),
        machine=read_text(row, "machine"),
        date=read_text(row, "date").split()[0],
        command=read_text(row, "command"),
        file=row["file"],
    )


def sections() -> str:
    """A section for each topic, in the order of their first rows."""
    topics: dict[str, list[str]] = {}
    for row in rows():
        topics.setdefault(row["topic"], []).append(describe(row))
    return "\n".join(f"\n## {topic}\n\n" + "\n".join(claims) for topic, claims in topics.items())


def others() -> list[str]:
    """Files that no row quotes."""
    quoted = {row["file"] for row in rows()}
    return sorted(path.name for path in RESULTS.iterdir() if path.suffix != ".md" and path.name not in quoted)


def page() -> str:
    links = "\n".join(f"- [{name}]({name})" for name in others())
    return f"{HEAD}{sections()}\n{OTHERS}\n{links}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE} is not what bench/table.py makes of the files: run it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
