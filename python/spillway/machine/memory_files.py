"""Files that are mapped as memory: what is asked of them, and how fast they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spillway.base.calls import translated
from spillway.machine.nodes import measured_node
from spillway.machine.profile import MEASURE_SECONDS

if TYPE_CHECKING:
    from spillway._engine import NodeSettings, Profile
    from spillway.config.values import FileShare


def tiers(
    asked: Sequence[FileShare],
    nodes: Sequence[NodeSettings],
    rule: Mapping[str, str],
    profile: Profile,
    most_memory: int = 1 << 40,
) -> tuple[list[NodeSettings], list[str]]:
    """The tiers of host memory as the engine is told of them, and what a person should know of them. `nodes`: those
    without files, as `nodes.node_settings` says; none: DRAM is one. `rule`: what an update is of; `profile`: says how
    fast DRAM is; `most_memory`: bytes that files are measured in, at most."""
    if not asked:
        return list(nodes), []
    from spillway import _engine

    dram = _engine.NodeSettings(
        kind="dram",
        update=profile.update_elements_per_second_all_cores,
        update_thread=profile.update_elements_per_second,
    )
    found = list(nodes) or [dram]
    with translated():
        checked = _engine.check_memory_files([(share.directory, share.capacity) for share in asked])
        for number, share in enumerate(asked):
            rate = _engine.measure_memory_file(share.directory, share.capacity, most_memory, MEASURE_SECONDS, **rule)
            file = measured_node(number, share.capacity, rate)
            file.kind, file.directory = "file", share.directory
            found.append(file)
    return found, [notice for _, notice in checked if notice]


def taken(asked: Sequence[FileShare]) -> int:
    """Bytes of this machine's DRAM that such files take: those of a tmpfs."""
    if not asked:
        return 0
    from spillway import _engine

    with translated():
        checked = _engine.check_memory_files([(share.directory, share.capacity) for share in asked])
    return sum(share.capacity for share, (in_dram, _) in zip(asked, checked, strict=True) if in_dram)
