"""Calls in a thread of their own: what libraries keep for each thread is new there, and gone afterwards."""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(call: Callable[[], T]) -> T:
    """What `call` returns or raises, with the caller's context variables. While it runs, the caller waits; an
    interrupt of the caller (Ctrl-C) interrupts the call, and is raised when that has ended."""
    context, outcome = contextvars.copy_context(), Future[T]()

    def run() -> None:
        try:
            outcome.set_result(context.run(call))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="spillway-own")
    try:
        thread.start()
        outcome.exception()  # not Thread.join, which takes the thread for ended when it is interrupted (Python 3.11)
    except KeyboardInterrupt:
        while thread.ident is None:  # start was interrupted
            time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        outcome.exception()
        raise
    thread.join()
    return outcome.result()
