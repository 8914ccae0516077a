"""NUMA nodes: which a run uses, how much of each, and how fast each updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.base.calls import translated
from spillway.errors import DoesNotFit
from spillway.machine.profile import MEASURE_SECONDS

if TYPE_CHECKING:
    from spillway import _engine
    from spillway._engine import Engine, MemoryPlaces, NodeSettings, PathSettings, PlanSummary, Profile
    from spillway.config.values import NodeShare


def alone(ids: Sequence[int]) -> Sequence[int]:
    """One process, on each of these nodes."""
    return [1] * len(ids)


@dataclass(frozen=True)
class NodePlan:
    """Host memory of a run, as the engine plans with it."""

    nodes: list[NodeSettings]
    dram_budget: int
    near: int | None  # the NUMA node of the GPU that computes


def node_settings(
    asked: Sequence[NodeShare], held: int, dram_budget: int, rule: Mapping[str, str],
    profile: Profile | None, gpu: int | None = None, storage: Sequence[PathSettings] = (),
    sharing: Callable[[Sequence[int]], Sequence[int]] = alone,
) -> tuple[NodePlan, list[str]]:  # fmt: skip
    """What the engine plans with, beside its other settings, and what a person should know about it. `held`: bytes of
    this process; `rule`: what an update is of; `profile`: says the rates; None: they are measured. `gpu`: that layers
    compute on; what comes and goes lies by it. `storage`: the paths as the engine is told of them; which are remote
    from that GPU is added. `sharing`: how many processes of the run are on each of these nodes; of what is free each
    has its part, and all have room for what each is asked."""
    from spillway import _engine

    with translated():
        places = [path.directory or path.device for path in storage]
        near, remote = _engine.near_gpu(gpu, places) if gpu is not None else (None, {})
        choice = _engine.choose_nodes([(share.node, share.capacity) for share in asked], held, near)
        chosen = choice.nodes
        ids = [node.id for node in chosen]
        sharers = sharing(ids)
        if any(count > 1 for count in sharers):
            share_nodes(chosen, asked, held, near, dict(zip(ids, sharers, strict=True)))
        if profile is not None:
            made = [profile_node(profile, node, count) for node, count in zip(chosen, sharers, strict=True)]
        elif len(ids) > 1:
            rates = _engine.measure_nodes(ids, MEASURE_SECONDS, **rule)
            made = [measured_node(node.id, node.capacity, rate) for node, rate in zip(chosen, rates, strict=True)]
        else:
            made = [_engine.NodeSettings(id=node.id, capacity=node.capacity) for node in chosen]
    for path, place in zip(storage, places, strict=True):
        path.remote = place in remote
        path.node = remote[place][0] if place in remote else None
    news = [words for _, words in remote.values()]
    news += [f"NUMA nodes are not told apart: {choice.notice}"] if choice.notice else []
    return NodePlan(made, min(dram_budget, choice.dram or dram_budget), near), news


def share_nodes(
    nodes: Sequence[_engine.NodeShare],
    asked: Sequence[NodeShare],
    held: int,
    near: int | None,
    sharers: Mapping[int, int],
) -> None:
    """So many processes of each node have as much of what is free; or what each asks for, and else DoesNotFit."""
    from spillway import _engine

    if not asked:
        for number, node in enumerate(nodes):
            own = held if number == 0 else 0
            node.capacity = own + (node.capacity - own) // sharers[node.id]
        return
    most = max(sharers.values())
    try:
        _engine.choose_nodes([(share.node, sharers[share.node] * share.capacity) for share in asked], most * held, near)
    except MemoryError as error:
        raise DoesNotFit(f"{error} (for {most} processes, each of which takes its part of that)") from error


def profile_node(profile: Profile, node: _engine.NodeShare, processes: int = 1) -> NodeSettings:
    """A node with the rates of a profile, as measure_nodes() would have them, by one of so many processes; of one that
    the profile does not know no rates."""
    from spillway import _engine

    known = next((it for it in profile.nodes if it.id == node.id and it.update_elements_per_second), None)
    made = _engine.NodeSettings(id=node.id, capacity=node.capacity)
    if known is not None:
        made.update = known.update_elements_per_second / processes
        made.update_thread = known.update_elements_per_second_thread
        made.read = known.read_bytes_per_second / processes
    return made


def measured_node(number: int, capacity: int, rate: _engine.NodeRate) -> NodeSettings:
    from spillway import _engine

    return _engine.NodeSettings(
        id=number,
        capacity=capacity,
        update=rate.update_elements_per_second,
        update_thread=rate.update_elements_per_second_thread,
        read=rate.read_bytes_per_second,
    )


def where(plan: PlanSummary, engine: Engine) -> MemoryPlaces | None:
    """Places of the arena as the kernel says; None when DRAM is one tier."""
    if names(plan) == ["dram"]:
        return None
    return engine.where()


def names(plan: PlanSummary) -> list[str]:
    """The names of the tiers of host memory."""
    return [tier.name for tier in plan.tiers if tier.name != "device" and not tier.name.startswith("path:")]


def measured_peaks(plan: PlanSummary, places: MemoryPlaces | None, process: int) -> dict[str, int]:
    """Peak bytes of each tier of memory. `places`: of where(). Other memory of the process counts to the first tier."""
    first, *others = names(plan)
    tiers = places.nodes if places else {}
    later = {name: tiers[name] for name in others}
    rest = process - sum(held.in_memory for held in later.values())
    return {first: rest} | {name: held.there for name, held in later.items()}


def memory_peak(plan: PlanSummary) -> int:
    """Planned, of the whole process."""
    memory = names(plan)
    return sum(tier.planned_peak for tier in plan.tiers if tier.name in memory)
