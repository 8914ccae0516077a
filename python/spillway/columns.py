"""What the columns of a row mean: a text, a prompt with its completion, or a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spillway.config import Config
from spillway.errors import InputError
from spillway.sources import Record

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


Example = Text | Pair | Messages


@dataclass(frozen=True)
class Columns:
    """How to read every row of one source."""

    kind: str  # "text", "pair", "messages"
    names: tuple[str, ...]  # text; prompt parts and, last, the completion; messages
    optional: str = ""  # a prompt part that may be missing or empty
    joint: str = ""  # stands after each part of the prompt

    def example(self, record: Record) -> Example:
        """Raises InputError with the row's place when a column is missing or of another type."""
        if self.kind == "text":
            return Text(record.where, text_of(record, self.names[0]))
        if self.kind == "messages":
            return Messages(record.where, messages_of(record, self.names[0]))
        *parts, completion = self.names
        texts = [text_of(record, part) for part in parts if part != self.optional or record.row.get(part)]
        return Pair(record.where, "".join(text + self.joint for text in texts), text_of(record, completion))


def chosen(config: Config) -> Columns | None:
    """The columns that the configuration names, if it does."""
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
