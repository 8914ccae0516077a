"""Which of a run's processes this one is, in torch.distributed's words. Of one process nothing is asked or imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spillway.errors import InputError

PLACES = ("rank", "local_rank")  # what a storage path may name in braces


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1  # processes of the run
    local_rank: int = 0  # among those of this machine
    local_world: int = 1
    machines: int = 1  # each with as many processes, in the order of ranks; else each process counts as one

    def of(self, virtual_ranks: int) -> range:
        """The virtual ranks whose gradients this process computes: contiguous ones."""
        return range(self.rank * virtual_ranks // self.world, (self.rank + 1) * virtual_ranks // self.world)

    def filled(self, place: str) -> str:
        """A path with this process's numbers in the place of `{rank}` and `{local_rank}`."""
        for name in PLACES:
            place = place.replace(f"{{{name}}}", str(getattr(self, name)))
        return place


ALONE = Ranks()


def machines_of(places: Sequence[tuple[int, int]]) -> int:
    """`Ranks.machines`, by what each process has as its local rank and local world."""
    world, local = len(places), places[0][1]
    even = world % local == 0 and all(place == (rank % local, local) for rank, place in enumerate(places))
    return world // local if even else world


def of_environment(environment: Mapping[str, str]) -> Ranks:
    """As torchrun and accelerate say it. InputError for what cannot be; one process where nothing is said."""
    world = number(environment, "WORLD_SIZE", 1)
    if world <= 1:
        return ALONE
    rank, local = number(environment, "RANK", -1), number(environment, "LOCAL_RANK", 0)
    found = Ranks(rank, world, local, number(environment, "LOCAL_WORLD_SIZE", 1))
    if not 0 <= rank < world:
        given = environment.get("RANK", "nothing")
        raise InputError(
            f"RANK: got {given} of a WORLD_SIZE of {world}, expects 0 to {world - 1}; launchers such as torchrun set it"
        )
    if not 0 <= found.local_rank < found.local_world <= world:
        raise InputError(
            f"LOCAL_RANK: got {found.local_rank} of a LOCAL_WORLD_SIZE of {found.local_world} in a WORLD_SIZE of "
            f"{world}; launchers such as torchrun set them"
        )
    return found


def restarted(environment: Mapping[str, str]) -> bool:
    """Whether torchrun says that it has started this process again."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise InputError(f"{name}: got {text!r}, expects a whole number; launchers such as torchrun set it")
    return int(text)
