"""The rows of a run: its tokenizer, what stands in rows besides text, and a look at rows without a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spillway.base.counts import counted
from spillway.config import Config
from spillway.config.checks import check
from spillway.data import loading
from spillway.data.media import Media, media_of
from spillway.data.origins import Clock
from spillway.data.preview import Part, Preview, decode
from spillway.data.sources import is_document
from spillway.errors import InputError
from spillway.model.source import hub
from spillway.run import image_rows

if TYPE_CHECKING:
    from spillway.data.images import ImageReader
    from spillway.data.loading import Rows

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RowSource:
    """Everything that encodes the rows of a run."""

    config: Config
    model: Any  # its configuration
    tokenizer: Any
    media: Media
    reader: ImageReader | None
    vocabulary: Any  # of the model: a number of tokens, or None where it names none
    clock: Clock

    def load(self, key: str, tell: Tell, preview: Preview | None = None) -> Rows:
        """The rows of the key `dataset` or `eval_dataset`. InputError names the first bad one."""
        rows = loading.load(self.config, self.tokenizer, key, tell, self.media, self.reader, preview)
        largest, size = rows.largest_token, self.vocabulary
        if isinstance(size, int) and largest >= size:
            raise InputError(
                f"tokenizer: {self.config.tokenizer} gives {key} the token {largest}, but the model knows {size} "
                "tokens only"
            )
        return rows


def open_source(config: Config, started: datetime | None = None) -> RowSource:
    """`started`: the start of the run, for templates that ask for the time; None: now."""
    from spillway.model.source.source import text_config

    model = read_model_config(config)  # before the tokenizer, which says less clearly what is wrong
    media, vocabulary = media_of(model, config), getattr(text_config(model), "vocab_size", None)
    tokenizer = loading.load_tokenizer(config)
    reader = None if media.no_images else image_rows.open_reader(config, model, tokenizer)
    clock = Clock(started or datetime.now())
    clock.give_to(tokenizer)
    return RowSource(config, model, tokenizer, media, reader, vocabulary, clock)


def read_model_config(config: Config) -> Any:
    """The model's configuration, as transformers reads it."""
    from spillway.model.source.labels import load_run_config

    return load_run_config(config, hub.model_directory(config))


@dataclass(frozen=True)
class ShownSequence:
    """A sequence of a row for people to read."""

    title: str
    spans: list[tuple[bool, str]]  # its text, split where loss begins and ends, and whether it carries loss
    labels: Any  # of a classification


@dataclass(frozen=True)
class ShownRows:
    """The first rows of a dataset, and the counts of all."""

    preview: Preview
    tokenizer: Any
    source: str
    left_out: int  # rows, pairs or pieces without loss
    pieces: int  # that steps are made of: rows, pairs, or what packing makes of rows
    packing: bool

    def list_sequences(self) -> list[ShownSequence]:
        """The sequences of the first rows."""
        cuts = self.preview.cuts
        return [
            ShownSequence(make_title(part, cuts), part.spans(self.tokenizer), part.targets)
            for part in self.preview.parts
        ]

    def to_json(self) -> dict[str, Any]:
        counts = self.preview
        return {
            "source": self.source,
            "rows": counts.rows,
            "sequences": counts.sequences,
            "tokens": counts.tokens,
            "trained_tokens": counts.loss_tokens,
            "longest": counts.longest,
            "longer_than_max_length": counts.cut,
            "left_out": self.left_out,
            "pieces": self.pieces,
            "first": [describe_part(part, self.tokenizer) for part in counts.parts],
        }


def make_title(part: Part, cuts: bool) -> str:
    name = f" ({part.name})" if part.name else ""
    more = f", {part.more} more {'are cut' if cuts else 'follow'}" if part.more else ""
    return f"{part.where}{name}: {counted(len(part.ids), 'token')}, loss on {part.loss_tokens}{more}"


def describe_part(part: Part, tokenizer: Any) -> dict[str, Any]:
    """A sequence with the names of transformers' batches."""
    described = {"row": part.where, "sequence": part.name, "input_ids": list(part.ids), "labels": part.labels}
    if part.targets is not None:
        described["labels"] = part.targets.tolist() if hasattr(part.targets, "tolist") else part.targets
    return described | {"more_tokens": part.more, "text": decode(tokenizer, part.ids)}


def show_rows(config: Config, count: int, tell: Tell) -> ShownRows:
    """Encodes the dataset as `train` does, and keeps the first `count` rows. Plans nothing and writes nothing. The
    model needs only its configuration and its tokenizer."""
    check(config, required=("model", "dataset"))
    config = hub.resolve_commits(config, tell)
    packing, length = bool(config.packing), config.max_length
    preview = Preview(count, length, cuts=not packing and not is_document(str(config.dataset)))
    source = open_source(config)
    rows = source.load("dataset", tell, preview)
    return ShownRows(preview, source.tokenizer, str(config.dataset), rows.dropped, len(rows), packing)
