"""What the columns of a row mean: a text, a prompt with its completion, or a conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spillway.config import Config
from spillway.config.objective_keys import join
from spillway.config.objectives import ANSWERS, GROUP, JUDGED, PAIR
from spillway.config.row_keys import ALPACA, CHAT, LINES
from spillway.data.files import Record
from spillway.data.groups import IDS, Group, read_group
from spillway.data.instructions import read_as_chat, read_history, read_optional, write_alpaca_prompt
from spillway.data.labels import LabelColumns, Labelled
from spillway.data.turns import (
    OPTION_COLUMNS,
    Messages,
    check_encodable,
    list_columns,
    read_answered,
    read_column,
    read_column_text,
    read_conversation,
    read_system_turns,
    read_template_options,
    read_turns,
)
from spillway.errors import InputError

__all__ = ["Columns", "Example", "Messages", "Pair", "Preferred", "Text", "by_name", "chosen", "without_prompt"]

ALPACA_CONTEXT = ("system", "history")  # columns that precede the instruction


@dataclass(frozen=True)
class Text:
    where: str
    text: str


@dataclass(frozen=True)
class Pair:
    where: str
    prompt: str
    completion: str


@dataclass(frozen=True)
class Preferred:
    """Texts, or all three messages."""

    where: str
    prompt: Any
    chosen: Any
    rejected: Any
    options: dict[str, Any]  # of the chat template


@dataclass(frozen=True)
class Judged:
    """One answer, text or messages as its prompt is, and whether it is a good one."""

    where: str
    prompt: Any
    completion: Any
    label: bool
    options: dict[str, Any]  # of the chat template


@dataclass(frozen=True)
class Ranked:
    """A pair of whole rows for a reward model, texts or messages, all three."""

    where: str
    prompt: Any  # what both begin with; empty: nothing
    chosen: Any
    rejected: Any
    margin: float | None  # the least difference of their rewards; None: the row has none
    options: dict[str, Any]  # of the chat template


Example = Text | Pair | Messages | Preferred | Judged | Ranked | Group | Labelled


@dataclass(frozen=True)
class Columns:
    """How to read every row of one source."""

    kind: str  # "text", "pair", "messages", "preference"
    names: tuple[str, ...]  # text; prompt parts and, last, the completion; messages; prompt, chosen and rejected
    optional: str = ""  # a prompt part that may be missing or empty
    joint: str = ""  # stands after each part of the prompt
    context: tuple[str, ...] = ()  # columns that precede the prompt, if they are not empty
    answered: tuple[str, ...] = ()  # columns that cannot be empty
    template: str = LINES  # of instructions: `prompt_template`

    def example(self, record: Record) -> Example:
        """Raises InputError with the row's place when a column is missing or of another type."""
        for name in sorted(self.used_names(record)):
            check_encodable(record.where, name, record.row.get(name))
        example = self.read(record)
        if isinstance(
            example, (Messages, Preferred, Judged, Ranked, Group)
        ):  # JSON inside the columns has escapes of its own
            check_encodable(record.where, "tools", example.options)
        if isinstance(example, Messages):
            check_encodable(record.where, self.names[0], example.messages)
        return example

    def read(self, record: Record) -> Example:
        if self.kind == "text":
            return Text(record.where, read_column_text(record, self.names[0]))
        if self.kind == "messages":
            return read_conversation(record, self.names[0])
        if self.kind in READERS:
            found = READERS[self.kind](record)
            for name in self.answered:
                if not getattr(found, name):
                    raise InputError(f"{record.where}: the column {name!r} is empty; there is no answer to learn from")
            return found
        if self.has_messages(record):
            return read_answered(record, *self.names)
        if self.template == CHAT:
            return read_as_chat(record)
        if self.template == ALPACA:
            return Pair(record.where, write_alpaca_prompt(record), read_column_text(record, self.names[-1]))
        *parts, completion = self.names
        texts = [read_column_text(record, part) for part in parts if part != self.optional or record.row.get(part)]
        texts = (read_context_texts(record) if self.context else []) + texts
        return Pair(record.where, "".join(text + self.joint for text in texts), read_column_text(record, completion))

    def has_messages(self, record: Record) -> bool:
        """True if a prompt and its completion are lists of messages."""
        return len(self.names) == 2 and any(isinstance(record.row.get(name), list) for name in self.names)

    def used_names(self, record: Record) -> set[str]:
        """The columns that `example` reads."""
        names = {*self.names, *self.context, *(("prompt", "margin") if self.kind == "ranked" else ())}
        if self.kind == "group":
            return {*names, *IDS, *(OPTION_COLUMNS if isinstance(record.row.get("prompt"), list) else ())}
        if self.kind == "judged" and isinstance(record.row.get("completion"), list):
            return names | set(OPTION_COLUMNS)
        lists = self.kind == "messages" or (self.kind != "text" and isinstance(record.row.get(self.names[-1]), list))
        return names | set(OPTION_COLUMNS) if lists else names


