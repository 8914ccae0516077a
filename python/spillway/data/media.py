"""Content of rows besides text. Messages may have images where the model and the run can take them. All else is
refused, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spillway.data.sources import Record
from spillway.errors import InputError

if TYPE_CHECKING:
    from spillway.config import Config

KINDS = {"image": "an image", "video": "a video", "audio": "audio"}
COLUMNS = {*KINDS, *(f"{kind}s" for kind in KINDS), "pixel_values", "input_features"}
PARTS = {*KINDS, *(f"{kind}_url" for kind in KINDS), *(f"input_{kind}" for kind in KINDS)}  # types of parts of messages
TEXT_ALONE = "{why}; leave out such rows, or what they show"
NO_TOWER = "a multimodal model of this type is trained on text alone in this release"
IMAGES_ALONE = "a multimodal model is trained on text and images in this release"
IMAGE_COLUMNS = ("image", "images")
IMAGE_PARTS = ("image",)  # types of parts that hold one, or stand for one of the columns


@dataclass(frozen=True)
class Media:
    """What stands for other things than text, for one model; nothing of a model that has text alone."""

    tokens: Mapping[int, str] = field(default_factory=dict)  # placeholders in the model's vocabulary, by what they are
    columns: bool = False  # whether columns are looked at
    no_images: str = NO_TOWER  # why messages can have no images; empty: they can

    @property
    def image_tokens(self) -> frozenset[int]:
        return frozenset(token for token, said in self.tokens.items() if said == KINDS["image"])

    @property
    def advice(self) -> str:
        return TEXT_ALONE.format(why=self.no_images or IMAGES_ALONE)

    def check_record(self, record: Record) -> None:
        """InputError where a row has images, videos or audio in a column or in a message."""
        columns = COLUMNS - (set() if self.no_images else {*IMAGE_COLUMNS})
        for name in sorted(columns & record.row.keys()) if self.columns else ():
            if record.row[name] not in (None, [], "", {}):
                raise InputError(f"{record.where}: the column {name!r} holds something; {self.advice}")
        for value in record.row.values():
            if isinstance(value, list) and (found := part_of(value, () if self.no_images else IMAGE_PARTS)):
                raise InputError(f"{record.where}: a message has a part of type {found!r}; {self.advice}")

    def check_tokens(self, where: str, ids: Sequence[int], tokenizer: Any, has_images: bool = False) -> None:
        """InputError where a token stands for an image that the row has not, a video or audio."""
        known = self.image_tokens if has_images else frozenset()
        if self.tokens and (found := (self.tokens.keys() - known) & set(ids)):
            token = min(found)
            said = tokenizer.convert_ids_to_tokens(token)
            raise InputError(f"{where}: the token {said!r} ({token}) stands for {self.tokens[token]}; {self.advice}")


TEXT = Media(no_images="this model takes text alone")


def media_of(config: Any, run: Config) -> Media:
    """The media of a model's configuration, for a run."""
    from spillway.model.meta.image_tower import makes_image_features
    from spillway.model.source.source import is_multimodal

    if not is_multimodal(config):
        return TEXT
    found = {}
    for kind, said in KINDS.items():
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if isinstance(token := getattr(config, name, None), int):
                found[token] = said
    can = KINDS["image"] in found.values() and makes_image_features(config)
    return Media(found, columns=True, no_images=find_obstacle(run) if can else NO_TOWER)


def find_obstacle(config: Config) -> str:
    """Why the messages of a run can have no images; empty: they can."""
    entry = config.objective_entry
    if entry.compares or entry.labels or entry.is_sampled or entry.has_teacher:
        return f"objective: {config.objective} takes text alone in this release"
    if config.packing or config.eval_packing:
        return "packing joins rows of text alone; set `packing: false` for rows with images"
    return ""


def part_of(messages: list[Any], known: Sequence[str] = ()) -> str | None:
    """The type of the first part of a message that is neither text nor of the types `known`."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in PARTS - {*known}:
                return str(part["type"])
    return None
