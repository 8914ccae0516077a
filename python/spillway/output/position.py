"""Where a Trainer stands between two steps: what transformers writes beside a checkpoint, and the sums it leaves out.

A position is plain JSON, small enough to be committed with a step; the rows of the log, which grow, lie in a file.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from spillway.base.files import flush, new_file, no_link, replace_text
from spillway.errors import InputError
from spillway.output import identity
from spillway.output.records import DamagedLine, append_damage, describe_damage, is_number, read_lines

STATE, SCHEDULER, RANDOM = "trainer_state.json", "scheduler.pt", "rng_state.pth"  # transformers' names
DONE = b'{"done"'  # the beginning of a line with a position
Row = dict[str, Any] | None
MOST_BYTES = 56 * 1024  # of a position: what a commit carries, less what the session adds to it


@dataclass
class Due:
    """What the Trainer does after a step beside logging."""

    evaluate: bool = False
    save: bool = False

    def __bool__(self) -> bool:
        return self.evaluate or self.save


@dataclass
class Position:
    """After `step` steps. Its fields are JSON."""

    step: int
    state: dict[str, Any]  # TrainerState without the rows of its log
    rows: int  # of the log
    flos: float  # not in the state yet
    loss: float  # summed since the last logged row
    last_logged: int  # its step
    gradient_norm: float | None  # of the step
    learning_rate: float | None
    scheduler: str  # packed
    random: str  # packed: the generators of Python, NumPy and PyTorch
    due: dict[str, bool] = field(default_factory=dict)  # Due, of what follows this step and is not done
    told: dict[str, Any] = field(default_factory=dict)  # TrlLog.moving, beside `loss`
    epoch_ended: bool = False  # what follows an epoch's last step is done, too

    def text(self) -> str:
        """InputError where callbacks keep more than a commit carries."""
        text = json.dumps(dataclasses.asdict(self), separators=(",", ":"))
        if len(text) > MOST_BYTES:
            largest = max(self.state["stateful_callbacks"].items(), key=lambda item: len(json.dumps(item[1])))[0]
            raise InputError(
                f"callbacks: the state of the Trainer takes {len(text)} bytes, of which {largest} has most; a durable "
                f"step carries {MOST_BYTES}. Keep less in the callback's state(), or use durability: none"
            )
        return text

    @classmethod
    def of(cls, content: Any) -> Position:
        try:
            found = cls(**content)
        except TypeError as error:
            raise InputError(f"resume_from_checkpoint: the Trainer's state there cannot be read: {error}") from None
        if wrong := found.describe_wrong_field():
            raise InputError(f"resume_from_checkpoint: the Trainer's state there is damaged: {wrong}")
        return found

    def describe_wrong_field(self) -> str:
        """A sentence about the first invalid field; empty without one."""
        counts, optional = ("step", "rows", "last_logged"), ("gradient_norm", "learning_rate")
        kinds = {"state": dict, "scheduler": str, "random": str, "due": dict, "told": dict, "epoch_ended": bool}
        for name in (*counts, "flos", "loss", *optional):
            value = getattr(self, name)
            if not (is_number(value) or (value is None and name in optional)) or (
                name in counts and not isinstance(value, int)
            ):
                return f"`{name}` is {value!r}"
        return next(
            (
                f"`{name}` is {getattr(self, name)!r:.80}"
                for name, kind in kinds.items()
                if not isinstance(getattr(self, name), kind)
            ),
            "",
        )

    @property
    def stopped(self) -> bool:
        """A callback ended the run here, before all its steps."""
        control = self.state["stateful_callbacks"].get("TrainerControl", {"args": {}})
        return self.step < self.state["max_steps"] and bool(control["args"].get("should_training_stop"))

    def write(self, directory: Path, rows: list[dict[str, Any]], random: str = RANDOM) -> None:
        """The files that transformers goes on from; `rows`: of the log, as many as there were; `random`: the name of
        that of the generators."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {**self.state, "log_history": rows[: self.rows]}
        replace_text(directory / STATE, json.dumps(state, indent=2, sort_keys=True) + "\n")
        for name, packed in ((SCHEDULER, self.scheduler), (random, self.random)):
            with open(new_file(directory / name), "wb") as stream:
                stream.write(unpacked(packed))


def position_of(
    trainer: Any, scratch: Path, norm: Any = None, rate: float | None = None, due: Due | None = None
) -> Position:
    """`scratch`: a directory to write to; `norm`, `rate`: of the step, as the Trainer logs them."""
    state = trainer.state
    kept = {each.name: getattr(state, each.name) for each in dataclasses.fields(state) if each.name != "log_history"}
    return Position(
        step=state.global_step,
        state={**kept, "stateful_callbacks": callback_states(trainer)},
        rows=len(state.log_history),
        flos=trainer.current_flos,
        loss=float(trainer._tr_loss),
        last_logged=trainer._globalstep_last_logged,
        gradient_norm=None if norm is None else float(norm),
        learning_rate=rate,
        scheduler=packed(saved(trainer.lr_scheduler.state_dict())),
        random=packed(random_state(trainer, scratch)),
        due=dataclasses.asdict(due) if due else {},
        told={} if trainer._told is None else trainer._told.moving(trainer),
    )


