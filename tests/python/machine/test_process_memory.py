"""Where threads allocate from, in a process of its own: a process's heap is its own history."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

HEAP = """
import ctypes
from pathlib import Path
from spillway.machine import process_memory

HUGE = process_memory.HUGE_PAGE
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def mapped():
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "[heap]" in line]
    sizes = [line.split()[0].split("-") for line in lines]
    return sum(int(last, 16) - int(first, 16) for first, last in sizes)

def advised(address):
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            first, last = (int(number, 16) for number in words[0].split("-"))
            inside = first <= address < last
        elif inside and words[0] == "VmFlags:":
            return "hg" in words

process_memory.settle()
large = libc.malloc(ctypes.c_size_t(3 << 30))  # nothing touches it
libc.free(large)
print(mapped() >= 3 << 30)  # it stays the heap's
process_memory.give_back()
print(mapped() < 1 << 30)
before = process_memory.resident()
process_memory.reserve(16 * HUGE)
print(mapped() >= 16 * HUGE and process_memory.resident() - before < HUGE)
block = libc.malloc(ctypes.c_size_t(8 * HUGE))
print(advised(block + 4 * HUGE))
"""
HOLES = """
import torch
from spillway.machine import process_memory

process_memory.settle()
used, are_aligned = [], True
for turn in range(4):
    small, blocks = [], []
    for _ in range(64):
        blocks.append(torch.empty(300_000))
        small += [torch.empty(1) for _ in range(4)]
    holes = {block.data_ptr() for block in blocks[::2]}
    blocks[::2] = [None] * 32
    again = [torch.empty(300_000) for _ in range(32)]
    used.append(len(holes & {block.data_ptr() for block in again}))
    are_aligned = are_aligned and all(block.data_ptr() % 64 == 0 for block in again)
    del small, blocks, again
    if turn == 1:
        process_memory.trim()
print(min(used), are_aligned)
"""
THP = Path("/sys/kernel/mm/transparent_hugepage")


def test_the_heap_keeps_what_is_let_go_and_lies_on_huge_pages() -> None:
    found = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, timeout=120)
    *kept, huge = found.stdout.split()
    assert kept == ["True", "True", "True"], found.stderr
    assert huge == "True" or not THP.is_dir()


def test_tensors_lie_where_tensors_of_their_size_have_lain() -> None:
    found = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=120)
    used, are_aligned = found.stdout.split()
    assert int(used) >= 28 and are_aligned == "True", found.stderr


def test_threads_of_before_leave_arenas_that_are_not_measured_in() -> None:
    found = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False", "True"], found.stderr
