"""docs/reference/configuration.md: short cells, complete values, others' defaults, and the marks of a resume."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from folders import REPOSITORY
from needs import package
from spillway.cli.help import MAIN, described
from spillway.config import resolve
from spillway.config.foreign import FOREIGN
from spillway.config.keys import GROUPS, KEYS
from spillway.errors import InputError
from spillway.output.state import check_keys, fixed_keys

sys.path.append(str(REPOSITORY / "scripts"))
import make_migration  # noqa: E402
import make_reference  # noqa: E402
from reference_sections import COMMON, DEFAULTS, SAME, SECTIONS  # noqa: E402

LONGEST_CELL = 330  # characters
LONGEST_HELP = 2  # lines of --help-all, without a list of values
TEXT = make_reference.TARGET.read_text(encoding="utf-8")
# Objectives, and the classes of transformers, TRL and PEFT with their defaults.
CLASSES = {
    "TrainingArguments": ["sft"],
    "TRL": ["sft", "dpo", "kto", "reward", "grpo"],
    "PEFT": ["sft"],
}
CONFIGS = {"sft": "SFTConfig", "dpo": "DPOConfig", "kto": "KTOConfig", "reward": "RewardConfig", "grpo": "GRPOConfig"}
NOT_GIVEN = (None, "", [], {})
ALIKE = {  # defaults that are spelt otherwise and mean the same
    "completion_only_loss": "None is true for rows with a completion",
    "data_seed": "None is `seed`",
    "eval_packing": "None is `packing`",
    "loss_type": "TRL's nll is the loss of `sft`",
    "model_revision": "None is main",
}


def read_rows(heading: str) -> list[list[str]]:
    """Rows of the first table below a heading, without its head."""
    return read_table(heading)[2:]


def read_table(heading: str) -> list[list[str]]:
    part = TEXT.split(f"\n{heading}\n")[1].split("\n#")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def read_marks() -> dict[str, str]:
    """The cell of each key in the column `resume`."""
    marks = {}
    for title in GROUPS:
        head, _, *rows = read_table(f"## {title}")
        marks |= {row[0].strip("`"): dict(zip(head, row, strict=True)).get("resume", "") for row in rows}
    return marks


def test_page_is_made_from_the_tables() -> None:
    script = REPOSITORY / "scripts" / "make_reference.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


def test_cells_of_the_page_are_short() -> None:
    cells = [cell for line in TEXT.splitlines() if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line)]
    assert len(cells) > 500
    assert [cell for cell in cells if len(cell.strip()) > LONGEST_CELL] == []


@pytest.mark.parametrize("name", KEYS)
def test_help_of_a_key_has_two_lines(name: str) -> None:
    lines = described(KEYS[name])
    listed = len(", ".join(KEYS[name].kind.names)) > make_reference.LONGEST_LIST
    assert len(lines) <= LONGEST_HELP + listed, lines


def test_each_key_has_a_row_under_its_heading() -> None:
    for title, keys in GROUPS.items():
        assert [row[0].strip("`") for row in read_rows(f"## {title}")] == [key.name for key in keys]


def test_common_keys_come_first_with_links_to_their_tables() -> None:
    rows = read_rows("## Common keys")
    assert len(rows) == len(COMMON) == 25 and {*MAIN} <= {*COMMON}
    for link, *_ in rows:
        name, anchor = re.findall(r"^\[`(\w+)`\]\(#([\w-]+)\)$", link)[0]
        assert anchor == make_reference.slug(next(title for title, keys in GROUPS.items() if KEYS[name] in keys))
    assert TEXT.index("## Common keys") < min(TEXT.index(f"\n## {title}\n") for title in GROUPS)


@pytest.mark.parametrize("title", SECTIONS)
def test_sections_explain_each_value_of_their_keys(title: str) -> None:
    """Each value of a choice is in its section, or in the line of its key."""
    for section in SECTIONS[title]:
        words = " ".join([*section.head, *section.notes, *(cell for row in section.rows for cell in row)])
        for name in section.keys:
            text = f"{words} {KEYS[name].help}"
            assert [it for it in KEYS[name].kind.names if not re.search(rf"(?:`|: ){it}`", text)] == [], name


@pytest.mark.parametrize(("name", "mark"), read_marks().items())
def test_a_resume_refuses_another_value_of_each_kept_key(name: str, mark: str, tmp_path: Path) -> None:
    if name in ("model", "model_revision", "dataset", "teacher"):
        return  # compared by files and commits: test_origins, test_hub, test_distill
    config = resolve({"model": str(tmp_path)}, {})
    saved = fixed_keys(config) | {name: "another"}
    if mark == make_reference.KEPT:
        with pytest.raises(InputError, match=f"^{name}: the run was started with another, a resume cannot change it"):
            check_keys(saved, config)
    else:
        check_keys(saved, config)


def test_refused_keys_of_other_tools_are_on_the_page_of_migration() -> None:
    page = make_migration.TARGET.read_text(encoding="utf-8")
    assert [name for name in FOREIGN if f"`{name}`" not in page] == []
    assert [name for name in FOREIGN if f"| `{name}` |" in TEXT and name not in KEYS] == []


def read_defaults(config: type) -> dict[str, Any]:
    """Defaults of a dataclass by the names of our keys; PEFT's begin with lora_."""
    defaults = {}
    for field in dataclasses.fields(config):
        name = next((key for key in (field.name, f"lora_{field.name}") if key in KEYS), None)
        factory = field.default_factory
        if name is not None and field.default is not dataclasses.MISSING:
            defaults[name] = field.default
        elif name is not None and factory is not dataclasses.MISSING:
            defaults[name] = factory()
    return defaults


