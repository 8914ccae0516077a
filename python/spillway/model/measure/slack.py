"""The shares that a plan adds to a working set. Measurements and traces add the same ones."""

from __future__ import annotations

SLACK = 0.35  # holes of the heap, and huge pages that fill them (0.25 seen at 1.5 G parameters)
BRIEF_SLACK = 0.4  # besides, after one or two measurements: a run that measures more often finds up to 0.35 more
DEVICE_SLACK = 0.2  # instead of both on a GPU, whose allocator keeps blocks that it has split
SAVED_SLACK = 0.1  # of saved activations: holes of the heap between blocks that stay and blocks that go

# Two dry runs of one shape differ by at most this share, as seen (98 to 113 MiB): the free memory of the heap lies
# elsewhere in every process. A plan without a run counts it, and the run that follows fits.
MARGIN, LEAST_MARGIN = 1 / 8, 16 << 20


def add_margin(work_bytes: int, firm_bytes: int) -> int:
    """The working set of a plan without a run. `firm_bytes`: bytes of it that are alike in every process."""
    return work_bytes + max(LEAST_MARGIN, int(MARGIN * (work_bytes - firm_bytes)))
