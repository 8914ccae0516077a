"""Plans for a machine that a profile describes and that is not this one: the engine's own planner, told of the
profile's memory, paths and GPU, and with times that follow from rates and shapes. No layer is run but those of a tiny
copy, by which a model is known to stream; read is nothing but the model's configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.base import stages
from spillway.base.documents import make_document, parse_json, read_text
from spillway.config import Config
from spillway.config.checks import check_gpu_memory
from spillway.errors import DoesNotFit, InputError
from spillway.machine import nodes
from spillway.run import cluster, described_images, described_sampling, replays
from spillway.run.described_work import growing, shape_of, traced, twice_as_long, work_of
from spillway.run.machine_request import request_of, settings_of

if TYPE_CHECKING:
    from spillway._engine import (
        DescribedMachine,
        Description,
        Engine,
        MachineRequest,
        PlanSummary,
        Profile,
        StepWork,
    )
    from spillway.model.measure.trace import StepTrace
    from spillway.model.spec import Verified
    from spillway.run.described_images import DescribedImages
    from spillway.run.generation_memory import GenerationMemory

GIB = 2**30
GROUPS = ("weight", "state", "grad", "activation")
RESOURCES = ("compute", "device_update", "from_device", "network", "to_device", "transfer", "update")
Tell = Callable[[str], None]
Plan = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """The input of one plan, as the engine's bindings take it."""

    description: Description
    request: MachineRequest
    profile: Profile
    longer: StepWork | None = None  # `work` of the request for rows of twice the length
    sampling: GenerationMemory | None = None  # of completions, which the request counts

    def described(self) -> DescribedMachine:
        """The input of an engine's planner. Raises InputError, DoesNotFit."""
        from spillway import _engine
        from spillway.base.calls import translated

        with translated():
            return _engine.describe_machine(self.description, self.request, self.profile)

    def engine(self) -> Engine:
        """An engine that has planned. Raises InputError, DoesNotFit."""
        from spillway import _engine
        from spillway.base.calls import translated

        settings, world = self.described().settings, self.description.world
        network = _engine.Network(world.rank, world.size) if world.size > 1 else None
        with translated():
            return _engine.Engine(self.description, settings, network)


Change = tuple[str, Asked]  # in words, and what is asked then


def described(config: Config, key: str = "machine") -> str | None:
    """The text of the profile when it names a machine of its own; None: this machine. `key`: another one that it has to
    have for that."""
    if config.profile is None:
        return None
    try:
        text = read_text(Path(config.profile))
        content = parse_json(text)
    except (OSError, ValueError) as error:
        raise InputError(f"profile: {config.profile}: {error}") from error
    return text if isinstance(content, dict) and key in content else None


def refuse_elsewhere(config: Config) -> None:
    """Refuses to train for a described machine: training runs on this one."""
    if config.profile is not None and described(config) is not None:
        raise InputError(
            f"profile: {config.profile} describes another machine, which `spillway plan` answers for; "
            "training runs on this one"
        )
    check_gpu_memory(config)


@dataclass(frozen=True)
class Planned:
    """A plan for the profile's machine, and what it was made from."""

    plan: Plan
    asked: Asked
    engine: Engine
    config: Config  # settled for one process of that machine
    asked_config: Config  # before
    on_gpu: bool
    several: cluster.Cluster | None
    model: Verified
    trace: StepTrace | None  # None: of this type of model there is none
    images: DescribedImages | None  # None: rows are text


def plan_elsewhere(
    config: Config, text: str, tell: Tell, graph: Path | None = None, show: Callable[[Plan], None] = lambda _: None
) -> Plan:
    """The plan for the profile's machine. Raises InputError, or DoesNotFit with what would fit. `graph`, `show`: as of
    `plan_config`."""
    planned = plan_step(config, text, tell)
    if graph is not None:
        graph.write_text(planned.engine.graph(graph.suffix[1:]), encoding="utf-8")
    show(planned.plan)
    return planned.plan | plan_changes(planned)


