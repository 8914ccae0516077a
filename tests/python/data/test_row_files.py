"""Files of rows in every readable form: compressed, CSV, one JSON object, saved datasets."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import real_runs
import tiny
from needs import package
from spillway.data import sources
from spillway.errors import InputError

ROWS = [{"text": "One."}, {"text": "Two, three."}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read_rows(path: Path, split: str = "train") -> list[object]:
    return [record.row for record in sources.read(str(path), split=split)]


def read_refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_rows(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_hold_the_same_rows(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    for name, content in (
        (".jsonl", LINES),
        (".json", json.dumps(ROWS).encode()),
        (".csv", b'text\nOne.\n"Two, three."\n'),
    ):
        path = tmp_path / f"a{name}{suffix}"
        path.write_bytes(compress(content))
        assert read_rows(path) == ROWS
        path.write_bytes(compress(content)[:-6])
        assert "damaged" in read_refusal(path) and path.name in read_refusal(path)


def test_zstandard_is_read_or_names_its_package(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(LINES)
    try:
        import zstandard
    except ImportError:
        assert "zstandard" in read_refusal(path)
        return
    path.write_bytes(zstandard.compress(LINES))
    assert read_rows(path) == ROWS


def test_tables_are_read_with_their_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('prompt\tcompletion\nQ\t"A\nB"\nQ\tA\n')
    assert read_rows(path) == [{"prompt": "Q", "completion": "A\nB"}, {"prompt": "Q", "completion": "A"}]
    path = tmp_path / "a.csv"
    path.write_text('messages\n"[{""role"": ""user"", ""content"": ""Q""}]"\n')
    assert read_rows(path) == [{"messages": [{"role": "user", "content": "Q"}]}]
    for content, part in (("a,b\n1\n", ":2"), ("a,a\n1,2\n", "one name"), ('a\n"open\n', "not readable as CSV")):
        path.write_text(content)
        assert part in read_refusal(path)
    path.write_bytes(b"text\n\xff\n")
    assert "not UTF-8" in read_refusal(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_json_object_with_one_list_inside_is_read(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"version": "1", "data": ROWS}, indent=indent))
    assert read_rows(path) == ROWS
    path.write_text(json.dumps(ROWS[0], indent=indent))
    assert read_rows(path) == ROWS[:1]
    path.write_text(json.dumps({"train": ROWS, "test": ROWS}, indent=indent))
    assert "several lists" in read_refusal(path) and "train, test" in read_refusal(path)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"data": ROWS}, indent=1))
    assert "name such a file .json" in read_refusal(path)


def test_saved_datasets_are_read_by_split(tmp_path: Path) -> None:
    datasets = package("datasets", "the package datasets is not installed")
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": one, "held": one.select([1])}).save_to_disk(str(tmp_path / "several"))
    assert read_rows(tmp_path / "one") == read_rows(tmp_path / "several") == ROWS
    assert read_rows(tmp_path / "several", "held") == ROWS[1:]
    with pytest.raises(InputError, match="no split test; found train, held"):
        read_rows(tmp_path / "several", "test")


def test_number_of_many_digits_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "a", "n": ' + "7" * 5000 + "}\n")
    assert f"{path}:2" in read_refusal(path) and "digits" in read_refusal(path)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"text": "\\ud800 abc"}', "lone surrogate"),
        ('{"text": "a", "n": ' + "7" * 5000 + "}", "digits"),
        ('{"text": null}', "'text'"),
    ],
)
def test_row_that_cannot_be_read_ends_the_command_with_its_line(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, part: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine row"}\n' + line + "\n")
    assert real_runs.here(inputs, tmp_path / "out", "--dataset", str(path)) == 2
    error = capfd.readouterr().err
    assert f"{path}:2" in error and part in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_named_pipe_is_refused_by_its_kind(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    assert real_runs.here(inputs, tmp_path / "out", "--dataset", str(tmp_path / "rows.jsonl")) == 2
    assert "named pipe" in capfd.readouterr().err


def test_command_trains_on_compressed_messages_and_names_unused_columns(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text(tiny.MARKED)
    turns = [{"role": "user", "content": "Who?"}], [{"role": "assistant", "content": "He."}]
    row = {"prompt": turns[0], "completion": turns[1], "id": 3}
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(row) + "\n").encode()))
    keys = ["--dataset", str(path), "--chat_template_path", str(template), "--max_steps", "1"]
    assert real_runs.here(inputs, tmp_path / "out", *keys) == 0
    caught = capfd.readouterr()
    assert "columns not used: id" in " ".join((caught.err + caught.out).split())
