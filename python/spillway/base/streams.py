"""Standard streams of a process that may outlive its terminal.

A program that starts with a closed stream gives the stream's number to the next file that it opens. Every print would
then write into that file, so `open_missing` puts /dev/null there first.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

NAMES = ("standard input", "standard output", "standard error")
ATTRIBUTES = ("stdin", "stdout", "stderr")  # attributes of the module sys, by descriptor
OUTPUT, ERROR = 1, 2


@dataclass(frozen=True)
class Losses:
    """Writes that failed, and the reason of the last one."""

    count: int = 0
    reason: str = ""


_losses = {OUTPUT: Losses(), ERROR: Losses()}  # losses of this process, by descriptor


class Stream(io.FileIO):
    """Bytes of a standard stream. A failed write drops its bytes when the stream `lasts`, else names the stream."""

    def __init__(self, descriptor: int, lasts: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lasts = lasts

    def write(self, content: Any) -> int:
        """Writes `content`, and waits for the reader even if somebody has set the stream to O_NONBLOCK."""
        left = memoryview(content).cast("B")
        size = left.nbytes
        try:
            while left:
                count = super().write(left)
                if count is None:
                    select.select([], [self.fileno()], [])
                left = left[count or 0 :]
        except OSError as error:
            if not self.lasts:
                raise OSError(error.errno, error.strerror, NAMES[self.fileno()]) from None
            count_loss(self.fileno(), error)
        return size


@contextmanager
def guard(output_lasts: bool = True) -> Iterator[None]:
    """A failure of standard error does not end the block, nor one of standard output if `output_lasts`.

    Streams that are not the process's own, such as a notebook's, stay as they are.
    """
    open_missing()
    with guard_stream(OUTPUT, output_lasts), guard_stream(ERROR, True):
        yield


@contextmanager
def guard_stream(descriptor: int, lasts: bool) -> Iterator[None]:
    before = getattr(sys, ATTRIBUTES[descriptor])
    if not is_own(descriptor, before) and raw_of(before) is None:
        yield
        return
    stream = before if raw_of(before) is not None else wrap(descriptor, before)
    raw = raw_of(stream)
    assert raw is not None
    mode, raw.lasts = raw.lasts, lasts
    setattr(sys, ATTRIBUTES[descriptor], stream)
    try:
        yield
    finally:
        raw.lasts = True  # the caller has flushed what it must not lose
        with suppress(ValueError):  # somebody closed it
            stream.flush()
        raw.lasts = mode
        if getattr(sys, ATTRIBUTES[descriptor]) is stream:
            setattr(sys, ATTRIBUTES[descriptor], before)


def open_missing() -> None:
    """Opens /dev/null on each closed descriptor from 0 to 2, for this process and its children."""
    for descriptor in range(len(NAMES)):
        try:
            os.fstat(descriptor)
        except OSError:
            place = os.open(os.devnull, os.O_RDWR)
            if place == descriptor:
                os.set_inheritable(place, True)
            else:  # another thread's file has the number
                os.close(place)


def losses(descriptor: int) -> Losses:
    """The losses of a guarded stream."""
    return _losses[descriptor]


def count_loss(descriptor: int, error: OSError) -> None:
    _losses[descriptor] = Losses(_losses[descriptor].count + 1, str(error.strerror))


def is_own(descriptor: int, stream: Any) -> bool:
    """Python's stream of the descriptor; None stands for one that was closed when Python began."""
    return stream is None or stream is getattr(sys, f"__{ATTRIBUTES[descriptor]}__")


def raw_of(stream: Any) -> Stream | None:
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return raw if isinstance(raw, Stream) else None


def wrap(descriptor: int, before: Any) -> io.TextIOWrapper:
    """A stream that replaces `before`, with its buffering. It escapes characters that its encoding lacks."""
    raw = Stream(descriptor, lasts=True)
    if before is not None:
        try:
            before.flush()
        except OSError as error:
            count_loss(descriptor, error)
    unbuffered = getattr(before, "write_through", False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=getattr(before, "line_buffering", True),
        write_through=unbuffered,
    )
