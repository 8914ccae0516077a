"""Rows ready for training, held compactly: one run of int32 tokens, one flag a token, and where rows begin and end."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from spillway.data.encode import Encoded
from spillway.data.images import ImageReader, Picture, join_images, prepare
from spillway.errors import InputError
from spillway.model.batches.batch import Batch

if TYPE_CHECKING:
    import torch

    from spillway.model.head.distillation import TopTokens


class Taught(Protocol):
    """A teacher's logits for the label tokens of rows; see output.teacher_files."""

    @property
    def digest(self) -> str: ...

    def read(self, rows: NDArray[np.int64]) -> TopTokens:
        """The label tokens of these rows, row by row."""


@dataclass
class Dataset:
    """Rows (or packed pieces), in file order. Tokens of a row are tokens[begin:end]."""

    tokens: NDArray[np.int32]
    labelled: NDArray[np.bool_]  # does this token carry loss
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    joints: NDArray[np.int64] | None  # packed: where in `tokens` each joined row starts, rising; else None
    dropped: int  # rows and pieces without a label, left out
    pad: int  # token id that fills rows up
    origins: dict[str, str] = field(default_factory=dict)  # digests of the inputs, by name (data.origins)
    teacher: Taught | None = None  # what a teacher gave for the rows
    pictures: Pictures | None = None  # the images of rows

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def longest(self) -> int:
        return int((self.end - self.begin).max(initial=0))

    @property
    def token_count(self) -> int:
        return int((self.end - self.begin).sum())

    @property
    def largest_token(self) -> int:
        return int(self.tokens.max(initial=0))

    @property
    def packed_rows(self) -> float:
        """Rows of one length that each piece would join if attention over them took as long as over these, which grows
        with the square of their lengths: 1 where none is joined with another."""
        if self.joints is None or not len(self):
            return 1.0
        cuts = np.unique(np.concatenate([self.joints, self.begin, self.end]))
        squares = [np.square(lengths, dtype=np.float64).sum() for lengths in (self.end - self.begin, np.diff(cuts))]
        return float(max(1.0, squares[0] / squares[1]))

    def fingerprint(self) -> str:
        """Equal exactly when training on it is equal."""
        digest = hashlib.sha256()
        for part in (self.tokens, self.labelled, self.begin, self.end, self.joints):
            digest.update(b"-" if part is None else len(part).to_bytes(8, "little"))
            if part is not None:
                digest.update(part.view(np.uint8).data)
        if self.pictures is not None:
            digest.update(self.pictures.digest().encode())
        return digest.hexdigest()

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The rows of these indices as one micro-batch, padded on the right to the longest of them."""
        import torch

        lengths = self.end[rows] - self.begin[rows]
        shape = (len(rows), int(lengths.max()))
        ids = np.full(shape, self.pad, dtype=np.int64)
        labels = np.full(shape, -100, dtype=np.int64)
        for line, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            span = slice(self.begin[row], self.end[row])
            ids[line, :length] = self.tokens[span]
            labels[line, :length] = np.where(self.labelled[span], self.tokens[span], -100)
        positions: torch.Tensor | None = None
        if self.joints is not None:
            positions = torch.from_numpy(np.stack([self.positions(row, shape[1]) for row in rows]))
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(labels),
            positions,
            int(lengths.sum()),
            torch.from_numpy(lengths),
            teacher=None if self.teacher is None else self.teacher.read(rows),
            images=None if self.pictures is None else self.pictures.join(rows, shape[1]),
        )

    def label_counts(self) -> NDArray[np.int64]:
        """The label tokens of each row; its first token is none, since nothing predicts it."""
        sums = np.concatenate([[0], np.cumsum(self.labelled, dtype=np.int64)])
        return sums[self.end] - sums[np.minimum(self.begin + 1, self.end)]

    def positions(self, row: int, length: int) -> NDArray[np.int64]:
        """0, 1, 2 ... from the start of the piece, from each joined row in it, and from the padding after it."""
        assert self.joints is not None
        begin, end = self.begin[row], self.end[row]
        inside = self.joints[np.searchsorted(self.joints, begin, "right") : np.searchsorted(self.joints, end)]
        starts = np.zeros(length, dtype=np.int64)
        starts[inside - begin] = inside - begin
        if end - begin < length:
            starts[end - begin] = end - begin
        return np.arange(length, dtype=np.int64) - np.maximum.accumulate(starts)


@dataclass
class Pictures:
    """The images of a dataset's rows."""

    by_row: dict[int, Picture]
    reader: ImageReader

    def join(self, rows: NDArray[np.int64], length: int) -> dict[str, torch.Tensor] | None:
        """The model's arguments for these rows, padded to `length` tokens. None: they have no images."""
        pictures = [self.by_row.get(int(row)) for row in rows]
        return join_images([{} if each is None else prepare(each, self.reader) for each in pictures], length)

    def digest(self) -> str:
        return "".join(f"{row} {picture.digest}\n" for row, picture in self.by_row.items())


