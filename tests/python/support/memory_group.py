"""A cgroup that holds the memory of a test's processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from needs import lacks
from spillway.demo.memory_limit import MemoryLimit, Unavailable


@contextmanager
def limited(limit: int) -> Iterator[MemoryLimit]:
    """A group of `limit` bytes. Skips the test where no group can be made."""
    try:
        group = MemoryLimit(limit)
    except Unavailable as reason:
        lacks("cgroup", f"no memory limit can be set here: {reason}")
    try:
        yield group
    finally:
        group.close()
