"""Machines that are alike and train one model together, as a profile describes them: how many processes there are, and
what bounds their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from spillway._engine import NetworkBytes, PlanSummary
from spillway.base.counts import counted
from spillway.base.ranks import Ranks

if TYPE_CHECKING:
    from spillway._engine import Profile

Plan = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    machines: int
    processes: int  # on each: one for each of its GPUs, or one where the CPUs compute

    @property
    def world(self) -> int:
        return self.machines * self.processes

    @property
    def ranks(self) -> Ranks:
        """The process that plans are made for, which has as much as any."""
        return Ranks(0, self.world, 0, self.processes)

    @property
    def grown(self) -> Cluster:
        """The same cluster with one machine more."""
        return Cluster(self.machines + 1, self.processes)

    def words(self) -> str:
        return f"{counted(self.machines, 'machine')} with {counted(self.processes, 'process')} each"


def read_cluster(profile: Profile, on_gpu: bool) -> Cluster | None:
    """None: the profile says nothing of `machines`, and one process trains."""
    machines = profile.machines
    return Cluster(machines, len(profile.gpus) if on_gpu else 1) if machines else None


def limits(plan: PlanSummary, alone: Mapping[str, float], cluster: Cluster, network: float) -> Plan:
    """The summary of a plan for one process of a cluster. `alone`: seconds that each resource needs by itself;
    `network`: bytes per second of a machine, each way.

    "network_needed": with less than that it would be the network that bounds a step, were all else as planned.
    "network_bound_from": so many machines from which on it takes longer than the storage paths, whose part shrinks with
    each machine while what crosses between machines grows towards twice what two of them send."""
    others = max(seconds for name, seconds in alone.items() if name != "network")
    between = plan.between_machines or NetworkBytes()
    crossing = cluster.processes * max(between.sent, between.received)
    summary: Plan = {"machines": cluster.machines, "processes": cluster.processes, "network": network}
    summary["between_machines_per_step"] = crossing
    if crossing and others > 0:
        summary["network_needed"] = crossing / others
    paths = max((alone.get(name, 0.0) for name in ("paths", *plan.path_bytes_per_step)), default=0.0)
    if crossing and paths and network:
        summary["network_bound_from"] = bound_from(cluster.machines, crossing / network, paths)
    return {"cluster": summary}


def bound_from(machines: int, network: float, paths: float) -> int:
    """Seconds of a step on so many machines that what crosses takes, and the paths."""
    most = network / (1 - 1 / machines)  # with ever more of them
    return max(2, ceil(1 + paths * machines / most))
