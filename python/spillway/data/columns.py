"""What the columns of a row mean: a text, a prompt with its completion, or a conversation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spillway.config import Config
from spillway.data.sources import Record
from spillway.errors import InputError

ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}


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
class Messages:
    where: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True)
class Preferred:
    """Texts, or all three messages."""

    where: str
    prompt: Any
    chosen: Any
    rejected: Any
    options: dict[str, Any]  # of the chat template


Example = Text | Pair | Messages | Preferred


@dataclass(frozen=True)
class Columns:
    """How to read every row of one source."""

    kind: str  # "text", "pair", "messages", "preference"
    names: tuple[str, ...]  # text; prompt parts and, last, the completion; messages; prompt, chosen and rejected
    optional: str = ""  # a prompt part that may be missing or empty
    joint: str = ""  # stands after each part of the prompt

    def example(self, record: Record) -> Example:
        """Raises InputError with the row's place when a column is missing or of another type."""
        if self.kind == "text":
            return Text(record.where, text_of(record, self.names[0]))
        if self.kind == "messages":
            return Messages(record.where, messages_of(record, self.names[0]))
        if self.kind == "preference":
            return preferred(record)
        *parts, completion = self.names
        texts = [text_of(record, part) for part in parts if part != self.optional or record.row.get(part)]
        return Pair(record.where, "".join(text + self.joint for text in texts), text_of(record, completion))


def chosen(config: Config) -> Columns | None:
    """The columns that the configuration names, if it does, or that its objective has."""
    if config.objective == "dpo":
        return PREFERENCE
    if config.dataset_text_field is not None:
        return Columns("text", (config.dataset_text_field,))
    if config.messages_field is not None:
        return Columns("messages", (config.messages_field,))
    if config.prompt_field is not None:
        return Columns("pair", (config.prompt_field, config.completion_field))
    return None


def by_name(record: Record) -> Columns:
    """The columns found in the first row of a source."""
    found = record.row.keys()
    for names, columns in KNOWN:
        if found >= set(names):
            return columns
    raise InputError(
        f"{record.where}: no known columns among {listed(record)}; expects messages, prompt and completion, text, "
        "question and answer, instruction and output, or conversations; or name them with dataset_text_field, "
        "prompt_field and completion_field, or messages_field"
    )


KNOWN = (
    (("messages",), Columns("messages", ("messages",))),
    (("prompt", "completion"), Columns("pair", ("prompt", "completion"))),
    (("text",), Columns("text", ("text",))),
    (("question", "answer"), Columns("pair", ("question", "answer"), joint="\n")),
    (("instruction", "output"), Columns("pair", ("instruction", "input", "output"), optional="input", joint="\n")),
    (("conversations",), Columns("messages", ("conversations",))),
)


PREFERENCE = Columns("preference", ("prompt", "chosen", "rejected"))


def preferred(record: Record) -> Preferred:
    """The pair as TRL's datasets have it; where a record has no prompt, it is the beginning that chosen and rejected
    share."""
    for name in ("chosen", "rejected"):
        column(record, name)
    given = record.row
    columns = {name: given[name] for name in PREFERENCE.names if given.get(name) is not None}
    kinds = {type(value) for value in columns.values()}
    if kinds == {list}:
        columns = {name: messages_of(record, name) if columns[name] else [] for name in columns}
    elif kinds != {str}:
        told = ", ".join(
            f"{name} is {'text' if type(each) is str else type(each).__name__}" for name, each in columns.items()
        )
        raise InputError(
            f"{record.where}: {told}; prompt, chosen and rejected are texts, or lists of messages, all three"
        )
    if "prompt" not in columns:
        columns = without_prompt(columns["chosen"], columns["rejected"])
    return Preferred(record.where, columns["prompt"], columns["chosen"], columns["rejected"], template_options(record))


def without_prompt(chosen: Any, rejected: Any) -> dict[str, Any]:
    """The common beginning as the prompt; a space before the first difference belongs to the completions."""
    shorter = min(len(chosen), len(rejected))
    place = next((place for place in range(shorter) if chosen[place] != rejected[place]), max(0, shorter - 1))
    if place and chosen[place - 1] == " ":
        place -= 1
    return {"prompt": chosen[:place], "chosen": chosen[place:], "rejected": rejected[place:]}


def template_options(record: Record) -> dict[str, Any]:
    """The columns tools (a list, or that as JSON) and chat_template_kwargs, where they are there."""
    tools = record.row.get("tools")
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except ValueError:
        raise InputError(f"{record.where}: the column 'tools' is not valid JSON") from None
    more = record.row.get("chat_template_kwargs") or {}
    if not isinstance(more, dict):
        raise InputError(f"{record.where}: the column 'chat_template_kwargs' is no mapping")
    return {**({"tools": tools} if tools else {}), **more}


def listed(record: Record) -> str:
    return ", ".join(repr(name) for name in record.row) or "none"


def column(record: Record, name: str) -> Any:
    if name not in record.row:
        raise InputError(f"{record.where}: the column {name!r} is missing; found {listed(record)}")
    return record.row[name]


def text_of(record: Record, name: str) -> str:
    value = column(record, name)
    if not isinstance(value, str):
        raise InputError(f"{record.where}: the column {name!r} is {type(value).__name__}; expects text")
    return value


def messages_of(record: Record, name: str) -> list[dict[str, Any]]:
    value = column(record, name)
    if not isinstance(value, list) or not value:
        raise InputError(f"{record.where}: the column {name!r} is not a list of messages")
    return [message_of(record, name, message) for message in value]


def message_of(record: Record, name: str, message: Any) -> dict[str, Any]:
    """A message with role and content; ShareGPT's from and value are renamed."""
    if isinstance(message, dict) and "from" in message and "value" in message:
        message = {"role": ROLES.get(message["from"], message["from"]), "content": message["value"]}
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
        raise InputError(f"{record.where}: a message in {name!r} has no role and content")
    return message
