"""OUTPUT_DIR/spillway/teacher-NAME.bin: what a teacher gives for the label tokens of a dataset's rows.

A header says of which rows and of which teacher it is, then one record follows for each row in file order, as the
teacher's pass reaches it. The length of each record follows from the header and the rows, so any row is read alone. A
checksum ends each record: damaged rows are found and never used (docs/formats/teacher.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spillway.base.files import flush, new_file
from spillway.errors import SpillwayError
from spillway.output import identity

if TYPE_CHECKING:
    from spillway.model.head.distillation import TopTokens

FORMAT = 1
MAGIC = b"SPILLTCH"
NUMBER = 4  # bytes of a length or a checksum
ENTRY_BYTES = 8  # of a token's entry: its number in the vocabulary and its logit
REST_BYTES = 8  # of a token's rest


@dataclass
class TeacherFile:
    """The records of one dataset's rows; `read` finds what is stored."""

    path: Path
    header: dict[str, Any]
    tokens: NDArray[np.int64]  # label tokens of each row
    rows: int = 0  # that are stored, from the first one on
    checksums: list[int] = field(default_factory=list)  # of these rows

    @property
    def top_k(self) -> int:
        return int(self.header["top_k"])

    @property
    def whole(self) -> bool:
        return self.rows == len(self.tokens)

    @property
    def size(self) -> int:
        """Bytes of the file, once it is whole."""
        return int(self._ends[-1])

    @property
    def remaining(self) -> int:
        """Bytes that the file grows by until it is whole."""
        return max(0, self.size - (self.path.stat().st_size if self.path.is_file() else 0))

    @property
    def digest(self) -> str:
        """The digest of the stored rows."""
        return hashlib.sha256(self._prefix + np.array(self.checksums, dtype="<u4").tobytes()).hexdigest()

    def find(self) -> None:
        """Finds the rows that are stored. Rows from the first damaged one on count as not stored, and so does a file of
        other rows or of another teacher."""
        self.rows, self.checksums = 0, []
        if not self.path.is_file():
            return
        with open(self.path, "rb") as stream:
            if stream.read(len(self._prefix)) != self._prefix:
                return
            for row in range(len(self.tokens)):
                record = stream.read(self._length(row))
                if not is_intact(record, self._length(row)):
                    return
                self.checksums.append(int.from_bytes(record[-NUMBER:], "little"))
                self.rows = row + 1

    def begin(self, rows: int) -> None:
        """Keeps the first `rows` of those that are stored, for `add` to go on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not rows:
            with open(new_file(self.path), "wb") as stream:
                stream.write(self._prefix)
        else:
            os.truncate(self.path, int(self._ends[rows]))
        self.rows, self.checksums = rows, self.checksums[:rows]
        flush(self.path)
        flush(self.path.parent)

    def add(self, tokens: TopTokens, rows: int) -> None:
        """Stores the next `rows`, whose label tokens these are."""
        bounds = np.concatenate([[0], np.cumsum(self.tokens[self.rows : self.rows + rows])])
        records = []
        for first, after in zip(bounds, bounds[1:], strict=False):
            part = tokens.select(slice(int(first), int(after)))
            arrays = (part.ids.numpy().astype("<i4"), part.logits.numpy().astype("<f4"), part.rest.numpy())
            content = b"".join(array.tobytes() for array in arrays)
            self.checksums.append(zlib.crc32(content))
            records.append(content + self.checksums[-1].to_bytes(NUMBER, "little"))
        with open(self.path, "ab") as stream:
            stream.write(b"".join(records))
        self.rows += rows

    def end(self) -> None:
        """No step is durable before its teacher's rows are."""
        flush(self.path)

    def read(self, rows: NDArray[np.int64]) -> TopTokens:
        """The label tokens of these rows, row by row. SpillwayError names a damaged row."""
        from spillway.model.head.distillation import TopTokens

        try:
            with open(self.path, "rb", buffering=0) as stream:
                return TopTokens.join([self._decode(os.pread(stream.fileno(), self._length(row), self._ends[row]), row)
                                       for row in map(int, rows)])  # fmt: skip
        except OSError as error:
            raise SpillwayError(
                f"{self.path}: what the teacher gave for the rows cannot be read: {error.strerror}"
            ) from error

    def _decode(self, record: bytes, row: int) -> TopTokens:
        import torch

        from spillway.model.head.distillation import TopTokens

        if not is_intact(record, self._length(row)):
            raise SpillwayError(
                f"{self.path}: the record of row {row + 1} is damaged, and without it the step cannot be computed. Put "
                "the file back from a copy, or begin anew with `--overwrite`"
            )
        tokens, entries = int(self.tokens[row]), int(self.tokens[row]) * self.top_k
        ids = np.frombuffer(record, "<i4", entries).reshape(tokens, self.top_k)
        logits = np.frombuffer(record, "<f4", entries, NUMBER * entries).reshape(tokens, self.top_k)
        rest = np.frombuffer(record, "<f8", tokens, ENTRY_BYTES * entries)
        return TopTokens(*(torch.from_numpy(each.copy()) for each in (ids, logits, rest)))

    def _length(self, row: int) -> int:
        return int(self._ends[row + 1] - self._ends[row])

    def __post_init__(self) -> None:
        words = json.dumps({"format": FORMAT, **self.header}, sort_keys=True).encode()
        self._prefix = MAGIC + len(words).to_bytes(NUMBER, "little") + words
        sizes = self.tokens * (self.top_k * ENTRY_BYTES + REST_BYTES) + NUMBER
        self._ends = len(self._prefix) + np.concatenate([[0], np.cumsum(sizes)])


def is_intact(record: bytes, size: int) -> bool:
    return len(record) == size and zlib.crc32(record[:-NUMBER]) == int.from_bytes(record[-NUMBER:], "little")


def place_of(output_dir: Path, name: str) -> Path:
    """The path of a dataset's file. `name`: "train" or "eval"."""
    return output_dir / identity.TEACHERS.replace("*", name)