class Builder:
    """Collects encoded rows into a Dataset."""

    def __init__(self, max_length: int, packing: bool, cut_into_pieces: bool, pad: int) -> None:
        self.max_length = max_length
        self.packing = packing
        self.cut_into_pieces = cut_into_pieces  # a row longer than max_length becomes several, not one cut short
        self.pad = pad
        self.tokens = array("i")
        self.labelled = bytearray()
        self.starts = array("q")
        self.dropped = 0
        self.pictures: dict[int, Picture] = {}

    def add(self, row: Encoded) -> None:
        if row.picture is not None:
            self.add_picture(row, row.picture)
            return
        if self.packing:
            self.append(row.ids, row.labelled)
            return
        last = len(row.ids) if self.cut_into_pieces else 1
        for first in range(0, last, self.max_length):
            piece = slice(first, first + self.max_length)
            self.append(row.ids[piece], row.labelled[piece])

    def add_picture(self, row: Encoded, picture: Picture) -> None:
        """A row with images, of which none may be cut."""
        if len(row.ids) > self.max_length:
            raise InputError(
                f"{picture.where}: the row has {len(row.ids)} tokens with those of its images, more than max_length: "
                f"{self.max_length}; raise max_length, or make the images smaller"
            )
        number = len(self.starts)
        self.append(row.ids, row.labelled)
        if len(self.starts) > number:
            self.pictures[number] = picture

    def append(self, ids: object, labelled: object) -> None:
        flags = bytes(labelled)  # type: ignore[call-overload]
        if not any(flags[1:]):  # the first token has nothing to be predicted from
            self.dropped += 1
            return
        self.keep(ids, flags)

    def keep(self, ids: object, flags: bytes) -> None:
        self.starts.append(len(self.tokens))
        self.tokens.extend(ids)  # type: ignore[arg-type]
        self.labelled += flags

    def finish(self) -> Dataset:
        tokens = np.frombuffer(self.tokens, dtype=np.int32) if self.tokens else np.empty(0, np.int32)
        labelled = np.frombuffer(self.labelled, dtype=np.bool_) if self.labelled else np.empty(0, np.bool_)
        starts = np.array(self.starts, dtype=np.int64)
        if not self.packing:
            ends = np.append(starts[1:], len(tokens)) if len(starts) else starts
            return Dataset(tokens, labelled, starts, ends, None, self.dropped, self.pad)
        return self.packed(tokens, labelled, starts)

    def packed(self, tokens: NDArray[np.int32], labelled: NDArray[np.bool_], joints: NDArray[np.int64]) -> Dataset:
        """The joined rows cut into pieces of max_length, the last one shorter."""
        labelled[joints] = False  # the token before lies in another row
        begin = np.arange(0, len(tokens), self.max_length, dtype=np.int64)
        end = np.minimum(begin + self.max_length, len(tokens))
        labels = np.add.reduceat(labelled, begin, dtype=np.int64) if len(begin) else begin
        kept = labels > labelled[begin]  # the first token has nothing to be predicted from
        dropped = self.dropped + int((~kept).sum())
        return Dataset(tokens, labelled, begin[kept], end[kept], joints, dropped, self.pad)