def read_default(name: str, given: dict[str, Any]) -> Any:
    """Our default of a key: resolved, or else as the reference states it."""
    value = getattr(resolve(given, {}), name)
    return KEYS[name].default_text or None if value in NOT_GIVEN else value


def is_same(name: str, theirs: Any, own: Any) -> bool:
    if isinstance(theirs, list) and len(theirs) == 1:
        theirs = theirs[0]
    if theirs in NOT_GIVEN or own in NOT_GIVEN or str(theirs) == "none":
        return own in NOT_GIVEN or own == KEYS[name].default_text
    try:
        return bool(KEYS[name].kind.parse(theirs) == KEYS[name].kind.parse(own))
    except ValueError:
        return False


@pytest.mark.parametrize(("column", "tool"), [*enumerate(CLASSES, 2)])
def test_list_of_differing_defaults_is_that_of_the_installed_library(column: int, tool: str) -> None:
    package("trl", "TRL is not installed: its defaults are not compared")
    package("peft", "PEFT is not installed: its defaults are not compared")
    import peft
    import transformers
    import trl

    listed = {row[0]: row[column] for row in DEFAULTS if row[column] not in ("", SAME)}
    differing = {}
    for objective in CLASSES[tool]:
        given: dict[str, Any] = {"objective": objective, "eval_dataset": "rows.jsonl"}
        given |= {"method": "lora"} if tool == "PEFT" else {}
        given |= {"reward_funcs": ["rewards.score"]} if objective == "grpo" else {}
        own = {"TrainingArguments": transformers.TrainingArguments, "PEFT": peft.LoraConfig}.get(tool)
        theirs = read_defaults(own or getattr(trl, CONFIGS[objective]))
        same = {name for name, value in theirs.items() if is_same(name, value, read_default(name, given))}
        differing |= {name: theirs[name] for name in theirs.keys() - same - ALIKE.keys()}
    assert differing.keys() == listed.keys()
    assert {name: as_text(value) for name, value in differing.items()} == listed


def as_text(value: Any) -> str:
    if isinstance(value, float) and value and value < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return str(value).lower()
