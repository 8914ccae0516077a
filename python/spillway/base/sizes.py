"""Numbers as a person reads them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes: 0 B, 512 B, 4.0 KiB, 3.25 GiB."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if abs(count) < 1024:
            return f"{count:.{1 if abs(count) >= 10 else 2}f} {unit}"
    return f"{count / 1024:.2f} TiB"


def duration(seconds: float) -> str:
    """850 ms, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def pace(value: float) -> str:
    """A rate, in two digits at least: 173, 36, 5.7, 1.0, 0.42."""
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:#.2g}"


def decimal(count: float) -> str:
    """Bytes as drives are sold: 850 GB, 5.4 TB, 600 TB."""
    unit, many = next(((unit, many) for unit, many in (("TB", 1e12), ("GB", 1e9)) if count >= many), ("MB", 1e6))
    return f"{count / many:.3g} {unit}" if count < 1e15 else f"{count / many:,.0f} {unit}"


def used_up(written: float, rated: float) -> str:
    """What was written to a drive beside what it is rated for: 0.25 % of its rated endurance."""
    percent = 100 * written / rated
    words = "less than 0.01" if percent < 0.01 else f"{percent:.2f}" if percent < 10 else f"{percent:.0f}"
    return f"{words} % of its rated endurance"


def rate(value: float) -> str:
    """A learning rate: 2e-05, 0.001, 1.23e-05."""
    return f"{value:.3g}"