def plan_step(config: Config, text: str, tell: Tell) -> Planned:
    """The plan alone. Raises InputError, or DoesNotFit with what would fit."""
    from spillway import _engine
    from spillway.base.calls import translated
    from spillway.model.adapters.unpacked import unpacked_notice
    from spillway.model.batches.joining import joining_notice
    from spillway.model.meta.demand import demand_notice
    from spillway.model.source import hub
    from spillway.model.source.coded import describe_coding
    from spillway.model.spec import model_spec, verified

    for notice in config.notices:
        tell(notice)
    if config.memory_file:
        raise InputError("memory_file: the profile of another machine has no rates for memory files; remove the key")
    if config.paths:
        tell("storage: the plan uses the storage paths of the profile, and not those of the configuration")
    with translated():
        profile = _engine.Profile.parse(text, str(config.profile))
    on_gpu = computes_on_gpu(config, profile)
    config = config.computing_on(choose_device(config, on_gpu), "")  # whatever this machine has
    several = cluster.read_cluster(profile, on_gpu)
    if config.node and several is not None and several.world > 1:
        raise InputError(
            "node: each of several processes gets its part of all nodes of the profile's machine together; "
            "remove the key"
        )
    if on_gpu:
        tell_of_gpus(profile, several, tell)
    asked_config, config = config, choose_compute_dtype(over(config, several), profile, on_gpu)
    stages.say("building the model without weights")
    # Neither weights nor a tokenizer:
    config = hub.resolve_commits(config.replaced(init="random", tokenizer=config.model), tell, only=("model",))
    model = verified(model_spec(config, only_plan=True))
    model.refuse_longer(config.max_length)
    images = described_images.plan_images(config, model.spec.model_config, model.spec.meta_model, on_gpu, tell)
    stages.say("tracing what its layers do")
    trace = traced(config, model, tell, images=images)
    asked = ask_plan(config, profile, model, trace, on_gpu, images)
    base = (*unpacked_notice(asked.description), *demand_notice(asked.description))
    notices = (*joining_notice(shape_of(config, model, images)), *base)
    for notice in (*describe_coding(model.spec.source, asked_config), *notices):
        tell(notice)
    stages.say("planning")
    engine = open_engine(asked, tell)
    plan = plan_of(engine, asked, config, several)
    if images is not None:
        plan |= images.summarise(asked.described().settings.seconds, shape_of(config, model, images), tell)
    return Planned(plan, asked, engine, config, asked_config, on_gpu, several, model, trace, images)


def open_engine(asked: Asked, tell: Tell) -> Engine:
    """An engine that has planned. A refusal says what sampling takes. Raises InputError, DoesNotFit."""
    if asked.sampling is None:
        return asked.engine()
    described_sampling.tell_of_sampling(asked.sampling, tell)
    with asked.sampling.explain_refusals():
        return asked.engine()


def plan_of(engine: Engine, asked: Asked, config: Config, several: cluster.Cluster | None) -> Plan:
    """The engine's plan, and the figures that follow from it."""
    from spillway.model.adapters.unpacked import summarise_unpacked
    from spillway.run.experts_met import summarise_plan

    profile = asked.profile
    summary = engine.plan()
    plan: Plan = {**make_document(summary), "machine": profile.machine or "this machine"}
    if config.chosen:
        plan["compute_why"] = config.chosen
    plan |= replays.plan_replays(config, summary.predicted_step_seconds) | summarise_unpacked(asked.description)
    plan |= summarise_plan(asked.description)
    plan |= bounds(summary) | {"shares": shares(summary)}
    if several is not None and several.world > 1:
        plan |= cluster.limits(summary, plan["seconds_alone"], several, profile.network)
    seconds = asked.described().attention_seconds
    return plan | attention(seconds, summary.seconds.compute, config.max_length)


def plan_changes(planned: Planned) -> Plan:
    """The changes that more of the machine would bring (`what_if`), and the sizes that also fit."""
    from spillway.base.calls import translated

    asked, several, on_gpu = planned.asked, planned.several, planned.on_gpu
    dram = asked.described().settings.dram_budget
    others = list(changes(asked, dram))
    if several is not None and asked.profile.network > 0:  # more than one machine is refused without
        more = one_more(several.grown, asked, planned.asked_config, on_gpu, planned.model, planned.images)
    else:
        more = []
    stages.say("planning what more of the machine would change")
    with ThreadPoolExecutor(1) as tracing:  # beside plans, which leave it the interpreter
        longer = tracing.submit(add_longer_rows, asked, planned.config, planned.model, planned.trace, planned.images)
        what_if = [outcome(what, other) for what, other in others]
        asked = longer.result()
    what_if += [outcome(what, other) for what, other in [longer_rows(asked), *more]]
    stages.say("planning what else fits")
    growth = asked.described().work_per_token
    work, per_token = asked.request.work, (0.0, growth) if on_gpu else (growth, 0.0)
    with translated():
        fits = planned.engine.what_fits(work.sequence, work.batch, *per_token)
    return make_document(fits) | {"what_if": what_if}


def tell_of_gpus(profile: Profile, several: cluster.Cluster | None, tell: Tell) -> None:
    """Tells the user that a plan is for one of several GPUs."""
    count, machine = len(profile.gpus), profile.machine or "this machine"
    if several is None and count > 1:
        tell(
            f"profile: of the {count} GPUs of {machine} one is planned with, since one process trains; "
            "`machines` in the profile (1, or more) plans a process on each"
        )
    elif several is not None and several.world > 1:
        tell(
            f"profile: {several.words()} are planned, on a GPU each; several processes have run over a simulated "
            "driver alone, and none of these plans has"
        )


