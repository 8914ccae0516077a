"""Pairs of rows ready for training: a chosen and a rejected one, or an answer and a mismatched one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spillway.config.objectives import ObjectiveEntry
from spillway.data.dataset import Builder, Dataset
from spillway.data.encode import Encoded, EncodedAnswer, EncodedPair, EncodedRanked
from spillway.errors import InputError
from spillway.model.batches.batch import Batch

ROWS_EACH = 2  # of a pair


@dataclass
class Preferences:
    """Pairs in file order; `rows` holds the chosen one and the rejected one of each, one after the other."""

    rows: Dataset
    dropped: int  # pairs whose prompt alone fills max_length, left out
    has_reference: bool = True  # the objective compares with a reference model
    prompts: NDArray[np.int64] | None = None  # of each row: its first label tokens, which are of the prompt; None: none
    labels: NDArray[np.bool_] | None = None  # of each example: whether it is a good answer; None: examples are pairs
    scores: bool = False  # the loss is of the scores of rows, which have no labels
    margins: NDArray[np.float32] | None = None  # of each pair: the least difference of its scores; None: none
    reference: NDArray[np.float64] | None = None  # of each row: the log-probability of its labels; None: not known yet

    def __len__(self) -> int:
        return len(self.rows) // 2

    @property
    def origins(self) -> dict[str, str]:
        return self.rows.origins

    @property
    def longest(self) -> int:
        return self.rows.longest

    @property
    def packed_rows(self) -> float:
        return self.rows.packed_rows

    @property
    def largest_token(self) -> int:
        return self.rows.largest_token

    def fingerprint(self) -> str:
        """Equal exactly when training on it is equal, but for the reference."""
        prompts = "" if self.prompts is None else "-" + hashlib.sha256(self.prompts.astype("<i8").tobytes()).hexdigest()
        labels = "" if self.labels is None else "-" + hashlib.sha256(self.labels.tobytes()).hexdigest()
        margins = "" if self.margins is None else "-" + hashlib.sha256(self.margins.tobytes()).hexdigest()
        return "pairs-" + self.rows.fingerprint() + prompts + labels + margins

    def value_starts(self) -> NDArray[np.int64]:
        """[examples + 1]: where the reference's values of each example begin; the last is their number."""
        return 2 * np.arange(len(self) + 1, dtype=np.int64)

    def order_values(self, values: list[float]) -> list[float]:
        """The reference's values of a micro-batch, in the order of `reference`."""
        return interleave(values)

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        """The pairs of these indices as one micro-batch: all that were chosen, then all that were rejected."""
        import torch

        from spillway.model.meta.score_head import find_scored

        rows = np.concatenate([2 * pairs, 2 * pairs + 1])
        reference = None if self.reference is None else torch.from_numpy(self.reference[rows])
        prompts = None if self.prompts is None else torch.from_numpy(self.prompts[rows])
        verdicts = None if self.labels is None else torch.from_numpy(self.labels[pairs])
        batch = self.rows.batch(rows)
        if self.scores:
            margins = None if self.margins is None else torch.from_numpy(self.margins[pairs])
            scored = find_scored(batch.input_ids, self.rows.pad)
            return replace(batch, rows_each=ROWS_EACH, scored=scored, targets=margins)
        return replace(batch, reference=reference, rows_each=ROWS_EACH, prompts=prompts, verdicts=verdicts)


class PairBuilder:
    """Collects encoded pairs."""

    def __init__(self, max_length: int, pad: int, objective: ObjectiveEntry) -> None:
        self._rows = Builder(max_length, False, False, pad)
        self._max_length = max_length
        self._objective = objective
        self._prompts: list[int] = []
        self._dropped = 0

    def add(self, pair: EncodedPair) -> None:
        """Both rows are cut at max_length, as TRL does with `keep_start`."""
        if prompt_tokens(pair.chosen) >= self._max_length:
            self._dropped += 1
            return
        for row, labels_prompt in ((pair.chosen, self._objective.labels_prompt), (pair.rejected, False)):
            labelled = [True] * len(row.ids) if labels_prompt else row.labelled
            self._rows.keep(row.ids[: self._max_length], bytes(labelled[: self._max_length]))
            self._prompts.append(max(0, prompt_tokens(row) - 1) if labels_prompt else 0)  # nothing predicts the first

    def finish(self) -> Preferences:
        prompts = np.array(self._prompts, dtype=np.int64) if self._objective.labels_prompt else None
        return Preferences(self._rows.finish(), self._dropped, self._objective.has_reference, prompts)


class RankedBuilder:
    """Collects encoded pairs of whole rows. One with a row longer than max_length is left out, as TRL does."""

    def __init__(self, max_length: int, pad: int) -> None:
        self._rows = Builder(max_length, False, False, pad)
        self._max_length = max_length
        self._margins: list[float] = []
        self._first = ""  # the row that says whether there are margins
        self._dropped = 0

    def add(self, pair: EncodedRanked) -> None:
        rows = (pair.chosen, pair.rejected)
        if max(len(row.ids) for row in rows) > self._max_length:
            self._dropped += 1
            return
        self._first = self._first or pair.where
        if pair.margin is not None:
            self._margins.append(pair.margin)
        for row in rows:
            self._rows.keep(row.ids, bytes(row.labelled))
        if len(self._margins) not in (0, len(self._rows.starts) // 2):
            raise InputError(f"{pair.where}: margin is there in some rows and not in others, such as {self._first}")

    def finish(self) -> Preferences:
        margins = np.array(self._margins, dtype=np.float32) if self._margins else None
        return Preferences(self._rows.finish(), self._dropped, False, scores=True, margins=margins)


class AnswerBuilder:
    """Collects judged rows. Each becomes a pair: itself, and its prompt with another row's completion.

    The other row is the one before in file order, of a micro-batch's first row the micro-batch's last, as TRL's
    KTOTrainer takes them."""

    def __init__(self, max_length: int, pad: int, micro_batch: int) -> None:
        self._rows = Builder(max_length, False, False, pad)
        self._max_length = max_length
        self._micro_batch = micro_batch
        self._waiting: list[Encoded] = []
        self._labels: list[bool] = []
        self._dropped = 0

    def add(self, row: EncodedAnswer) -> None:
        if prompt_tokens(row.answer) >= self._max_length:
            self._dropped += 1
            return
        self._labels.append(row.label)
        self._waiting.append(row.answer)
        if len(self._waiting) == self._micro_batch:
            self._keep()

    def finish(self) -> Preferences:
        self._keep()
        return Preferences(self._rows.finish(), self._dropped, labels=np.array(self._labels, dtype=np.bool_))

    def _keep(self) -> None:
        others = [*self._waiting[-1:], *self._waiting[:-1]]
        for row, other in zip(self._waiting, others, strict=True):
            prompt, start = prompt_tokens(row), prompt_tokens(other)
            for ids in (row.ids, [*row.ids[:prompt], *other.ids[start:]]):
                labelled = [False] * prompt + [True] * (len(ids) - prompt)
                self._rows.keep(ids[: self._max_length], bytes(labelled[: self._max_length]))
        self._waiting = []


def interleave(sums: list[float]) -> list[float]:
    """A micro-batch's chosen and rejected rows, one after the other."""
    half = len(sums) // 2
    return [value for pair in zip(sums[:half], sums[half:], strict=True) for value in pair]


def prompt_tokens(row: Encoded) -> int:
    return len(row.labelled) - sum(row.labelled)
