"""The errors a caller may have to handle, each with the exit code of the command line.

Python's own families are kept (ValueError, MemoryError), so that code which never heard of Spillway can catch them.
"""

from typing import Any


class SpillwayError(Exception):
    """Something went wrong while running; the message says what and what to change."""

    exit_code = 1
    silent = False  # another process of the run tells it
    at_once = False  # threads may wait for processes that are gone: whoever exits waits for no thread


class InputError(SpillwayError, ValueError):
    """Bad input: the message names the key, the file and line, or the tensor. Nothing was written."""

    exit_code = 2


class DoesNotFit(SpillwayError, MemoryError):
    """A budget is too small; the message says what was asked, what is there and what would fit."""

    exit_code = 3

    def __init__(self, message: str, plan: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.plan = plan  # the refused plan (plan.json with "fits": false), where there is one


class ComputationDiffers(SpillwayError):
    """Two computations of one step gave different bits. The update was not made; the state is that of the step before.

    The run's loop adds where that state is."""

    def __init__(self, message: str, memory_changed: bool = False) -> None:
        super().__init__(message)
        self.memory_changed = memory_changed  # the bytes of weights in memory changed, so no save may use them


class Interrupted(SpillwayError):
    """A signal ended the run before its last step. The exit code is 128 + the signal's number."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def other_format(found: object, read: int) -> str:
    """What is said of a file that another release has written."""
    return f"format {found}, this release reads {read}; go on with the release that wrote it, or a newer one"


def first_line(error: BaseException) -> str:
    """What is quoted of another library's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # a first line that needs the next one
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__
