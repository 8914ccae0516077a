"""The rates of a machine, as its profile has them: read from a file, or measured now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from spillway.base.documents import read_text
from spillway.errors import DoesNotFit, InputError

if TYPE_CHECKING:
    from spillway._engine import Profile

MEASURE_SECONDS = 0.3  # for each rate of the machine
NO_RULE: Mapping[str, str] = MappingProxyType({})


def profile(
    path: str | None, places: Sequence[str] = (), rule: Mapping[str, str] = NO_RULE, most_memory: int = 1 << 40
) -> Profile:
    """Rates of the machine: from a file, or measured now, with those of the storage paths and of such an update, in at
    most so many bytes of memory (see machine/measure.h)."""
    from spillway import _engine

    try:
        if path is None:
            return _engine.measure(list(places), MEASURE_SECONDS, **rule, most_memory=most_memory)
        return _engine.Profile.parse(read_text(Path(path)), path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{'profile' if path else 'storage'}: {path or ', '.join(places)}: {error}") from error
    except MemoryError as error:
        raise DoesNotFit(f"storage: {error}") from error
    except ValueError as error:
        raise InputError(f"profile: {error}") from error
