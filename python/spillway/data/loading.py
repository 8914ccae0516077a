"""From the data keys of a configuration to the run's rows: read, find the columns, encode, keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.config.checks import is_data_file
from spillway.config.objective_keys import join
from spillway.data.chat import RewrittenTurns, load_training_template, set_template
from spillway.data.columns import Columns, Example, Messages, by_name, chosen, write_with
from spillway.data.dataset import Builder, Dataset, Pictures
from spillway.data.encode import Encoded, EncodedAnswer, EncodedGroup, EncodedPair, EncodedRanked, Encoder
from spillway.data.images import ImageReader, attach_images, list_images
from spillway.data.labelled import EncodedLabelled, LabelEncoder, LabelledBuilder, LabelledRows
from spillway.data.media import IMAGE_COLUMNS, TEXT, Media
from spillway.data.origins import ROWS, RowsDigest, digest_tokenizer
from spillway.data.preferences import AnswerBuilder, PairBuilder, Preferences, RankedBuilder
from spillway.data.preview import Preview
from spillway.data.prompts import Prompts, load_prompts
from spillway.data.rollouts import GroupBuilder, Rollouts, find_ends
from spillway.data.sources import Record, is_document, read
from spillway.data.unused import UnusedColumns
from spillway.errors import InputError, first_line
from spillway.model.source import hub

Rows = Dataset | Preferences | Prompts

ROWS_AT_ONCE = 512  # encoded together: enough to keep the tokenizer's threads busy, little memory
WARNINGS_SHOWN = 5


def load_tokenizer(config: Config) -> Any:
    """The run's tokenizer with its chat template."""
    from transformers import AutoTokenizer

    key = "tokenizer" if config.tokenizer != config.model else "model"
    place = hub.tokenizer_directory(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        tokenizer("a")  # a setting of another type fails at the first use
    except Exception as error:  # the library raises whatever its readers raise
        raise InputError(f"{key}: no tokenizer can be loaded from {config.tokenizer}: {first_line(error)}") from None
    if config.chat_template_path is not None:
        set_template(tokenizer, config.chat_template_path)
    return tokenizer


def load(
    config: Config,
    tokenizer: Any,
    key: str,
    tell: Callable[[str], None],
    media: Media = TEXT,
    reader: ImageReader | None = None,
    preview: Preview | None = None,
) -> Rows:
    """The rows of `key` (dataset or eval_dataset); `tell` hears what a person should know about them. `media`: what is
    refused in them. `reader`: of images. `preview` takes each row."""
    encoder = Encoder(
        tokenizer,
        config.completion_only_loss,
        config.assistant_only_loss,
        is_framed=config.objective_entry.is_framed,
        reader=reader,
        image_tokens=media.image_tokens,
    )
    if config.reward_funcs:
        prompts = load_prompts(config, encoder, padding_of(tokenizer))
        if preview is not None:
            for each in prompts.prompts:
                preview.add(each.where, (each,), ("prompt",))
        return prompts
    unused = UnusedColumns()
    try:
        dataset = encode_rows(config, key, encoder, media, unused, preview)
    except RewrittenTurns as refusal:
        encoder = replace_template(encoder, load_training_template(tokenizer, refusal))
        tell(
            f"{key}: the chat template rewrites earlier turns, so rows are encoded by TRL's training template for it; "
            "the saved tokenizer keeps its own"
        )
        dataset = encode_rows(config, key, encoder, media, unused, preview)
    report(key, getattr(config, key), dataset, encoder, tell)
    report_unused(key, encoder, unused, tell)
    return dataset


def replace_template(encoder: Encoder, template: str) -> Encoder:
    return replace(encoder, template=template, warnings=[])


def encode_rows(
    config: Config, key: str, encoder: Encoder, media: Media, unused: UnusedColumns, preview: Preview | None = None
) -> Rows:
    if preview is not None:
        preview.clear()
    source, tokenizer = getattr(config, key), encoder.tokenizer
    packing = config.packing if key == "dataset" else config.eval_packing
    builder, encode = begin_rows(config, encoder, packing, is_document(source))
    rows = 0
    split = config.dataset_split if key == "dataset" else config.eval_dataset_split
    revision = config.dataset_revision if key == "dataset" else config.eval_dataset_revision
    digest = RowsDigest()
    made_of = digest_tokenizer(tokenizer)
    for examples in in_groups(read_examples(config, source, split, revision, media, digest, unused), ROWS_AT_ONCE):
        rows += len(examples)
        for example, row in zip(examples, encode(examples), strict=True):
            for part in list_encoded(row):
                media.check_tokens(example.where, part.ids, tokenizer, has_images=has_picture(part))
            if preview is not None:
                preview.add(example.where, list_encoded(row), name_encoded(row))
            builder.add(row)
    if not rows:
        raise InputError(f"{key}: {source} holds no rows")
    dataset: Rows = builder.finish()
    pictures = builder.pictures if isinstance(builder, Builder) else None
    if isinstance(dataset, Dataset) and pictures and encoder.reader is not None:
        dataset.pictures = Pictures(pictures, encoder.reader)
    dataset.origins.update(made_of | {ROWS: digest.hexdigest()})
    return dataset


def begin_rows(
    config: Config, encoder: Encoder, packing: bool, document: bool
) -> tuple[Any, Callable[[list[Any]], list[Any]]]:
    """What collects the rows of an objective, and what encodes them."""
    objective, length, pad = config.objective_entry, config.max_length, padding_of(encoder.tokenizer)
    if objective.is_labelled:
        labels = LabelEncoder.build(config, encoder)
        return (
            LabelledBuilder(length, pad, objective.labels_words),
            labels.encode_words if objective.labels_words else labels.encode_rows,
        )
    if objective.is_sampled:
        return GroupBuilder(config, pad, find_ends(encoder.tokenizer)), encoder.encode_groups
    if objective.is_mismatched:
        return AnswerBuilder(length, pad, config.per_device_train_batch_size), encoder.encode_judged
    if objective.labels:
        return RankedBuilder(length, pad), encoder.encode_ranked
    if objective.compares:
        return PairBuilder(length, pad, objective), encoder.encode_preferences
    return Builder(length, packing, document, pad), encoder.encode


Row = Encoded | EncodedPair | EncodedAnswer | EncodedRanked | EncodedGroup | EncodedLabelled


def list_encoded(row: Row) -> tuple[Encoded | EncodedLabelled, ...]:
    if isinstance(row, EncodedGroup):
        return row.rows
    if isinstance(row, EncodedPair | EncodedRanked):
        return (row.chosen, row.rejected)
    return (row.answer,) if isinstance(row, EncodedAnswer) else (row,)


def name_encoded(row: Row) -> tuple[str, ...]:
    """The names of the sequences that `list_encoded` lists; a row of one has none."""
    if isinstance(row, EncodedGroup):
        return tuple(f"completion {number}" for number in range(1, len(row.rows) + 1))
    return ("chosen", "rejected") if isinstance(row, EncodedPair | EncodedRanked) else ("",)


def has_picture(part: Encoded | EncodedLabelled) -> bool:
    return isinstance(part, Encoded) and part.picture is not None


def report_unused(key: str, encoder: Encoder, unused: UnusedColumns, tell: Callable[[str], None]) -> None:
    """Names columns and template options that training does not use."""
    variables = encoder.fitting.variables() if encoder.stops.conversations else set()
    for sentence in (encoder.stops.sentence(), unused.sentence(variables)):
        if sentence is not None:
            tell(f"{key}: {sentence}")
    for notice in encoder.fitting.notices.values():
        tell(notice)


def read_examples(
    config: Config,
    source: str,
    split: str,
    revision: str | None = None,
    media: Media = TEXT,
    digest: RowsDigest | None = None,
    unused: UnusedColumns | None = None,
) -> Iterator[Example]:
    """The examples of a source. `digest` takes each row."""
    columns = chosen(config)
    if is_document(source):
        if columns is not None and (config.objective_entry.compares or config.objective_entry.is_labelled):
            raise InputError(
                f"objective: {config.objective} reads the columns {join(columns.names)}, and {source} is one text; "
                "expects .jsonl, .json or .parquet"
            )
        columns = Columns("text", ("text",))
    if isinstance(columns, Columns):
        columns = write_with(columns, config.prompt_template, source)
    for record in read(source, config.dataset_config, split, revision):
        media.check_record(record)
        if digest is not None:
            digest.add(record.row)
        columns = columns or by_name(record, config.prompt_template)
        if unused is not None:
            unused.note(record, columns, () if media.no_images else IMAGE_COLUMNS)
        example = columns.example(record)
        yield example if media.no_images else add_images(record, example, source)


def add_images(record: Record, example: Example, source: str) -> Example:
    """The example with the images of its row. A relative path begins at the directory of the data file."""
    directory = Path(source).parent if is_data_file(source) else None
    if isinstance(example, Messages):
        return attach_images(record, example, directory)
    if list_images(record):
        raise InputError(f"{record.where}: images stand in messages, and the row has none; see `messages` in the docs")
    return example


def in_groups(examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    while group := list(islice(examples, size)):
        yield group


def padding_of(tokenizer: Any) -> int:
    """Labels are masked by length, so any id will do."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def report(key: str, source: str, dataset: Rows, encoder: Encoder, tell: Callable[[str], None]) -> None:
    of_pairs = isinstance(dataset, Preferences)
    if not len(dataset) and isinstance(dataset, Preferences):
        what = "prompt in {} alone fills max_length"
        what = "pair in {} has a row longer than max_length" if dataset.scores else what
        raise InputError(f"{key}: every {what.format(source)}; raise it")
    if not len(dataset) and isinstance(dataset, LabelledRows):
        raise InputError(f"{key}: no row of {source} has a token with a label before max_length")
    if not len(dataset):
        raise InputError(
            f"{key}: no row of {source} has a token that carries loss; rows need two tokens at least, and a "
            "completion that begins before max_length"
        )
    if encoder.tokenizer.eos_token_id is None and not isinstance(dataset, LabelledRows):
        tell(f"{key}: the tokenizer has no end token, so none is added to the rows")
    for warning in encoder.warnings[:WARNINGS_SHOWN]:
        tell(warning)
    if len(encoder.warnings) > WARNINGS_SHOWN:
        tell(f"{key}: the same holds for {len(encoder.warnings) - WARNINGS_SHOWN} more rows")
    if dataset.dropped:
        kind = "pairs" if not isinstance(dataset, Preferences) or dataset.labels is None else "rows"
        what = kind + " of {}, whose prompt alone fills max_length," if of_pairs else "rows of {} carry no loss and"
        if isinstance(dataset, Preferences) and dataset.scores:
            what = "pairs of {} with a row longer than max_length"
        if isinstance(dataset, Rollouts):
            what = "completions of {}, which fill no whole step,"
        tell(f"{key}: {dataset.dropped} {what.format(Path(source).name)} are left out")
