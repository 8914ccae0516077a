"""Rows with labels ready for training, as transformers' examples for classification encode them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillway.config import Config
from spillway.data.chat import template_ids
from spillway.data.dataset import Builder, Dataset
from spillway.data.encode import Encoder
from spillway.data.labels import IGNORED, Classes, Labelled
from spillway.errors import InputError
from spillway.model.batches.batch import Batch
from spillway.model.source import hub
from spillway.model.source.labels import SEVERAL, SINGLE, load_run_config


@dataclass(frozen=True)
class EncodedLabelled:
    """One row. `targets`: of the row a class, or numbers; of words a class, or IGNORED, for each token."""

    ids: list[int]
    targets: Any


@dataclass
class LabelledRows(Dataset):
    """Rows whose loss is of the scores that a head of labels gives; no token carries loss."""

    targets: NDArray[Any] = field(default_factory=lambda: np.empty(0))  # [rows], [rows, labels], or of words [tokens]
    of_words: bool = False

    def fingerprint(self) -> str:
        targets = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes()).hexdigest()
        return f"labels-{super().fingerprint()}-{targets}"

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        import torch

        from spillway.model.meta.score_head import find_scored

        batch = super().batch(rows)
        if not self.of_words:
            scored = find_scored(batch.input_ids, self.pad)
            return replace(batch, scored=scored, targets=torch.from_numpy(self.targets[rows]))
        labels = np.full(tuple(batch.input_ids.shape), IGNORED, dtype=np.int64)
        for line, row in enumerate(rows):
            span = slice(self.begin[row], self.end[row])
            labels[line, : span.stop - span.start] = self.targets[span]
        flat = torch.from_numpy(labels.reshape(-1))
        scored = (flat != IGNORED).nonzero().view(-1)
        return replace(batch, scored=scored, targets=flat[scored])


class LabelledBuilder:
    """Collects encoded rows. One without a token, or without a label, is left out."""

    def __init__(self, max_length: int, pad: int, of_words: bool) -> None:
        self._rows = Builder(max_length, False, False, pad)
        self._of_words = of_words
        self._targets: list[Any] = []

    def add(self, row: EncodedLabelled) -> None:
        if not row.ids or (self._of_words and set(row.targets) <= {IGNORED}):
            self._rows.dropped += 1
            return
        self._rows.keep(row.ids, bytes(len(row.ids)))
        if self._of_words:
            self._targets += row.targets
        else:
            self._targets.append(row.targets)

    def finish(self) -> LabelledRows:
        rows = self._rows.finish()
        exact = self._of_words or not self._targets or isinstance(self._targets[0], int)
        targets = np.array(self._targets, dtype=np.int64 if exact else np.float32)
        return LabelledRows(
            **{each.name: getattr(rows, each.name) for each in fields(rows)}, targets=targets, of_words=self._of_words
        )


@dataclass
class LabelEncoder:
    """Encodes rows as the library's examples do: the tokenizer's own tokens, cut at max_length by its own rule, and no
    end token."""

    encoder: Encoder
    classes: Classes
    max_length: int

    @classmethod
    def build(cls, config: Config, encoder: Encoder) -> LabelEncoder:
        return cls(encoder, read_classes(config), config.max_length)

    def encode_rows(self, rows: list[Labelled]) -> list[EncodedLabelled]:
        texts = [row.content for row in rows if isinstance(row.content, str) and row.pair is None]
        both = [row for row in rows if row.pair is not None]
        encoded = iter(self.encode_texts(texts) if texts else [])
        pairs = iter(self.encode_texts([row.content for row in both], [row.pair for row in both]) if both else [])
        ids = [
            self.encode_chat(row.content)
            if not isinstance(row.content, str)
            else next(encoded if row.pair is None else pairs)
            for row in rows
        ]
        return [EncodedLabelled(each, self.classes.find(row)) for row, each in zip(rows, ids, strict=True)]

    def encode_texts(self, texts: list[str], seconds: list[str | None] | None = None) -> list[list[int]]:
        """Tokens of texts, or of each text with the second one of its row."""
        encoded = self.encoder.tokenizer(
            texts, seconds, truncation=True, max_length=self.max_length, return_attention_mask=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]

    def encode_chat(self, chat: Any) -> list[int]:
        self.encoder.require_template(chat.where)
        chat = self.encoder.fitting.fit(chat)
        return template_ids(self.encoder.tokenizer, chat, chat.messages)[: self.max_length]

    def encode_words(self, rows: list[Labelled]) -> list[EncodedLabelled]:
        """The first piece of each word has its label."""
        labels = [self.classes.find_each(row) for row in rows]
        try:
            encoded = self.encoder.tokenizer(
                [row.content or [""] for row in rows],
                is_split_into_words=True,
                truncation=True,
                max_length=self.max_length,
                return_attention_mask=False,
                verbose=False,
            )
            words = [encoded.word_ids(number) for number in range(len(rows))]
        except (AssertionError, ValueError) as error:  # a slow tokenizer, or one that needs a space before words
            name = type(self.encoder.tokenizer).__name__
            raise InputError(f"tokenizer: {name} cannot encode lists of words: {error}") from error
        return [
            EncodedLabelled(list(ids), label_pieces(pieces, each))
            for ids, pieces, each in zip(encoded["input_ids"], words, labels, strict=True)
        ]


def label_pieces(pieces: list[int | None], labels: list[int]) -> list[int]:
    """A label for each token. `pieces`: the word that each token is of; None: of none."""
    before = [None, *pieces[:-1]]
    return [
        IGNORED if word is None or word == last or not labels else labels[word]
        for word, last in zip(pieces, before, strict=True)
    ]


def read_classes(config: Config) -> Classes:
    """The labels of the run's head."""
    model = load_run_config(config, hub.model_directory(config))
    problem = SINGLE if config.objective_entry.labels_words else model.problem_type
    ids = dict(sorted(model.label2id.items(), key=lambda each: each[1]))
    return Classes(model.num_labels, ids, problem == SINGLE, problem == SEVERAL)
