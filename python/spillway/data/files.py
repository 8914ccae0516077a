"""Rows of one data file, by its ending: lines of JSON, one JSON document, CSV, Parquet, or a text."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator
from io import TextIOWrapper
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from spillway.base.documents import parse_json
from spillway.config.checks import data_suffix
from spillway.errors import InputError

STRUCTURED_COLUMNS = ("messages", "conversations", "history")  # lists; a CSV cell holds one as JSON


class Record(NamedTuple):
    where: str  # "file:line", or "name, row N"
    row: dict[str, Any]


def read_file(path: Path) -> Iterator[Record]:
    """The rows in file order. InputError names the file and the line."""
    suffix = data_suffix(path.name)
    try:
        if suffix == ".parquet":
            yield from read_parquet(path)
        elif suffix == ".json":
            yield from read_json(path)
        elif suffix in (".csv", ".tsv"):
            yield from read_table(path, "," if suffix == ".csv" else "\t")
        elif suffix == ".txt":
            yield from read_document(path)
        else:
            yield from read_lines(path)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed data is damaged or cut short: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed by its ending."""
    if path.suffix == ".zst":
        return open_zstandard(path)
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return cast(IO[bytes], openers.get(path.suffix, open)(path, "rb"))


def open_zstandard(path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise InputError(f"{path}: reading .zst needs the package zstandard; install it, or use .gz") from None
    return cast(IO[bytes], zstandard.open(path, "rb"))


def read_bytes(path: Path) -> bytes:
    with open_bytes(path) as stream:
        return stream.read()


def read_document(path: Path) -> Iterator[Record]:
    text = decoded(read_bytes(path), str(path))
    if text.strip():
        yield Record(str(path), {"text": text})


def read_lines(path: Path) -> Iterator[Record]:
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            if number == 1 and line.strip() in (b"{", b"["):
                raise InputError(f"{where}: not valid JSON: one value over several lines; name such a file .json")
            yield Record(where, as_row(parsed(decoded(line, where), where), where))


def read_json(path: Path) -> Iterator[Record]:
    """A list of objects, one object with a list of them inside, or one object a line as in .jsonl."""
    text = decoded(read_bytes(path), str(path))
    if is_lines(text):
        yield from read_lines(path)
        return
    document, place = parsed(text, str(path)), str(path)
    if isinstance(document, dict):
        name = list_name(document, place)
        if name is None:
            yield Record(f"{place}, row 1", document)
            return
        document, place = document[name], f"{place}, {name}"
    for number, row in enumerate(document, start=1):
        where = f"{place}, row {number}"
        yield Record(where, as_row(row, where))


def is_lines(text: str) -> bool:
    """Whether the text is no single JSON list or object: one object a line, or damaged."""
    begin = text.lstrip()
    if not begin.startswith("{"):
        return not begin.startswith("[")
    first = begin.partition("\n")[0]
    try:
        parse_json(first)
    except ValueError:
        return False
    return bool(begin[len(first) :].strip())


def list_name(document: dict[str, Any], where: str) -> str | None:
    """The key of the one list of objects. None: the object is itself a row."""
    from spillway.data.columns import is_row

    if is_row(document):
        return None
    names = [name for name, value in document.items() if isinstance(value, list) and all_objects(value)]
    if len(names) > 1:
        raise InputError(
            f"{where}: one JSON object with several lists of rows ({', '.join(names)}); leave one, or use .jsonl"
        )
    return names[0] if names else None


def all_objects(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def read_table(path: Path, delimiter: str) -> Iterator[Record]:
    """CSV with a header. Cells are texts, but lists of messages are read as JSON."""
    csv.field_size_limit(sys.maxsize)
    with TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            header = next(rows, [])
            if len(set(header)) < len(header):
                raise InputError(f"{path}:1: two columns have one name; the header is {', '.join(header)}")
            for cells in rows:
                where = f"{path}:{rows.line_num}"
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise InputError(f"{where}: {len(cells)} cells, and the header names {len(header)} columns")
                yield Record(where, read_cells(dict(zip(header, cells, strict=True)), where))
        except csv.Error as error:
            raise InputError(f"{path}:{rows.line_num}: not readable as CSV: {error}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{rows.line_num + 1}: not UTF-8 text ({error.reason})") from None


def read_cells(cells: dict[str, str], where: str) -> dict[str, Any]:
    row: dict[str, Any] = dict(cells)
    for name, cell in cells.items():
        is_list = cell.lstrip().startswith("[")
        if name in STRUCTURED_COLUMNS and is_list:
            row[name] = parsed(cell, f"{where}: the column {name!r}")
        elif name in STRUCTURED_COLUMNS and not cell.strip():
            row[name] = None
    return row


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
                yield Record(f"{path}, row {number}", without_nulls(row))
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: not readable as Parquet: {error}") from None


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the nulls by which Arrow fills up nested objects of different keys."""
    return {name: strip_nulls(value) for name, value in row.items()}


def strip_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [strip_nulls(each) for each in value]
    if isinstance(value, dict):
        return {name: strip_nulls(each) for name, each in value.items() if each is not None}
    return value


def decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise InputError(f"{where}: not valid JSON: {error.msg}{line}, column {error.colno}") from None
    except ValueError as error:
        raise InputError(f"{where}: not readable: {error}") from None


def as_row(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expects an object with named columns, got {type(value).__name__}")
    return value
