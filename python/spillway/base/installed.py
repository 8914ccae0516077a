"""Files that are installed with the package: the profiles of described machines."""

from __future__ import annotations

from pathlib import Path

PROFILES = Path(__file__).parent.parent / "profiles"


def profiles() -> list[str]:
    """The names of the described machines."""
    return sorted(file.stem for file in PROFILES.glob("*.json"))


def profile(given: str | None) -> str | None:
    """The file of a machine that is meant by its name; anything else as it was given, a file of that name, too."""
    named = given is not None and given in profiles() and not Path(given).exists()
    return str(PROFILES / f"{given}.json") if named else given
