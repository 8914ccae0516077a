"""Reading rows, and finding out what their columns mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from needs import package
from spillway.config import resolve
from spillway.data import columns, sources
from spillway.data.columns import Messages, Pair, Text
from spillway.data.loading import read_examples
from spillway.data.sources import Record
from spillway.errors import InputError


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path) -> list[Record]:
    return list(sources.read(str(path)))


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value)


def test_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "a"}\n\n{"text": "\xc3\xa9"}')
    assert read(path) == [Record(f"{path}:1", {"text": "a"}), Record(f"{path}:3", {"text": "é"})]


def test_json_list_and_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", '[{"text": "a"},\n {"text": "b"}]')
    assert read(path) == [Record(f"{path}, row 1", {"text": "a"}), Record(f"{path}, row 2", {"text": "b"})]
    path = written(tmp_path / "b.json", '{"text": "a"}\n{"text": "b"}\n')
    assert [record.row["text"] for record in read(path)] == ["a", "b"]


def test_text_is_one_document(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "One.\n\nTwo.\n")
    assert read(path) == [Record(str(path), {"text": "One.\n\nTwo.\n"})]
    assert read(written(tmp_path / "b.txt", " \n")) == []


def test_parquet(tmp_path: Path) -> None:
    pyarrow = package("pyarrow", "Parquet files stay untried")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"]}), path)
    assert read(path) == [Record(f"{path}, row 1", {"text": "a"}), Record(f"{path}, row 2", {"text": "b"})]
    assert "not readable as Parquet" in refused(written(tmp_path / "b.parquet", "no"))


def test_a_dataset_of_the_library(tmp_path: Path) -> None:
    """A directory as the hub has it: a file for each split."""
    package("datasets", "the package datasets is not installed: named datasets stay untried")
    parquet = package("pyarrow.parquet", "Parquet files stay untried")
    import pyarrow

    place = tmp_path / "a dataset"
    place.mkdir()
    for split in ("train", "test"):
        parquet.write_table(pyarrow.table({"text": [f"{split} a", f"{split} b"]}), place / f"{split}.parquet")
    found = resolve({}, {"dataset": str(place), "eval_dataset": str(place), "model": "m"})
    for split in ("train", "test"):
        texts = [example.text for example in read_examples(found, str(place), split)]  # type: ignore[union-attr]
        assert texts == [f"{split} a", f"{split} b"]
    with pytest.raises(InputError, match="cannot be loaded by name"):
        list(read_examples(found, str(place), "valid"))


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": \n', ["a.jsonl:2", "not valid JSON"]),
        ("a.jsonl", '{"text": "a"}\n[1]\n', ["a.jsonl:2", "list"]),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', ["a.jsonl:2", "UTF-8"]),
        ("a.jsonl", "[" * 100_000, ["a.jsonl:1", "nested too deep"]),
        ("a.json", '[{"text": "a"},\n oh]', ["a.json", "line 2"]),
        ("a.json", '[{"text": "a"}, 3]', ["a.json, row 2", "int"]),
        ("a.txt", b"\xff\xfe", ["a.txt", "UTF-8"]),
    ],
)
def test_malformed(tmp_path: Path, name: str, content: str | bytes, parts: list[str]) -> None:
    message = refused(written(tmp_path / name, content))
    assert all(part in message for part in parts), message


TURNS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"text": "T", "other": 1}, Text("x:1", "T")),
        ({"prompt": "Q", "completion": "A"}, Pair("x:1", "Q", "A")),
        ({"prompt": "Q", "completion": "A", "text": "T"}, Pair("x:1", "Q", "A")),
        ({"question": "Q", "answer": "A"}, Pair("x:1", "Q\n", "A")),
        ({"instruction": "I", "output": "O"}, Pair("x:1", "I\n", "O")),
        ({"instruction": "I", "input": "", "output": "O"}, Pair("x:1", "I\n", "O")),
        ({"instruction": "I", "input": "N", "output": "O"}, Pair("x:1", "I\nN\n", "O")),
        ({"messages": TURNS, "prompt": "Q", "completion": "A"}, Messages("x:1", TURNS)),
        ({"conversations": TURNS}, Messages("x:1", TURNS)),
        ({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, Messages("x:1", TURNS)),
    ],
)
def test_columns_by_name(row: dict[str, Any], example: object) -> None:
    record = Record("x:1", row)
    assert columns.by_name(record).example(record) == example


@pytest.mark.parametrize(
    ("keys", "row", "example"),
    [
        ({"dataset_text_field": "body"}, {"body": "T", "text": "no"}, ("text", "T")),
        ({"prompt_field": "question", "completion_field": "answer"}, {"question": "Q", "answer": "A"}, ("prompt", "Q")),
        ({"messages_field": "talk"}, {"talk": TURNS, "text": "no"}, ("messages", TURNS)),
    ],
)
def test_columns_named_by_the_configuration(
    tmp_path: Path, keys: dict[str, str], row: dict[str, Any], example: tuple[str, Any]
) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps(row))
    (found,) = read_examples(resolve(keys, {}), str(path), "train")
    assert getattr(found, example[0]) == example[1]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([{"body": "T", "title": "x"}], ["a.jsonl:1", "'body', 'title'", "dataset_text_field"]),
        ([{}], ["a.jsonl:1", "none"]),
        ([{"text": "T"}, {"txt": "T"}], ["a.jsonl:2", "'text' is missing", "'txt'"]),
        ([{"text": None}], ["a.jsonl:1", "'text' is NoneType"]),
        ([{"prompt": [1], "completion": "A"}], ["a.jsonl:1", "'prompt' is list"]),
        ([{"messages": "hi"}], ["a.jsonl:1", "'messages'", "list of messages"]),
        ([{"messages": [{"role": "user"}]}], ["a.jsonl:1", "role and content"]),
        ([{"messages": []}], ["a.jsonl:1", "list of messages"]),
    ],
)
def test_columns_refused(tmp_path: Path, rows: list[dict[str, Any]], parts: list[str]) -> None:
    path = written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError) as caught:
        list(read_examples(resolve({}, {}), str(path), "train"))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