def read_context_texts(record: Record) -> list[str]:
    """Alpaca's system text, and the questions and answers of its history."""
    system = read_optional(record, "system")
    return ([system] if system else []) + [text for pair in read_history(record) for text in pair]


def chosen(config: Config) -> Columns | LabelColumns | None:
    """The columns that the configuration names, if it does, or that its objective has."""
    if config.objective_entry.is_labelled:
        return LabelColumns.choose(config)
    if config.objective_entry.columns:
        columns = COMPARED[config.objective_entry.columns]
        return replace(columns, answered=config.objective_entry.answers)
    if config.dataset_text_field is not None:
        return Columns("text", (config.dataset_text_field,))
    if config.messages_field is not None:
        return Columns("messages", (config.messages_field,))
    if config.prompt_field is not None:
        return Columns("pair", (config.prompt_field, config.completion_field))
    return None


def by_name(record: Record, template: str = LINES) -> Columns:
    """The columns found in the first row of a source. `template`: of rows of instructions, `prompt_template`."""
    found = record.row.keys()
    for names, columns in KNOWN:
        if found >= set(names):
            return write_with(columns, template, record.where)
    hints = "".join(f"; {hint}" for name, hint in COLUMN_HINTS.items() if name in found)
    raise InputError(
        f"{record.where}: no known columns among {list_columns(record)}{hints}; expects messages, prompt and "
        "completion, text, question and answer, instruction and output, or conversations; or name them with "
        "dataset_text_field, prompt_field and completion_field, or messages_field"
    )


def write_with(columns: Columns, template: str, where: str) -> Columns:
    """The columns with the template of their prompt. InputError where they have no instruction."""
    if template != LINES and columns.context != ALPACA_CONTEXT:
        raise InputError(
            f"prompt_template: {template} is for rows with instruction and output, and {where} has "
            f"{join(columns.names)}; leave it out"
        )
    return replace(columns, template=template)


def is_row(names: dict[str, Any]) -> bool:
    """True if the names are columns of one row, rather than names of lists of rows."""
    return any(names.keys() >= set(columns) for columns, _ in KNOWN) or names.keys() >= {"chosen", "rejected"}


COLUMN_HINTS = {
    "rejected": "pairs need `objective: dpo`, `orpo`, `cpo` or `reward`",
    "preferred_output": "name OpenAI's pairs prompt, chosen and rejected, and set `objective: dpo`",
    "completions": "groups of completions need `objective: grpo`",
    "ner_tags": "labels of words need `objective: token-classification`",
    "input_ids": "rows of tokens are not read, so give the texts",
}

KNOWN = (
    (("messages",), Columns("messages", ("messages",))),
    (("prompt", "completion"), Columns("pair", ("prompt", "completion"))),
    (("text",), Columns("text", ("text",))),
    (("question", "answer"), Columns("pair", ("question", "answer"), joint="\n")),
    (
        ("instruction", "output"),
        Columns("pair", ("instruction", "input", "output"), optional="input", joint="\n", context=ALPACA_CONTEXT),
    ),
    (("conversations",), Columns("messages", ("conversations",))),
)


PREFERENCE = Columns("preference", PAIR)
# the columns of objectives that compare rows
COMPARED = {
    each.names: each
    for each in (PREFERENCE, Columns("judged", JUDGED), Columns("ranked", ANSWERS), Columns("group", GROUP))
}


