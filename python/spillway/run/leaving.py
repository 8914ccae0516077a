"""The way that a failure leaves a run, whoever drives it: `spillway train`, a Session, a Trainer, TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spillway.errors import SpillwayError
from spillway.output.unsaved import why
from spillway.run.world import World

Close = Callable[[], object]


def say_nothing(error: BaseException) -> str:
    return ""


@contextmanager
def close_after_failure(
    world: World,
    *closes: Close,
    describe_state: Callable[[BaseException], str] = say_nothing,
    is_announced: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Inside, a failure ends the run in all processes: `closes` are called in order, and the failure is raised.

    `describe_state`: words about the state that the failure leaves, for the error that a person reads; it is called
    before anything is closed. `is_announced`: the other processes know already. An error of these calls is not told,
    since the first error is the one to tell, and keeps no close from its turn.
    """
    try:
        yield
    except BaseException as error:
        words = ""
        try:
            with suppress(Exception):
                if not is_announced():
                    world.announce()
                words = describe_state(error)
        finally:
            close_all(*closes)
        if words:
            raise SpillwayError(f"{why(error)}. {words}") from error
        raise


def close_all(*closes: Close) -> None:
    """Calls each of them, in order. Their errors are not told, but for a signal."""
    with suppress(Exception):
        close_in_order(*closes)


def close_in_order(*closes: Close) -> None:
    """Calls each of them, in order, whatever the ones before raise. Raises the first error."""
    first: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
