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
    asked: dict[str, tuple[object, tuple[object, ...]]] = {
        "device": (config.device, ("cpu",)),
        "durability": (config.durability, (None, "none", "step")),
        "memory_file": (config.memory_file, ([],)),
        "node": (config.node, ([],)),
        "storage_device": (config.storage_device, ([],)),
    }
    for name, (value, taken) in asked.items():
        if value not in taken:
            said = ", ".join(str(each) for each in taken if each) or "none"
            raise InputError(
                f"{name}: {told(value)}, with {world} processes, is not available in this release; they take {said}"
            )


def told(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