def over(config: Config, several: cluster.Cluster | None) -> Config:
    """The configuration of one of the processes. InputError where there are more than `virtual_ranks`."""
    if several is None or several.world == 1:
        return config
    if not config.any_ranks and config.virtual_ranks < several.world:
        raise InputError(
            f"virtual_ranks: {config.virtual_ranks} are fewer than the {several.world} processes of "
            f"{several.words()}; give more, or leave the key out"
        )
    return config.over(several.ranks)


def one_more(
    several: cluster.Cluster,
    asked: Asked,
    config: Config,
    on_gpu: bool,
    model: Verified,
    images: DescribedImages | None,
) -> list[Change]:
    """The same asked of so many machines; nothing where there are fewer virtual ranks. Each process's work is as much
    as before where steps grow with the world. `config`: of one process."""
    from spillway.run.engine_spec import description_of

    if not config.any_ranks and config.virtual_ranks < several.world:
        return []
    profile = copy.copy(asked.profile)
    profile.machines = several.machines
    grown = choose_compute_dtype(over(config, several), profile, on_gpu)
    shape, features = shape_of(grown, model, images), images.memory.features if images else 0
    description = description_of(model, shape, grown.ranks, several.machines, features=features)
    return [("one more machine", replace(asked, description=description, profile=profile))]


def computes_on_gpu(config: Config, profile: Profile) -> bool:
    return bool(profile.gpus) and (config.any_device or config.device.startswith("cuda"))


def choose_device(config: Config, on_gpu: bool) -> str:
    """The value of `device` with which the profile's machine would train."""
    return "cuda" if on_gpu and config.any_device else config.device


def choose_compute_dtype(config: Config, profile: Profile, on_gpu: bool) -> Config:
    """`config` with `compute_dtype: auto` as what is faster there."""
    from spillway.machine import products

    kept = config.weight_dtype
    if on_gpu and config.compute_dtype not in ("auto", kept):
        raise InputError(
            f"compute_dtype: {config.compute_dtype} over weights of {kept} is for CPUs, and the "
            f"profile's machine has GPUs; leave it out, or give compute_dtype {kept}"
        )
    if config.compute_dtype != "auto":
        return config
    if on_gpu or kept == "fp32":
        return config.computing(kept, "the type of the weights" + (", on a GPU" if on_gpu else ""))
    rates = products.Products(product_rate(profile, kept), product_rate(profile, "fp32"))
    if not rates.narrow or not rates.fp32:
        return config.computing(kept, "the type of the weights, since the profile does not say what is faster")
    return config.computing(rates.faster(kept), "by the products of the profile")


def product_rate(profile: Profile, dtype: str) -> float:
    """Floating point operations per second of its largest product; 0: the profile does not say."""
    for compute in profile.compute:
        if compute.dtype == dtype:
            return max(compute.products, key=lambda it: it.tokens * it.inner * it.outer).forward_flops_per_second
    if not profile.layers:
        return 0.0
    largest = max(profile.layers, key=lambda it: it.hidden)
    return {"bf16": largest.flops_per_second, "fp32": largest.fp32_flops_per_second}.get(dtype, 0.0)


def ask_plan(
    config: Config,
    profile: Profile,
    model: Verified,
    here: StepTrace | None,
    on_gpu: bool,
    images: DescribedImages | None = None,
) -> Asked:
    """For a machine with these numbers; `config` is settled for it."""
    from spillway.model.measure.saved_profile import SavedProfile
    from spillway.run import saved_settings
    from spillway.run.engine_spec import description_of

    saved = here.saved if here else SavedProfile(why="what a layer keeps is not known of this type of model")
    settings = settings_of(config, on_gpu)
    settings.saved_activations = saved_settings.settings_of(model.spec, saved, model.not_kept, on_gpu)
    request = request_of(config, on_gpu)
    request.settings, request.work = settings, work_of(config, model, here, images)
    shape, features = shape_of(config, model, images), images.memory.features if images else 0
    description = description_of(model, shape, config.ranks, profile.machines or None, features=features)
    sampling = described_sampling.plan_sampling(config, model.spec.model_config, on_gpu)
    asked = Asked(description, request, profile, sampling=sampling)
    if sampling is not None:
        described_sampling.add_sampling(request, sampling, asked.described(), profile)
    return asked


def add_longer_rows(
    asked: Asked, config: Config, model: Verified, here: StepTrace | None, images: DescribedImages | None
) -> Asked:
    """The input with figures for rows of twice the length, and the growth of the working set per token."""
    twice = twice_as_long(config)
    longer = traced(twice, model, shorter=here, images=images)
    request = copy.copy(asked.request)
    request.work = growing(request.work, here, longer)
    return replace(asked, request=request, longer=work_of(twice, model, longer, images))


