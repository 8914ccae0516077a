"""What rows hold besides text. A multimodal model is trained on text alone, so all of it is refused, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spillway.data.sources import Record
from spillway.errors import InputError

KINDS = {"image": "an image", "video": "a video", "audio": "audio"}
COLUMNS = {*KINDS, *(f"{kind}s" for kind in KINDS), "pixel_values", "input_features"}
PARTS = {*KINDS, *(f"{kind}_url" for kind in KINDS), *(f"input_{kind}" for kind in KINDS)}  # types of parts of messages
TEXT_ALONE = "a multimodal model is trained on text alone in this release; leave out such rows, or what they show"


@dataclass(frozen=True)
class Media:
    """What stands for other things than text, for one model; nothing of a model that has text alone."""

    tokens: Mapping[int, str] = field(default_factory=dict)  # placeholders in the model's vocabulary, by what they are
    columns: bool = False  # whether columns are looked at

    def check_record(self, record: Record) -> None:
        """InputError where a row has images, videos or audio in a column or in a message."""
        for name in sorted(COLUMNS & record.row.keys()) if self.columns else ():
            if record.row[name] not in (None, [], "", {}):
                raise InputError(f"{record.where}: the column {name!r} holds something; {TEXT_ALONE}")
        for value in record.row.values():
            if isinstance(value, list) and (found := part_of(value)):
                raise InputError(f"{record.where}: a message has a part of type {found!r}; {TEXT_ALONE}")

    def check_tokens(self, where: str, ids: Sequence[int], tokenizer: Any) -> None:
        """InputError where a token stands for an image, a video or audio."""
        if self.tokens and (found := self.tokens.keys() & set(ids)):
            token = min(found)
            said = tokenizer.convert_ids_to_tokens(token)
            raise InputError(f"{where}: the token {said!r} ({token}) stands for {self.tokens[token]}; {TEXT_ALONE}")


TEXT = Media()  # of a model of text


def media_of(config: Any) -> Media:
    """By a model's configuration."""
    from spillway.model.source.source import is_multimodal

    if not is_multimodal(config):
        return TEXT
    found = {}
    for kind, said in KINDS.items():
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if isinstance(token := getattr(config, name, None), int):
                found[token] = said
    return Media(found, columns=True)


def part_of(messages: list[Any]) -> str | None:
    """The type of the first part of a message that is no text."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in PARTS:
                return str(part["type"])
    return None
