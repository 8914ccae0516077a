"""The reference model's log-probabilities of every row of pairs: computed by a first streamed pass, kept with the run.

The reference is the model as it is before the first step, of adapters the base that they begin as. So it is computed
before that, once, and one model streams. OUTPUT_DIR/spillway/reference-NAME.jsonl holds what was computed: a header,
the rows in file order as they come, and a digest of all of them when they are whole. A run that is killed before its
first step goes on with the rows that are there; a later one refuses without them, since its model is another by then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spillway.base.documents import parse_json
from spillway.base.files import flush, no_link, replace_text
from spillway.data.order import in_file_order
from spillway.errors import InputError
from spillway.model.batches.batch import Batch
from spillway.output import identity
from spillway.output.records import is_number
from spillway.run.world import World

FORMAT = 1
ROW_BYTES = 24  # of a file, for each row


class Comparable(Protocol):
    """Pairs in an order of their own; see preferences.Preferences."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> str: ...

    def batch(self, pairs: NDArray[np.int64]) -> Batch: ...

    def value_starts(self) -> NDArray[np.int64]: ...

    def order_values(self, values: list[float]) -> list[float]: ...


class Computes(Protocol):
    def log_probabilities(self, batches: list[Batch]) -> list[list[float]]: ...


@dataclass(frozen=True)
class Pass:
    """How the rows are computed: in file order, so many pairs at once, so many of these groups in each forward pass."""

    pairs: int
    groups: int

    def parts(self, data: Sized, begun: int) -> list[list[NDArray[np.int64]]]:
        """The parts of each forward pass, from pair `begun` on."""
        order = in_file_order(len(data), self.pairs)[begun // self.pairs :]
        return [order[first : first + self.groups] for first in range(0, len(order), self.groups)]


@dataclass
class Reference:
    """The log-probabilities of one dataset's rows, in the order that `Preferences` has them."""

    path: Path
    header: dict[str, Any]
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    digest: str = ""  # once they are whole
    writes: bool = True  # of several processes one keeps the file

    @classmethod
    def load(cls, folder: Path, name: str, data: Comparable) -> Reference:
        """The stored reference, if it is of this data; else an empty one. `folder`: a directory with a run or a
        checkpoint."""
        reference = cls(file_of(folder, name), header_of(data))
        reference._read()
        return reference

    @property
    def whole(self) -> bool:
        return bool(self.digest)

    def compute(self, session: Computes, data: Comparable, how: Pass, tell: Callable[[int], None]) -> None:
        """Computes the missing rows. `tell` receives the number of pairs done after each forward pass. The reference is
        whole when the call returns."""
        starts = data.value_starts()
        begun = count_whole(starts, len(self.values)) // how.pairs * how.pairs
        self.values = self.values[: starts[begun]]
        self._rewrite()
        place = self.path if self.writes else os.devnull
        with open(place, "a", encoding="utf-8", opener=no_link) as stream:
            for rows in compute_probabilities(session, data, how, begun):
                stream.write(json.dumps({"first": len(self.values), "log_probabilities": rows.tolist()}) + "\n")
                stream.flush()
                self.values = np.concatenate([self.values, rows])
                tell(count_whole(starts, len(self.values)))
        self.digest = digest_of(self.values)
        self._rewrite()

    def copy(self, checkpoint: Path) -> None:
        (checkpoint / identity.FOLDER).mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(self.path, checkpoint / identity.FOLDER / self.path.name)

    def keep(self, output_dir: Path) -> None:
        """In a run's own directory from here on."""
        self.path = output_dir / identity.FOLDER / self.path.name
        self._rewrite()

    def _rewrite(self) -> None:
        if not self.writes:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(self.header)]
        if len(self.values):
            lines.append(json.dumps({"first": 0, "log_probabilities": self.values.tolist()}))
        lines += [json.dumps({"sha256": self.digest})] if self.digest else []
        replace_text(self.path, "".join(line + "\n" for line in lines))
        flush(self.path.parent)  # no step is durable before its reference is

    def _read(self) -> None:
        """A last line that a kill cut short is left out, and so is everything from the first line that is damaged."""
        if not self.path.is_file():
            return
        lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        parts = [each for line in lines if (each := parsed(line)) is not None]
        if not parts or parts[0] != self.header:
            return
        for part in parts[1:]:
            if part.get("first") == len(self.values) and has_probabilities(part):
                self.values = np.concatenate([self.values, np.array(part["log_probabilities"], dtype=np.float64)])
            elif part.get("sha256") == digest_of(self.values) and len(self.values) == self.header["rows"]:
                self.digest = part["sha256"]
            else:
                return


def compute_probabilities(
    session: Computes, data: Comparable, how: Pass, begun: int = 0
) -> Iterator[NDArray[np.float64]]:
    """Each forward pass, from pair `begun` on: what it gives for its rows, in the order of `Preferences`."""
    for group in how.parts(data, begun):
        probabilities = session.log_probabilities([data.batch(pairs) for pairs in group])
        yield np.array([value for values in probabilities for value in data.order_values(values)])


def file_of(folder: Path, name: str) -> Path:
    return folder / identity.REFERENCES.replace("*", name)


def parsed(line: str) -> dict[str, Any] | None:
    try:
        content = parse_json(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def has_probabilities(part: dict[str, Any]) -> bool:
    values = part.get("log_probabilities")
    return isinstance(values, list) and all(map(is_number, values))


def header_of(data: Comparable) -> dict[str, Any]:
    return {"format": FORMAT, "rows": int(data.value_starts()[-1]), "data": data.fingerprint()}


def count_whole(starts: NDArray[np.int64], values: int) -> int:
    """The first examples whose values are all among so many. `starts`: as `Preferences.value_starts` has it."""
    return int(np.searchsorted(starts, values, "right")) - 1


def digest_of(values: NDArray[np.float64]) -> str:
    return hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()


def open_stored(world: World, folder: Path, name: str, data: Comparable) -> Reference:
    """`Reference.load` as rank 0 finds it, for each process of a run."""
    return replace(world.agreed(lambda: Reference.load(folder, name, data)), writes=world.leads)


def load_known(world: World, name: str, data: Comparable, places: list[Path], digest: str | None) -> Reference:
    """`find_stored`, the same for each process of a run."""
    return replace(world.agreed(lambda: find_stored(name, data, places, digest)), writes=world.leads)


def find_stored(name: str, data: Comparable, places: list[Path], digest: str | None) -> Reference:
    """The reference of a run that has made steps: in one of `places`, whole and with this `digest`, if there is one.
    InputError."""
    for place in places:
        reference = Reference.load(place, name, data)
        if reference.whole and digest in (None, reference.digest):
            return reference
    key = "dataset" if name == "train" else "eval_dataset"
    raise InputError(
        f"{key}: {file_of(places[0], name)} does not hold the log-probabilities that the run's "
        "reference model gave these rows before its first step, and the model is another one now; put the file back, "
        "or the data, or begin anew with `--overwrite`"
    )
