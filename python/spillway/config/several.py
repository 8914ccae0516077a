"""What several processes cannot do together, by name, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.errors import InputError

if TYPE_CHECKING:
    from spillway.config.resolve import Config


def check(config: Config) -> None:
    """Raises InputError naming the first key that asks for what they cannot do together."""
    world = config.ranks.world
    if config.virtual_ranks < world:
        raise InputError(
            f"virtual_ranks: {config.virtual_ranks}, and {world} processes were started, each of which computes one at "
            f"least; start no more than {config.virtual_ranks}, or give virtual_ranks {world} to a new run"
        )
    if config.gradient_accumulation_steps < world:
        raise InputError(
            f"gradient_accumulation_steps: {config.gradient_accumulation_steps} micro-batches in a step, and {world} "
            f"processes were started; with virtual_ranks given, the key counts those of all: give {world} or more"
        )
