"""Kinds of values: sizes, intervals, flags, storage and placement words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.config import resolve, values
from spillway.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("4GB", 4 * 10**9),
        ("7mb", 7 * 10**6),
        ("1TiB", 2**40),
        ("12345", 12345),
        (67, 67),
    ],
)
def test_size(text: str | int, size: int) -> None:
    assert values.parse_size(text) == size


@pytest.mark.parametrize("text", ["4G", "GiB", "-1GiB", "0", 0, -5, "4 GiB x", True, 1.5, None, "1e9"])
def test_not_a_size(text: object) -> None:
    with pytest.raises(ValueError):
        values.parse_size(text)


@given(st.integers(1, 2**50))
def test_plain_bytes_are_themselves(count: int) -> None:
    assert values.parse_size(str(count)) == values.parse_size(count) == count


@pytest.mark.parametrize(("value", "steps"), [(5, 5), ("5", 5), ("0.25", 0.25), (0.1, 0.1), (10.0, 10)])
def test_interval(value: object, steps: float) -> None:
    assert values.parse_interval(value) == steps


@pytest.mark.parametrize("value", [0, -1, 1.5, "nan", "inf", True, "often"])
def test_not_an_interval(value: object) -> None:
    with pytest.raises(ValueError):
        values.parse_interval(value)


@pytest.mark.parametrize(("word", "flag"), [("true", True), ("No", False), (True, True), ("on", True), (0, False)])
def test_flag(word: object, flag: bool) -> None:
    assert values.parse_flag(word) is flag


@pytest.mark.parametrize("word", ["maybe", 2, None, 1.0])
def test_not_a_flag(word: object) -> None:
    with pytest.raises(ValueError):
        values.parse_flag(word)


def test_numbers_that_yaml_reads_as_text() -> None:
    assert values.parse_number("2e-5") == 2e-5
    assert values.parse_mapping({"min_lr": "1e-6", "shape": "cosine"}) == {"min_lr": 1e-6, "shape": "cosine"}
    assert values.parse_mapping('{"num_cycles": 2}') == {"num_cycles": 2}


def test_storage() -> None:
    assert values.parse_storage("/a") == values.StoragePath("/a")
    path = values.parse_storage("/a,capacity=2GiB")
    assert path == values.StoragePath("/a", 2**31)
    assert values.parse_storage(str(path)) == path


@pytest.mark.parametrize("text", ["", ",capacity=1GiB", "/a,size=1GiB", "/a,capacity=much"])
def test_not_storage(text: str) -> None:
    with pytest.raises(ValueError):
        values.parse_storage(text)


@pytest.mark.parametrize("text", ["auto", "dram", "path", "weight=dram, state=path,grad=50%,activation=auto"])
def test_placement(text: str) -> None:
    assert values.parse_placement(text) == text.replace(" ", "")


@pytest.mark.parametrize("text", ["disk", "weight", "weights=dram", "grad=101%", "grad=half", "state=path,"])
def test_not_a_placement(text: str) -> None:
    with pytest.raises(ValueError):
        values.parse_placement(text)


@pytest.mark.parametrize("key", ["lora_rank_pattern", "lora_alpha_pattern"])
@pytest.mark.parametrize("text", ["{q_proj: 8}", '{"q_proj": 8}', "q_proj: 8"])
def test_numbers_by_name_are_read_as_yaml(key: str, text: str) -> None:
    assert getattr(resolve({}, {"model": "m", key: text}, "test"), key) == {"q_proj": 8}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"layers.(": 8}', r"; the name 'layers\.\(' is no regular expression"),
        ("{q_proj: 8, o_proj: 0}", "; the value 0 of 'o_proj' is none of these numbers"),
        ("{q_proj: [", "expects a mapping from names to whole numbers, 1 or more, such as {q_proj: 8}$"),
        ("q_proj", "expects a mapping from names to whole numbers, 1 or more, such as {q_proj: 8}$"),
    ],
)
def test_the_wrong_part_of_numbers_by_name_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        resolve({}, {"model": "m", "lora_rank_pattern": text}, "test")