def bounds(plan: PlanSummary) -> Plan:
    """The time that each resource alone needs for a step, and the resource next to the bottleneck."""
    paths, link = list(plan.path_bytes_per_step), plan.device_bytes_per_step
    none = {"to_device": 0, "from_device": 0}
    moved = {"from_device": link.from_device, "to_device": link.to_device} if link else none
    storage = paths[0] if len(paths) == 1 else "paths"
    seconds = {name: getattr(plan.seconds, name) for name in RESOURCES}
    alone = {storage if name == "transfer" else name: value for name, value in seconds.items() if value}
    order = [name for name in sorted(alone, key=lambda name: -alone[name]) if name != plan.bottleneck]
    return {
        "seconds_alone": alone,
        "next_bottleneck": order[0] if order else "",
        "link_bytes_per_step": moved,
    }


def attention(seconds: float, passes: float, length: int) -> Plan:
    """The share of attention in the seconds of all `passes` of a step with rows of `length` tokens, and the length from
    which on it takes more than everything else: its seconds grow by the square of the length, all others with it.
    Nothing where nobody knows."""
    share = seconds / passes if passes > 0 else 0.0
    if not 0 < share < 1:
        return {}
    return {"attention": {"share": share, "sequence": length, "half_at": round(length * (1 - share) / share)}}


def shares(plan: PlanSummary) -> Plan:
    """For each group of fields, what lies on the device and on paths; for states, what is on each node of memory."""
    held: dict[str, dict[str, int]] = {group: {} for group in GROUPS}
    for entry in plan.bytes:
        if entry.class_ in held:
            held[entry.class_][entry.tier] = entry.bytes

    def share(group: str, belongs: Callable[[str], bool]) -> float:
        tiers = held[group]
        return sum(bytes for tier, bytes in tiers.items() if belongs(tier)) / max(1, sum(tiers.values()))

    memory = nodes.names(plan)
    states = sum(held["state"].get(name, 0) for name in memory)
    storage = [tier.name for tier in plan.tiers if tier.name.startswith("path:")]
    paths = {name: sum(held[group].get(name, 0) for group in GROUPS) for name in storage}
    return {
        "device": {group: share(group, lambda tier: tier == "device") for group in GROUPS},
        "path": {group: share(group, lambda tier: tier.startswith("path:")) for group in GROUPS},
        "state_by_node": [held["state"].get(name, 0) / max(1, states) for name in memory],
        "by_path": [bytes / max(1, sum(paths.values())) for bytes in paths.values()],
        "window": plan.lookahead.backward,
    }


def changes(asked: Asked, dram: int) -> Iterator[Change]:
    """One more of each kind of thing that the machine has. `dram`: the budget now."""
    shared = asked.description.world.size > 1
    more = copy.copy(asked.profile)
    more.dram_total += GIB
    more.dram_available += GIB
    nodes = more.nodes
    for node in [node for node in nodes if node.kind == "dram"][:1]:
        node.capacity += GIB
    more.nodes = nodes
    yield "1 GiB more DRAM" + (" for each process" if shared else ""), altered(asked, more, dram + GIB)
    for card in [node for node in asked.profile.nodes if node.kind == "cxl" and not shared][:1]:
        more, another = copy.copy(asked.profile), copy.copy(card)
        another.id = 1 + max(node.id for node in more.nodes)
        more.nodes = [*more.nodes, another]
        yield f"one more CXL card as numa:{card.id}", altered(asked, more, dram + card.capacity)
    for path in asked.profile.paths[:1]:
        more, further = copy.copy(asked.profile), copy.copy(path)
        further.name = "another drive"
        more.paths = [*more.paths, further]
        yield f"one more drive as path:{path.name}", altered(asked, more)


def altered(asked: Asked, profile: Profile, dram: int | None = None) -> Asked:
    """The same asked of another machine. `dram`: the budget there; None: as it was asked."""
    request = copy.copy(asked.request)
    if dram is not None:
        settings = request.settings
        settings.dram_budget = dram
        request.settings = settings
    return replace(asked, request=request, profile=profile)


def longer_rows(asked: Asked) -> Change:
    """Twice the sequence; `asked` has what it takes."""
    assert asked.longer is not None
    description, request = copy.copy(asked.description), copy.copy(asked.request)
    description.tokens *= 2
    description.step_tokens *= 2
    request.work = asked.longer
    return f"sequences of {request.work.sequence}", replace(asked, description=description, request=request)


def outcome(what: str, asked: Asked) -> dict[str, Any]:
    """An entry of `what_if`."""
    try:
        plan = asked.engine().plan()
    except DoesNotFit:
        return {"what": what, "fits": False, "step_seconds": 0, "tokens_per_second": 0}
    rates = {"step_seconds": plan.predicted_step_seconds, "tokens_per_second": plan.tokens_per_second}
    return {"what": what, "fits": True, **rates}
