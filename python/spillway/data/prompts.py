"""Prompts of a run that samples their completions itself."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spillway.data.chat import template_ids
from spillway.data.origins import ROWS, RowsDigest, digest_tokenizer
from spillway.data.sources import is_document, read
from spillway.data.turns import (
    Messages,
    check_encodable,
    read_column,
    read_system_turns,
    read_template_options,
    read_turns,
)
from spillway.errors import InputError

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.data.encode import Encoder
    from spillway.data.files import Record

COLUMN = "prompt"


@dataclass(frozen=True)
class Prompt:
    """One row. `given`: a text, or messages; `columns`: the others, for reward functions."""

    where: str
    given: Any
    ids: tuple[int, ...]
    columns: dict[str, Any]


@dataclass
class Prompts:
    """The rows in file order. `room`: the most tokens of a completion; `pad`: fills rows of a micro-batch up."""

    prompts: list[Prompt]
    room: int
    pad: int
    origins: dict[str, str]
    packed_rows: float = 1.0
    dropped: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with a completion."""
        return max(len(each.ids) for each in self.prompts) + self.room

    @property
    def largest_token(self) -> int:
        return max(max(each.ids) for each in self.prompts)

    def fingerprint(self) -> str:
        """Equal exactly when prompts, their tokens and the columns beside them are equal."""
        digest = hashlib.sha256(self.origins[ROWS].encode())
        for each in self.prompts:
            digest.update(array("q", [len(each.ids), *each.ids]).tobytes())
        return f"prompts-{len(self)}-{digest.hexdigest()}"


def load_prompts(config: Config, encoder: Encoder, pad: int) -> Prompts:
    """The prompts of `dataset`. InputError for a row without one, and for one that leaves a completion no room."""
    source, digest = config.dataset, RowsDigest()
    if is_document(source):
        raise InputError(f"dataset: {source} is one text; with reward_funcs expects rows with a column {COLUMN!r}")
    prompts = []
    for record in read(source, config.dataset_config, config.dataset_split, config.dataset_revision):
        digest.add(record.row)
        prompts.append(read_prompt(record, encoder))
    if not prompts:
        raise InputError(f"dataset: {source} holds no rows")
    room = int(config.max_completion_length)
    made = Prompts(prompts, room, pad, digest_tokenizer(encoder.tokenizer) | {ROWS: digest.hexdigest()})
    if made.longest > config.max_length:
        raise InputError(
            f"max_length: it is {config.max_length}, the longest prompt has {made.longest - room} tokens, and "
            f"max_completion_length is {room}; raise max_length, or lower max_completion_length"
        )
    return made


def read_prompt(record: Record, encoder: Encoder) -> Prompt:
    given = read_column(record, COLUMN)
    check_encodable(record.where, COLUMN, given)
    if isinstance(given, str):
        ids = encoder.ids_of([given])[0]
    else:
        encoder.require_template(record.where)
        turns = read_turns(record, COLUMN)
        given = read_system_turns(record, turns) + turns
        chat = encoder.fitting.fit(Messages(record.where, given, read_template_options(record)))
        ids = template_ids(encoder.tokenizer, chat, chat.messages, add_generation_prompt=True)
    if not ids:
        raise InputError(f"{record.where}: the prompt has no token, so nothing predicts the first one of a completion")
    return Prompt(record.where, given, tuple(ids), {name: each for name, each in record.row.items() if name != COLUMN})
