"""Spillway fine-tunes language models whose training state does not fit in memory.

Importing this package imports neither torch nor transformers; `spillway.train` does when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway.errors import DoesNotFit, InputError, Interrupted, SpillwayError

if TYPE_CHECKING:
    from spillway.integrations.own_loop import Session
    from spillway.model.source.own import Blocks
    from spillway.placed import empty, move, where
    from spillway.run.train import train

__version__ = "0.2.0"
__all__ = [
    "Blocks",
    "DoesNotFit",
    "InputError",
    "Interrupted",
    "Session",
    "SpillwayError",
    "__version__",
    "empty",
    "move",
    "train",
    "where",
]


def __getattr__(name: str) -> Any:
    if name == "train":
        from spillway.run.train import train

        return train
    if name == "Session":
        from spillway.integrations.own_loop import Session

        return Session
    if name == "Blocks":
        from spillway.model.source.own import Blocks

        return Blocks
    if name in ("empty", "move", "where"):
        from spillway import placed

        return getattr(placed, name)
    if name == "optim":
        import importlib

        return importlib.import_module("spillway.optim")
    raise AttributeError(f"module 'spillway' has no attribute {name!r}")
