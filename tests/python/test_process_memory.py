"""Where threads allocate from, in a process of its own: a process's heap is its own history."""

from __future__ import annotations

import subprocess
import sys

ARENAS = """
import threading
from spillway.base.own_thread import in_own_thread
from spillway.machine.process_memory import in_main_arena, settle

assert in_main_arena()
together = threading.Barrier(6)

def thread_of_its_own():
    together.wait()
    in_main_arena()
    together.wait()

threads = [threading.Thread(target=thread_of_its_own) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
settle()
print(all(in_own_thread(in_main_arena) for _ in range(4)))
print(all(in_own_thread(in_main_arena, in_main_arena) for _ in range(4)))
"""


def test_threads_of_before_leave_arenas_that_are_not_measured_in() -> None:
    found = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False", "True"], found.stderr
