"""What is said while a storage path answers nothing, once for each silence."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from spillway._engine import Silence
from spillway.base.silence import SilenceWatch


class Paths:
    """Answers one question after the other from a script, the last one for ever."""

    def __init__(self, *script: dict[str, tuple[int, float]]) -> None:
        self._script = list(script)
        self.over = threading.Event()

    def silence(self) -> dict[str, Silence]:
        now = self._script.pop(0)
        if not self._script:
            self._script.append(now)
            self.over.set()
        return {
            name: Silence(volume=f"/mnt/{name}", under_way=count, silent_seconds=seconds)
            for name, (count, seconds) in now.items()
        }


def told(*script: dict[str, tuple[int, float]]) -> list[str]:
    words: list[str] = []
    paths = Paths(*script, script[-1])
    watch = SilenceWatch(lambda: paths.silence, words.append, every=0.001, patience=30)
    assert paths.over.wait(30)
    watch.close()
    return words


def test_nothing_is_said_of_paths_that_answer() -> None:
    assert told({"a": (0, 0.0), "b": (8, 0.1)}, {"a": (3, 29.9), "b": (8, 0.2)}) == []


def test_a_silence_is_told_once_and_its_end_too() -> None:
    words = told({"a": (5, 31.0), "b": (8, 0.1)}, {"a": (5, 36.0), "b": (8, 0.1)}, {"a": (5, 0.3), "b": (8, 0.1)})
    assert len(words) == 2
    assert words[0].startswith("a (/mnt/a) has answered nothing for 31 s, with 5 requests under way")
    assert words[1] == "a answers again, after 36 s or more"


def test_each_silence_is_told() -> None:
    silent, well = {"a": (5, 40.0)}, {"a": (0, 0.0)}
    assert len(told(silent, well, silent, well)) == 4


def test_a_gpu_that_hangs_is_told_with_its_copy() -> None:
    def answer(under_way: int, seconds: float) -> dict[str, Silence]:
        lane = Silence(device="cuda:0 (Fake GPU)", under_way=under_way, silent_seconds=seconds)
        if under_way:
            lane.task, lane.bytes = "upload weight layers.3 chunk 12", 8 << 20
        return {"device:to_device": lane}

    over, words = threading.Event(), list[str]()
    script = [answer(0, 0.0), answer(2, 31.0), answer(2, 36.0), answer(0, 0.0)]

    def ask() -> dict[str, Silence]:
        if len(script) == 1:
            over.set()
            return script[0]
        return script.pop(0)

    watch = SilenceWatch(lambda: ask, words.append, every=0.001, patience=30)
    assert over.wait(30)
    watch.close()
    assert len(words) == 2
    assert words[0].startswith(
        "cuda:0 (Fake GPU) has not ended 'upload weight layers.3 chunk 12' of 8.00 MiB for 31 s (device:to_device, 2 "
    )
    assert words[1] == "device:to_device answers again, after 36 s or more"


def test_it_ends_at_once() -> None:
    close: Callable[[], None] = SilenceWatch(lambda: dict, every=3600).close
    close()
    close()


def test_it_keeps_nothing_alive() -> None:
    paths = Paths({"a": (0, 0.0)})
    gone = weakref.ref(paths)
    watch = SilenceWatch(weakref.WeakMethod(paths.silence), every=0.001)
    assert paths.over.wait(30)
    del paths
    while gone() is not None:
        time.sleep(0.001)
    watch.close()
