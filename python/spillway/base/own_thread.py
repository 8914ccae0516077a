"""Calls in a thread of their own: what libraries keep for each thread is new there, and gone afterwards."""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


TRIES = 64  # threads at most until one suits


def in_own_thread(call: Callable[[], T], suits: Callable[[], bool] = lambda: True) -> T:
    """What `call` returns or raises, with the caller's context variables. While it runs, the caller waits; an
    interrupt of the caller (Ctrl-C) interrupts the call, and is raised when that has ended. `suits`, asked in a new
    thread: whether this one may run the call; one that may not stays until the call has ended, so that the next one
    does not get what it has. The last one of `TRIES` runs it all the same."""
    context, ended, threads = contextvars.copy_context(), threading.Event(), list[threading.Thread]()
    try:
        for left in reversed(range(TRIES)):
            outcome = Future[list[T]]()

            def run(last: bool = not left, outcome: Future[list[T]] = outcome) -> None:
                try:
                    outcome.set_result([context.run(call)] if last or suits() else [])
                except BaseException as error:
                    outcome.set_exception(error)
                with suppress(KeyboardInterrupt):  # that came too late for the call
                    ended.wait()

            threads.append(threading.Thread(target=run, name="spillway-own"))
            wait_for(threads[-1], outcome)
            if found := outcome.result():
                return found[0]
        raise AssertionError("the last thread runs the call")
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def wait_for(thread: threading.Thread, outcome: Future[list[T]]) -> None:
    """Starts it and returns when it has an outcome; an interrupt interrupts it, and is raised then."""
    try:
        thread.start()
        outcome.exception()  # not Thread.join, which takes the thread for ended when it is interrupted (Python 3.11)
    except KeyboardInterrupt:
        while thread.ident is None:  # start was interrupted
            time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        outcome.exception()
        raise
