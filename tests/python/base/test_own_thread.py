"""Calls in a thread of their own."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
import time

import pytest

from spillway.base.own_thread import in_own_thread

HERE = contextvars.ContextVar("HERE", default=0)


def test_a_call_has_another_thread_and_the_callers_context() -> None:
    HERE.set(3)
    thread, value = in_own_thread(lambda: (threading.get_ident(), HERE.get()))
    assert thread != threading.get_ident() and value == 3


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 // 0)


def test_a_thread_that_does_not_suit_waits_for_one_that_does() -> None:
    asked = list[int]()

    def third() -> bool:
        asked.append(threading.get_ident())
        return len(asked) == 3

    before = threading.active_count()
    thread, there = in_own_thread(lambda: (threading.get_ident(), threading.active_count()), third)
    assert len({*asked}) == 3 and thread == asked[2] and there == before + 3 and threading.active_count() == before
    assert in_own_thread(lambda: 5, lambda: False) == 5


def test_what_suiting_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 5, lambda: 1 // 0 > 0)


def test_an_interrupt_ends_the_call() -> None:
    ended = []

    def call() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)  # which Python hands to the main thread
            for _ in range(6000):
                time.sleep(0.01)
        except KeyboardInterrupt:
            ended.append(True)
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_own_thread(call)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended
