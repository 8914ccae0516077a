"""What a teacher gave for rows, as a file: any row is read alone, and damaged or foreign ones count as not stored."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from spillway.errors import SpillwayError
from spillway.model.head.distillation import TopTokens
from spillway.output.teacher_files import TeacherFile

TOP_K = 3
COUNTS = [2, 0, 5, 1]  # label tokens by row


def tokens(count: int, first: int = 0) -> TopTokens:
    numbers = torch.arange(count * TOP_K).view(count, TOP_K) + first
    rest = torch.linspace(-2, 2, count, dtype=torch.float64)
    return TopTokens(numbers.int(), numbers.flip(1).float() / 8, rest)


def make(path: Path, **header: object) -> TeacherFile:
    return TeacherFile(path, {"data": "a", "top_k": TOP_K, **header}, np.array(COUNTS))


@pytest.fixture
def stored(tmp_path: Path) -> TeacherFile:
    """Stored in two parts of two rows."""
    file = make(tmp_path / "spillway" / "teacher-train.bin")
    file.find()
    assert file.rows == 0 and not file.whole
    file.begin(0)
    file.add(tokens(2), 2)
    file.add(tokens(6, 100), 2)
    file.end()
    return file


def same(one: TopTokens, other: TopTokens) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("ids", "logits", "rest"))


def test_rows_are_read_in_any_order(stored: TeacherFile) -> None:
    found = make(stored.path)
    found.find()
    assert found.whole and found.digest == stored.digest
    assert found.size == stored.path.stat().st_size and found.remaining == 0
    later = tokens(6, 100)
    assert same(found.read(np.array([3, 1, 0])), TopTokens.join([later.select(slice(5, 6)), tokens(2)]))
    assert same(found.read(np.array([2])), later.select(slice(0, 5)))


def test_bytes_are_those_of_the_documented_format(stored: TeacherFile) -> None:
    content = stored.path.read_bytes()
    assert content[:8] == b"SPILLTCH"
    (length,) = struct.unpack_from("<I", content, 8)
    assert json.loads(content[12 : 12 + length]) == {"format": 1, "data": "a", "top_k": TOP_K}
    record = content[12 + length :][: 2 * TOP_K * 8 + 2 * 8 + 4]
    ids, logits = struct.unpack_from("<6i", record), struct.unpack_from("<6f", record, 24)
    assert ids == tuple(range(6)) and logits == tuple(tokens(2).logits.flatten().tolist())
    assert struct.unpack_from("<2d", record, 48) == (-2.0, 2.0)
    assert struct.unpack_from("<I", record, 64)[0] == zlib.crc32(record[:64])


def test_a_file_that_was_cut_short_goes_on(stored: TeacherFile) -> None:
    whole, digest = stored.path.read_bytes(), stored.digest
    for cut in (len(whole) - 1, len(whole) - 60):
        stored.path.write_bytes(whole[:cut])
        found = make(stored.path)
        found.find()
        assert not found.whole and found.rows == (3 if cut == len(whole) - 1 else 2)
        found.begin(2)
        found.add(tokens(6, 100), 2)
        assert stored.path.read_bytes() == whole and found.digest == digest


def test_rows_from_a_damaged_one_on_are_not_stored(stored: TeacherFile) -> None:
    content = bytearray(stored.path.read_bytes())
    content[-100] ^= 1  # of the third row
    stored.path.write_bytes(content)
    found = make(stored.path)
    found.find()
    assert found.rows == 2
    with pytest.raises(SpillwayError, match=r"teacher-train.bin: the record of row 3 is damaged"):
        stored.read(np.array([0, 2]))
    stored.path.unlink()
    with pytest.raises(SpillwayError, match="cannot be read"):
        stored.read(np.array([0]))


def test_a_file_of_something_else_is_made_anew(stored: TeacherFile) -> None:
    other = make(stored.path, data="b")
    other.find()
    assert other.rows == 0
    other.begin(0)
    assert other.path.stat().st_size < stored.size
