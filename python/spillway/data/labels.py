"""Rows with labels: which columns hold them, and which labels a model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spillway.config import Config
from spillway.data.files import Record
from spillway.data.turns import (
    OPTION_COLUMNS,
    check_encodable,
    list_columns,
    read_column,
    read_column_text,
    read_conversation,
)
from spillway.errors import InputError

CONTENTS = ("messages", "text", "prompt", "sentence")
# two texts of a row that are classified together, as datasets of transformers' run_glue.py have them
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"))
WORDS = ("tokens",)
LABELS = ("label", "labels")
WORD_LABELS = ("ner_tags", "labels")
IGNORED = -100  # the label of a token that has none


@dataclass(frozen=True)
class Labelled:
    """A row with what its label column holds."""

    where: str
    content: Any  # a text; a conversation, `turns.Messages`; a list of words
    label: Any
    column: str  # of the label
    pair: str | None = None  # the second of two texts
    options: dict[str, Any] = field(default_factory=dict)  # of the chat template


@dataclass(frozen=True)
class LabelColumns:
    """Columns of rows with labels, each the first one of its list that a row has."""

    contents: tuple[str, ...]
    labels: tuple[str, ...]
    has_words: bool
    pairs: tuple[tuple[str, str], ...] = ()  # columns of two texts

    @classmethod
    def choose(cls, config: Config) -> LabelColumns:
        has_words = config.objective_entry.labels_words
        named, second = config.dataset_text_field or config.messages_field, config.text_pair_field
        contents = (named,) if named else WORDS if has_words else CONTENTS
        labels = (config.label_field,) if config.label_field else WORD_LABELS if has_words else LABELS
        pairs = ((named, second),) if second else () if named or has_words else PAIRS
        return cls(contents, labels, has_words, pairs)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.contents[0], self.labels[0])

    def example(self, record: Record) -> Labelled:
        """InputError with the row's place when a column is missing or of another type."""
        for name in sorted(self.used_names(record)):
            check_encodable(record.where, name, record.row.get(name))
        label = find_column(record, self.labels)
        if (names := self.find_pair(record)) is not None:
            first, second = (read_column_text(record, name) for name in names)
            return Labelled(record.where, first, read_column(record, label), label, second)
        content = find_column(record, self.contents)
        read = read_words if self.has_words else read_content
        return Labelled(record.where, read(record, content), read_column(record, label), label)

    def find_pair(self, record: Record) -> tuple[str, str] | None:
        """The columns of the row's two texts; None: it has one. InputError where the named one is missing."""
        if len(self.pairs) == 1:
            for name in self.pairs[0]:
                find_column(record, (name,))
        if any(
            name in record.row for name in self.contents if name not in {each for pair in self.pairs for each in pair}
        ):
            return None
        return next((names for names in self.pairs if record.row.keys() >= set(names)), None)

    def used_names(self, record: Record) -> set[str]:
        """The columns that `example` reads."""
        if (names := self.find_pair(record)) is not None:
            return {*names, find_column(record, self.labels)}
        content = find_column(record, self.contents)
        options = OPTION_COLUMNS if isinstance(record.row[content], list) and not self.has_words else ()
        return {content, find_column(record, self.labels), *options}


def find_column(record: Record, names: tuple[str, ...]) -> str:
    """The first of these columns that the row has. InputError where it has none."""
    column = next((name for name in names if name in record.row), None)
    if column is None:
        what = " or ".join(repr(name) for name in names)
        raise InputError(f"{record.where}: the column {what} is missing; found {list_columns(record)}")
    return column


def read_content(record: Record, name: str) -> Any:
    value = record.row[name]
    if isinstance(value, list):
        return read_conversation(record, name)
    if not isinstance(value, str):
        raise InputError(
            f"{record.where}: the column {name!r} is {type(value).__name__}; expects text, or a list of messages"
        )
    return value


def read_words(record: Record, name: str) -> list[str]:
    value = record.row[name]
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise InputError(f"{record.where}: the column {name!r} is no list of words")
    return value


@dataclass(frozen=True)
class Classes:
    """The labels of a model's head."""

    count: int
    ids: Mapping[str, int]  # by name
    is_exact: bool = True  # one class for each row or word
    is_multiple: bool = False  # any number of classes for each row; neither: numbers

    def find(self, row: Labelled) -> Any:
        """The label of a row as the loss takes it: a class, or `count` numbers. InputError for anything else."""
        if self.is_exact:
            return self.find_class(row, row.label)
        if self.is_multiple:
            return self.find_classes(row)
        values = row.label if isinstance(row.label, list) else [row.label]
        if len(values) != self.count:
            raise InputError(f"{row.where}: {row.column} holds {len(values)} numbers; expects {self.count}")
        return [read_number(row, value) for value in values]

    def find_classes(self, row: Labelled) -> list[float]:
        """1 for each class that the row has, and 0 for the others."""
        if not isinstance(row.label, list):
            raise InputError(f"{row.where}: {row.column} is no list; expects names of labels, or a 0 or 1 for each")
        if all(isinstance(each, str) for each in row.label):
            chosen = {self.find_class(row, name) for name in row.label}
            return [float(number in chosen) for number in range(self.count)]
        values = [read_number(row, value) for value in row.label]
        if len(values) != self.count or not set(values) <= {0.0, 1.0}:
            raise InputError(f"{row.where}: {row.column} is {row.label}; expects a 0 or 1 for each of {self.count}")
        return values

    def find_each(self, row: Labelled) -> list[int]:
        """The classes of a row's words; IGNORED for a word that has none."""
        words = len(row.content)
        if not isinstance(row.label, list) or len(row.label) != words:
            kind = f"has {len(row.label)} entries" if isinstance(row.label, list) else "is no list"
            raise InputError(f"{row.where}: {row.column} {kind}; expects a label for each of {words} words")
        return [IGNORED if label == IGNORED else self.find_class(row, label) for label in row.label]

    def find_class(self, row: Labelled, label: Any) -> int:
        if isinstance(label, str):
            number = self.ids.get(label, int(label) if label.strip().isdecimal() else -1)
        else:
            number = int(label) if isinstance(label, int) or (isinstance(label, float) and label.is_integer()) else -1
        if not 0 <= number < self.count:
            names = ", ".join(list(self.ids)[:8]) + (" ..." if len(self.ids) > 8 else "")
            raise InputError(
                f"{row.where}: {row.column} has {label!r}; expects a whole number from 0 to {self.count - 1}, or one "
                f"of {names}"
            )
        return number


def read_number(row: Labelled, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) < float("inf"):
        raise InputError(f"{row.where}: {row.column} has {value!r}; expects a number")
    return number