def callback_states(trainer: Any) -> dict[str, Any]:
    """The states of callbacks as `_save_checkpoint` takes them."""
    from transformers.trainer_callback import ExportableState

    found: dict[str, Any] = {}
    for each in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(each, ExportableState):
            found.setdefault(type(each).__name__, []).append(each.state())
    return {name: states if len(states) > 1 else states[0] for name, states in found.items()}


def random_state(trainer: Any, scratch: Path) -> bytes:
    trainer._save_own_rng_state(str(scratch))
    return (scratch / random_name(trainer.args.world_size, trainer.args.process_index)).read_bytes()


def random_name(world: int, rank: int) -> str:
    """Of the file of a process's generators, as transformers names it."""
    return RANDOM if world <= 1 else f"rng_state_{rank}.pth"


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 1)).decode()


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


class Log:
    """The rows of a Trainer's log, and the positions after which all that was due is done; appended, flushed."""

    def __init__(self, path: Path, known: tuple[list[Row], Position | None] | None = None, writes: bool = True) -> None:
        """`known`: its rows and `done`, in place of what the file has. A process that does not write leaves the file to
        another one."""
        self.path = path
        self.rows: list[Row] = []  # None for a damaged line, until `go_back`
        self.done: Position | None = None  # the last one
        self.damage: list[DamagedLine] = []
        self._writes = writes
        if known is not None:
            self.rows, self.done = known
        for entry, damage in read_lines(path, describe_wrong_entry) if known is None else ():
            if damage is not None:
                self.damage.append(damage)
            if entry is not None and "done" in entry:
                self.done = Position.of(entry["done"])
            elif damage is None or not damage.content.startswith(DONE):
                self.rows.append(entry)
        self._written = len(self.rows)

    def add(self, rows: list[dict[str, Any]], done: Position | None = None) -> None:
        """The rows that are new among all `rows`. They are on the drive when it returns."""
        lines = [json.dumps(row) for row in rows[self._written :]]
        lines += [f'{{"done":{done.text()}}}'] if done else []
        if not lines:
            return
        if self._writes:
            with open(self.path, "a", encoding="utf-8", opener=no_link) as stream:
                stream.write("".join(line + "\n" for line in lines))
                stream.flush()
                os.fsync(stream.fileno())
        self.rows, self._written = list(rows), len(rows)
        self.done = done or self.done

    def until(self, position: Position) -> list[dict[str, Any]]:
        """The undamaged rows up to a position."""
        return [row for row in self.rows[: position.rows] if row is not None and is_until(row, position.step)]

    def go_back(self, position: Position | None) -> Position | None:
        """Goes back to the rows of a position, and returns it with their number; None removes all rows. Damaged lines
        move to a file beside the log."""
        remaining = self.until(position) if position else []
        new_position = dataclasses.replace(position, rows=len(remaining)) if position else None
        self.rows, self._written = list(remaining), len(remaining)
        done = self.done if position and self.done and self.done.step == position.step else None
        self.done = dataclasses.replace(done, rows=len(remaining)) if done else None
        if not self._writes:
            return new_position
        if self.damage:
            append_damage(self.path, self.damage)
        lines = [json.dumps(row) for row in self.rows]
        lines += [f'{{"done":{self.done.text()}}}'] if self.done else []
        replace_text(self.path, "".join(line + "\n" for line in lines))
        flush(self.path.parent)  # no step is durable before the file of its rows has its name
        return new_position

    def describe_loss(self, position: Position) -> str:
        """A sentence with the damage of the log and the missing rows of a position; empty if all rows are valid."""
        missing = position.rows - len(self.until(position))
        where = f"the training goes on with a log of {position.rows - missing} rows, which had {position.rows}"
        if self.damage:
            return describe_damage(
                str(self.path), self.damage, f"set aside in {identity.TRAINER_LOG_ASIDE.name}; {where}"
            )
        return f"{self.path}: {missing} rows are missing; {where}" if missing else ""


def is_until(row: dict[str, Any], step: int) -> bool:
    """True if the row's step is not after `step`."""
    return not is_number(row.get("step")) or row["step"] <= step


def describe_wrong_entry(entry: dict[str, Any]) -> str:
    """The reason why a JSON object is no line of a Trainer's log; empty if it is one."""
    if "done" not in entry:
        return "" if "step" not in entry or is_number(entry["step"]) else "a `step` that is no number"
    try:
        Position.of(entry["done"])
    except InputError:
        return "no position"
    return ""
