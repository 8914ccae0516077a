"""Packages that libraries import wherever they are installed, and that no command needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# PEFT imports bitsandbytes, and transformers imports PEFT. The engine packs weights itself. bitsandbytes prints when
# it is imported, and may fail where its CUDA is not that of the machine.
UNNEEDED = "bitsandbytes"


@contextmanager
def hide_unneeded_package() -> Iterator[None]:
    """Inside, UNNEEDED counts as not installed, unless this process has imported it already."""
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]
    if UNNEEDED in modules:
        yield
        return
    modules[UNNEEDED] = None  # Python's own word for a module that cannot be imported
    try:
        yield
    finally:
        del modules[UNNEEDED]
