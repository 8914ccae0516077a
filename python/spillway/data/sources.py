"""Sources of rows: files, and datasets by name. A record is a row, a dictionary, with its place in the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spillway.config.checks import data_suffix, is_data_file, is_saved_dataset
from spillway.config.keys import KEYS
from spillway.data.files import Record, read_file, without_nulls
from spillway.errors import InputError, first_line

__all__ = ["Record", "is_document", "read"]

DEFAULT_SPLITS = (KEYS["dataset_split"].default, KEYS["eval_dataset_split"].default)


def is_document(source: str) -> bool:
    """Whether the whole source is one text, to be cut into pieces."""
    return data_suffix(source) == ".txt"


def read(source: str, name: str | None = None, split: str = "train", revision: str | None = None) -> Iterator[Record]:
    """The rows of a file, or of configuration `name` and `split` of a named dataset at a `revision`, in order."""
    if is_data_file(source):
        yield from read_file(Path(source))
        return
    saved = is_saved_dataset(Path(source))
    rows = load_saved(source, name, split, revision) if saved else load_named(source, name, split, revision)
    for number, row in enumerate(rows, start=1):
        yield Record(f"{source}, row {number}", without_nulls(row))


def load_named(source: str, name: str | None, split: str, revision: str | None) -> Any:
    datasets = import_datasets(source)
    try:
        return datasets.load_dataset(source, name, split=split, revision=revision)
    except Exception as error:
        raise InputError(f"dataset: {source} is no file here and cannot be loaded by name: {error}") from None


def load_saved(source: str, name: str | None, split: str, revision: str | None) -> Any:
    """A directory that `save_to_disk` wrote: one dataset, or several by split."""
    for key, value in (("dataset_config", name), ("dataset_revision", revision)):
        if value is not None:
            raise InputError(f"{key}: {source} was saved by save_to_disk and has none; leave it out")
    datasets = import_datasets(source)
    try:
        saved = datasets.load_from_disk(source)
    except Exception as error:  # the library raises the errors of its readers
        raise InputError(f"dataset: {source} cannot be read as a saved dataset: {first_line(error)}") from None
    splits = list(saved) if isinstance(saved, datasets.DatasetDict) else [str(saved.split or "train")]
    if isinstance(saved, datasets.DatasetDict) and split in splits:
        return saved[split]
    if not isinstance(saved, datasets.DatasetDict) and split in (*splits, *DEFAULT_SPLITS):
        return saved
    raise InputError(f"dataset_split: {source} has no split {split}; found {', '.join(splits) or 'none'}")


def import_datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(f"dataset: {source} is no file here, and datasets by name need the package datasets") from None
    return datasets
