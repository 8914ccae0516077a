"""Where rows come from: files, or datasets by name. A row is a dictionary and the place a person finds it at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spillway.config.checks import is_data_file
from spillway.errors import InputError


class Record(NamedTuple):
    where: str  # "file:line", or "name, row N"
    row: dict[str, Any]


def is_document(source: str) -> bool:
    """Whether the whole source is one text, to be cut into pieces."""
    return source.endswith(".txt")


def read(source: str, name: str | None = None, split: str = "train", revision: str | None = None) -> Iterator[Record]:
    """The rows of a file, or of configuration `name` and `split` of a named dataset at a `revision`, in order."""
    if not is_data_file(source):
        yield from read_named(source, name, split, revision)
        return
    readers = {".jsonl": read_lines, ".json": read_json, ".txt": read_document, ".parquet": read_parquet}
    try:
        yield from readers[Path(source).suffix](Path(source))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None


def read_document(path: Path) -> Iterator[Record]:
    text = decoded(path.read_bytes(), str(path))
    if text.strip():
        yield Record(str(path), {"text": text})


def read_lines(path: Path) -> Iterator[Record]:
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{path}:{number}"
            if line.strip():
                yield Record(where, as_row(parsed(decoded(line, where), where), where))


def read_json(path: Path) -> Iterator[Record]:
    """A list of objects, or one object a line as in .jsonl."""
    text = decoded(path.read_bytes(), str(path))
    if not text.lstrip().startswith("["):
        yield from read_lines(path)
        return
    for number, row in enumerate(parsed(text, str(path)), start=1):
        where = f"{path}, row {number}"
        yield Record(where, as_row(row, where))


def read_parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading .parquet needs the package pyarrow; install it, or use .jsonl") from None
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{path}, row {number}", row)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: not readable as Parquet: {error}") from None


def read_named(source: str, name: str | None, split: str, revision: str | None) -> Iterator[Record]:
    try:
        import datasets
    except ImportError:
        raise InputError(f"dataset: {source} is no file here, and datasets by name need the package datasets") from None
    try:
        rows = datasets.load_dataset(source, name, split=split, revision=revision)
    except Exception as error:
        raise InputError(f"dataset: {source} is no file here and cannot be loaded by name: {error}") from None
    for number, row in enumerate(rows, start=1):
        yield Record(f"{source}, row {number}", row)


def decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise InputError(f"{where}: not valid JSON: {error.msg}{line}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{where}: not valid JSON: nested too deeply") from None


def as_row(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expects an object with named columns, got {type(value).__name__}")
    return value
