"""The first rows of a source as tokens and labels, and the counts of all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spillway.data.labels import IGNORED


@dataclass(frozen=True)
class Part:
    """One sequence of a row. Token t is predicted from those before it, and carries loss if `labelled[t]`."""

    where: str  # the row in its source
    name: str  # of a row with several sequences, such as `chosen`
    ids: tuple[int, ...]
    labelled: tuple[bool, ...]
    more: int  # tokens behind these, beyond `max_length`
    targets: Any = None  # the labels of a classification

    @property
    def loss_tokens(self) -> int:
        """The number of tokens that carry loss. Nothing stands before the first one, so it carries none."""
        return sum(self.labelled[1:])

    @property
    def labels(self) -> list[int]:
        return [token if on else IGNORED for token, on in zip(self.ids, self.labelled, strict=True)]

    def spans(self, tokenizer: Any) -> list[tuple[bool, str]]:
        """The text of the tokens, split where loss begins and ends."""
        flags = (False, *self.labelled[1:])[: len(self.ids)]
        ends = [t for t in range(1, len(flags) + 1) if t == len(flags) or flags[t] != flags[t - 1]]
        texts = [""] + [decode(tokenizer, self.ids[:end]) for end in ends]
        return [
            (flags[end - 1], text[len(before) :] if text.startswith(before) else text)
            for end, before, text in zip(ends, texts[:-1], texts[1:], strict=True)
        ]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@dataclass
class Preview:
    """Takes the rows of one source."""

    count: int  # rows that it keeps
    length: int  # tokens that it keeps of a sequence: `max_length`
    cuts: bool = True  # tokens beyond `length` are lost; else rows are joined, or a document is split
    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    sequences: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0
    cut: int = 0  # sequences that are longer than `length`

    def clear(self) -> None:
        """Forgets what it took: another template encodes the rows again."""
        self.parts.clear()
        self.rows = self.sequences = self.tokens = self.loss_tokens = self.longest = self.cut = 0

    def add(self, where: str, encoded: Sequence[Any], names: Sequence[str]) -> None:
        """Takes a row of one or more `encoded` sequences (`ids`; `labelled` or `targets`) and their names."""
        self.rows += 1
        self.sequences += len(encoded)
        for name, each in zip(names, encoded, strict=True):
            size = len(each.ids)
            end = min(size, self.length) if self.cuts else size
            self.tokens += end
            self.loss_tokens += sum(getattr(each, "labelled", ())[1:end])
            self.longest = max(self.longest, size)
            self.cut += size > end
            if self.rows <= self.count:
                self.parts.append(self.make_part(where, name, each))

    def make_part(self, where: str, name: str, encoded: Any) -> Part:
        ids = tuple(map(int, encoded.ids[: self.length]))
        labelled = getattr(encoded, "labelled", [False] * len(ids))[: self.length]
        more = len(encoded.ids) - len(ids)
        return Part(where, name, ids, tuple(map(bool, labelled)), more, getattr(encoded, "targets", None))