def preferred(record: Record) -> Preferred:
    """The pair as TRL's datasets have it; where a record has no prompt, it is the beginning that chosen and rejected
    share."""
    for name in ("chosen", "rejected"):
        read_column(record, name)
    columns: dict[str, Any] = {name: record.row[name] for name in PREFERENCE.names if name in record.row}
    kinds = {type(value) for value in columns.values()}
    if kinds == {list}:
        columns = {name: read_preferred_turns(record, name) if columns[name] else [] for name in columns}
    elif kinds != {str}:
        types = ", ".join(f"{name} is {type_name(each)}" for name, each in columns.items())
        raise InputError(
            f"{record.where}: {types}; prompt, chosen and rejected are texts, or lists of messages, all three"
        )
    if "prompt" not in columns:
        columns = without_prompt(columns["chosen"], columns["rejected"])
    if kinds == {str}:
        return Preferred(record.where, columns["prompt"], columns["chosen"], columns["rejected"], {})
    prompt = read_system_turns(record, columns["prompt"]) + columns["prompt"]
    return Preferred(record.where, prompt, columns["chosen"], columns["rejected"], read_template_options(record))


def read_judged(record: Record) -> Judged:
    """An answer with its label, as TRL's KTOTrainer takes them."""
    prompt, completion, label = (read_column(record, name) for name in JUDGED)
    if not isinstance(label, bool):
        raise InputError(f"{record.where}: label is {type_name(label)}; expects true or false")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Judged(record.where, prompt, completion, label, {})
    if not isinstance(prompt, list) or not isinstance(completion, list):
        raise InputError(
            f"{record.where}: prompt is {type_name(prompt)}, completion is {type_name(completion)}; expects two texts, "
            "or two lists of messages"
        )
    turns = [read_preferred_turns(record, name) if record.row[name] else [] for name in JUDGED[:2]]
    return Judged(
        record.where, read_system_turns(record, turns[0]) + turns[0], turns[1], label, read_template_options(record)
    )


def read_ranked(record: Record) -> Ranked:
    """A pair as TRL's RewardTrainer takes it."""
    for name in ANSWERS:
        read_column(record, name)
    margin = record.row.get("margin")
    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, int | float)):
        raise InputError(f"{record.where}: margin is {type_name(margin)}; expects a number")
    columns: dict[str, Any] = {name: record.row[name] for name in PREFERENCE.names if name in record.row}
    kinds = {type(value) for value in columns.values()}
    number = None if margin is None else float(margin)
    if kinds == {str}:
        return Ranked(record.where, columns.get("prompt", ""), columns["chosen"], columns["rejected"], number, {})
    if kinds != {list}:
        types = ", ".join(f"{name} is {type_name(each)}" for name, each in columns.items())
        raise InputError(f"{record.where}: {types}; chosen, rejected and prompt are texts, or lists of messages, all")
    turns = {name: read_preferred_turns(record, name) if columns[name] else [] for name in columns}
    first = next(iter(turns.values()))
    prompt = read_system_turns(record, first) + turns.get("prompt", [])
    return Ranked(record.where, prompt, turns["chosen"], turns["rejected"], number, read_template_options(record))


def read_preferred_turns(record: Record, name: str) -> list[dict[str, Any]]:
    turns = read_turns(record, name)
    if any(turn.pop("weight", 1) == 0 for turn in turns):
        raise InputError(f"{record.where}: a message in {name!r} has weight 0, and pairs have no turns without loss")
    return turns


def type_name(value: Any) -> str:
    return "null" if value is None else "text" if isinstance(value, str) else type(value).__name__


def without_prompt(chosen: Any, rejected: Any) -> dict[str, Any]:
    """The common beginning as the prompt; a space before the first difference belongs to the completions."""
    shorter = min(len(chosen), len(rejected))
    place = next((place for place in range(shorter) if chosen[place] != rejected[place]), max(0, shorter - 1))
    if place and chosen[place - 1] == " ":
        place -= 1
    return {"prompt": chosen[:place], "chosen": chosen[place:], "rejected": rejected[place:]}


READERS: dict[str, Callable[[Record], Any]] = {
    "preference": preferred,
    "judged": read_judged,
    "ranked": read_ranked,
    "group": read_group,
}
