"""The process's memory: how the allocator keeps it, and how much of it there is."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from spillway._engine import OutOfMemoryExit, redirect_posix_memalign
from spillway.base import sizes
from spillway.errors import DoesNotFit

# <malloc.h>
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
NON_MAIN_ARENA = 4  # a flag in the size that lies before each block (malloc.c)
# <sys/mman.h>
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
HUGE_PAGE = 2 << 20

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"

STACK = 8 << 20  # bytes of address space of a thread's stack
TO_TELL = 64 << 20  # bytes for what is measured under a budget that the process has passed already
# What PyTorch and oneDNN say when memory is refused.
REFUSED = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")
# Of oneDNN, for code that it could not make. What makes it, Xbyak, keeps an error of a thread for good (its
# local::GetErrorRef), so that the thread gets no product of another shape from there on.
NO_CODE = "could not create a primitive"


# PyTorch keeps a compiled product for every shape of matrix it meets, up to 1024 of them in each of two caches, some
# 200 KiB each: with rows of many lengths that is hundreds of MiB. A step of one shape needs about 30.
PRODUCT_CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
PRODUCTS = 64

ALLOCATING = ["libc10.so", "libtorch_cpu.so"]  # of PyTorch: tensors, and what oneDNN works in


def settle() -> None:
    """Makes glibc keep what a layer frees for the next layer: no mapping and unmapping of every large temporary, and
    no holes that a tensor of the same size cannot use.

    One arena and no trimming also make the heap's size a fact that a dry run can measure; so do bounded caches of
    compiled products (a user's own setting is left alone). Elsewhere than on glibc nothing happens. Before PyTorch's
    first product.
    """
    for name in PRODUCT_CACHES:
        os.environ.setdefault(name, str(PRODUCTS))
    mallopt = _of_libc("mallopt")
    if mallopt is None:
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
    mallopt(M_ARENA_MAX, 1)
    redirect_posix_memalign(ALLOCATING)
    _give_back_before_forks()


@functools.cache
def _give_back_before_forks() -> None:
    """What is free in the heap would be copied for a child as soon as a step uses it again."""
    os.register_at_fork(before=give_back)


def give_back() -> None:
    """Returns what is free in the heap to the kernel: for once, after work that does not come again."""
    gc.collect()
    trim()


def trim() -> None:
    """As `give_back`, without a look for what nobody refers to any more, which takes most of its time."""
    if malloc_trim := _of_libc("malloc_trim"):
        malloc_trim(0)


def in_main_arena() -> bool:
    """Whether this thread allocates from the heap that the main thread allocates from; True where that is not known.
    Threads that were there before `settle` have left arenas of their own, which new ones take over: of these glibc
    returns only parts to the kernel, so that what runs in one is seen to take other memory than in the main one."""
    if _of_libc("malloc_trim") is None:  # glibc alone has it, and with it the words before a block
        return True
    with _block(64 << 10) as block:  # too large for what a thread keeps of small blocks
        if not block:
            return True
        return not ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & NON_MAIN_ARENA


def use_huge_pages() -> None:
    """Puts the heap, as large as it is now, on huge pages: temporaries of many megabytes then miss the TLB less often.

    Where the kernel does not do this (Linux before 6.1, huge pages off) nothing happens.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            first, last = (int(number, 16) for number in line.split()[0].split("-"))
            _advise(first, last, MADV_HUGEPAGE, MADV_COLLAPSE)


def reserve(size: int) -> None:
    """Makes room in the heap for so many bytes, on huge pages. It is address space alone: a page is taken when it is
    used first. Without `settle` before, or where the kernel refuses, nothing happens."""
    if size < HUGE_PAGE:
        return
    with _block(size) as block:
        if block:
            _advise(block, block + size, MADV_HUGEPAGE)


@contextmanager
def _block(size: int) -> Iterator[int | None]:
    """The address of so many bytes of the C library's heap, which go back to it; None where there are none."""
    malloc, free = _of_libc("malloc"), _of_libc("free")
    if malloc is None or free is None:
        yield None
        return
    malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    found: int | None = malloc(ctypes.c_size_t(size))
    try:
        yield found
    finally:
        free(found)


def _advise(first: int, last: int, *advices: int) -> None:
    """madvise() for the whole huge pages between two addresses, where the C library has it."""
    first, last = -(-first // HUGE_PAGE) * HUGE_PAGE, last // HUGE_PAGE * HUGE_PAGE
    if (madvise := _of_libc("madvise")) is not None and first < last:
        for advice in advices:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def resident() -> int:
    """Bytes of this process in memory now."""
    return _field("VmRSS")


def anonymous() -> int:
    """Those that are nobody's file: the kernel takes none of them back, as it does with pages of libraries."""
    return _field("RssAnon")


def peak() -> int:
    """Most bytes in memory since the process began, or since the peak was reset."""
    return _field("VmHWM")


class OutOfBounds(Exception):
    """What ran needed more memory than it was bounded to."""


@contextmanager
def bounded(most: int | None) -> Iterator[None]:
    """While it is open, this process may hold about `most` bytes in memory: the kernel refuses to map more, and
    what asked for it ends with OutOfBounds instead of the process by the kernel. Libraries do not check their small
    allocations: where one crashes over what it was refused, the process ends with the exit code of DoesNotFit; and
    where oneDNN is refused room for code, this thread can multiply nothing new, so that DoesNotFit is raised, and what
    is bounded is best done in a thread of its own. None: no bound.

    The kernel counts what is mapped, so what the heap has free counts as held, and stacks of threads may come to be. A
    budget that the process has passed already is refused later, with what would fit: for that a small layer gets room.
    """
    if most is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    stacks = (os.cpu_count() or 1) * STACK
    left = most - resident()
    room = max(0, left - _free()) if left > 0 else TO_TELL
    limit = _field("VmData") + room + stacks
    found = [value for value in (limit, soft, hard) if value != resource.RLIM_INFINITY]
    crashed = OutOfMemoryExit(f"spillway: {no_room(most)}\n", DoesNotFit.exit_code)
    resource.setrlimit(resource.RLIMIT_DATA, (min(found), hard))
    try:
        yield
    except MemoryError as error:
        raise OutOfBounds from error
    except RuntimeError as error:  # PyTorch's and oneDNN's
        if NO_CODE in str(error):
            raise DoesNotFit(no_room(most)) from error
        if not any(words in str(error) for words in REFUSED):
            raise
        raise OutOfBounds from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        crashed.close()


def no_room(budget: int, what: str = "what is measured of one layer") -> str:
    """For a person: `what` takes more than the budget of this process has left."""
    return (
        f"does not fit in DRAM: {what} alone takes more than dram_budget, {sizes.size(budget)}, of which the process "
        f"has {sizes.size(resident())} already. Raise --dram_budget, or use a smaller max_length or "
        "per_device_train_batch_size"
    )


class _MallocInfo(ctypes.Structure):  # struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def _free() -> int:
    """Bytes of the heap that nobody uses, in memory or given back; 0 where it cannot be asked."""
    mallinfo = _of_libc("mallinfo2")
    if mallinfo is None:
        return 0
    mallinfo.restype = _MallocInfo
    return int(mallinfo().fordblks)


def _of_libc(name: str) -> Any:
    """A function of the C library, whose types are the caller's to set; None where there is no such function."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def _field(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


class PeakWatch:
    """Measures the most bytes in memory while it is open: `with PeakWatch() as watch: ...; watch.bytes`.

    Resets the kernel's own mark; where that is not allowed, a thread looks every few milliseconds.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._sampler: threading.Thread | None = None

    def __enter__(self) -> PeakWatch:
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampler is None:
            self.bytes = peak()
            return
        self._stop.set()
        self._sampler.join()
        self.bytes = max(self.bytes, resident())

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, resident())
