"""The last stages of a run's pipeline, `Profiled -> EngineSpec -> PlannedEngine`: what the C++ engine is told of model
and machine, and the engine with its plan. Nothing is allocated yet.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spillway import _engine
from spillway._engine import Description, DeviceSettings, Engine, EngineSettings, Network, PassSeconds, PlanSummary
from spillway.base import stages
from spillway.base.calls import EngineType, translated
from spillway.base.documents import make_document
from spillway.base.ranks import ALONE, Ranks
from spillway.base.sizes import size
from spillway.config.methods import refits
from spillway.errors import DoesNotFit
from spillway.machine import device, memory_files, nodes
from spillway.machine.one_order import CUBLAS
from spillway.machine.place import Place
from spillway.model.adapters.unpacked import summarise_unpacked, unpacked_notice
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.joining import joining_notice
from spillway.model.checkpoint import files
from spillway.model.layers.fused_search import list_fusions
from spillway.model.layers.packed_attention import PackedRows
from spillway.model.layers.token_tiles import ALL_AT_ONCE, TokenTiles
from spillway.model.meta.demand import demand_notice
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.meta_model import MetaModel
from spillway.model.source.library import find_fp32_names
from spillway.model.spec import Verified
from spillway.run import experts_met, replays, room
from spillway.run.alike import agree_settings
from spillway.run.image_rows import count_image_tokens
from spillway.run.profiled import Profiled
from spillway.run.protocol import Keeping
from spillway.run.saved_settings import saved_notice, saved_settings
from spillway.run.settings import engine_settings, measured_in, update_rule
from spillway.run.world import World

if TYPE_CHECKING:
    from spillway.config import Config


UNCHECKED = (
    f"device: this process multiplied on a GPU before the run, without {CUBLAS}, so PyTorch no longer checks products. "
    "Products and attention have the same bits in the same step all the same. Operations that a warning of PyTorch "
    "names have them only within rounding"
)


@dataclass(frozen=True)
class EngineSpec:
    """The engine's input."""

    description: Description  # of the model
    settings: EngineSettings  # what it plans with
    notices: tuple[str, ...]  # what a person should know of them
    recorded: experts_met.Recorded | None = None  # experts that earlier steps of the run met


@dataclass(frozen=True)
class PlannedEngine:
    spec: EngineSpec
    engine: Engine
    summary: PlanSummary
    plan: dict[str, Any]  # the content of plan.json

    @property
    def durable(self) -> bool:
        """Finished steps are kept on the storage paths."""
        return self.summary.durability != "none"


def engine_spec(profiled: Profiled, keeping: Keeping, world: World) -> EngineSpec:
    spec, dry_run, compute = profiled.spec, profiled.dry_run, profiled.compute
    config, meta_model = spec.config, spec.meta_model
    features = profiled.images.features
    description = description_of(profiled.verified, profiled.shape, world.ranks, features=features)
    recorded = None
    if meta_model.on_demand:
        recorded = world.agreed(lambda: experts_met.read_recorded(config, description))
    if recorded is not None:
        met = recorded.shares()
        description = description_of(profiled.verified, profiled.shape, world.ranks, met=met, features=features)
    settings = engine_settings(
        config, dry_run, keeping, spec.trainable(), compute.update_cores, compute.place, world.ranks.local_world
    )
    own_rates, storage = settings.profile, settings.storage
    memory, notices = nodes.node_settings(
        config.node,
        dry_run.process_bytes,
        settings.dram_budget,
        update_rule(config),
        None if config.profile is None else own_rates,
        compute.gpu,
        storage,
        partial(sharing, world),
    )
    settings.nodes, of_files = memory_files.tiers(
        config.files,
        memory.nodes,
        update_rule(config),
        own_rates,
        measured_in(settings.dram_budget, spec.trainable()),
    )
    settings.dram_budget, settings.storage, settings.near = memory.dram_budget, storage, memory.near
    room.require_files(world, config.files)
    # Files that hold tensors in another form than the engine does are written twice.
    converted = spec.adapters is None and files.converts(meta_model, description, spec.begins_with, files.MAX_SHARD)
    carried = files.count_carried_bytes(meta_model, spec.begins_with)
    room.add_files(settings, config, keeping.saving, converted, carried)
    settings.keeps_logits = meta_model.simple_head and not compute.place.on_gpu
    settings.saved_activations = saved_settings(profiled)
    add_network(settings, world)
    return EngineSpec(
        description,
        agree_settings(world, settings),
        (
            *spec.notices,
            *notices,
            *of_files,
            *rounded_tables(meta_model),
            *unpacked_notice(description),
            *demand_notice(description, recorded is not None),
            *saved_notice(profiled),
            *tiles_notice(profiled),
            *joining_notice(profiled.shape),
            *images_notice(profiled),
            *reference_notice(profiled.shape),
            *fused_notice(profiled),
            *order_notice(profiled),
            *attention_notice(profiled.compute.place),
        ),
        recorded,
    )


def sharing(world: World, nodes: Sequence[int]) -> list[int]:
    """How many processes of the run are on each of these NUMA nodes of this machine. All call it."""
    host = socket.gethostname()
    here = [own for where, own in world.gather((host, list(nodes))) if where == host]
    return [sum(node in own for own in here) for node in nodes]


def add_network(settings: EngineSettings, world: World) -> None:
    """Adds the network rates of this process: measured, or the profile's for whole machines."""
    if world.ranks.world == 1:
        return
    rates, profile = world.network(), settings.profile
    settings.network_inside = rates.get("network_inside", 0.0)
    said = profile.network * world.ranks.machines / world.ranks.world
    profile.network = said or rates.get("network", 0.0)
    profile.network_latency = profile.network_latency or rates.get("network_latency", 0.0)
    settings.profile = profile


def plan_engine(
    spec: EngineSpec, profiled: Profiled, engine_type: EngineType, network: Network | None = None
) -> PlannedEngine:
    """DoesNotFit where no placement fits the budgets. `network`: of several processes."""
    config, shape, threads = profiled.spec.config, profiled.shape, profiled.compute.threads
    stages.say("planning")
    with translated(), name_measured_rows(profiled), name_free_memory(config, spec.settings.device):
        told = (spec.description, spec.settings)
        engine = engine_type(*told) if network is None else engine_type(*told, network)
        summary = engine.plan()
    plan = make_document(summary)
    if config.chosen:
        plan["compute_why"] = config.chosen
    if config.device_why:
        plan["device_why"] = config.device_why
    if words := device.describe_gpu_memory(config, spec.settings.device):
        plan["gpu_memory_why"] = words
    if shape.pairs:
        plan["reference"] = first_pass(shape, summary.predicted_step_seconds, spec.settings.seconds)
    plan["threads"] = {"compute": threads.compute, "words": threads.words}
    if (tiles := profiled.verified.tiles).count(shape.batch * shape.length) > 1:
        plan["token_tile"] = {"tokens": tiles.tokens, "modules": sorted(tiles.modules), "why": tiles.why}
    plan |= summarise_unpacked(spec.description)
    period = spec.settings.piece_period
    plan |= experts_met.summarise_plan(spec.description, spec.recorded is not None, period)
    return PlannedEngine(spec, engine, summary, plan | replays.plan_replays(config, summary.predicted_step_seconds))


@contextmanager
def name_measured_rows(profiled: Profiled) -> Iterator[None]:
    """A refusal says so where the working set behind it is extrapolated."""
    try:
        yield
    except MemoryError as error:
        known, shape = profiled.dry_run, profiled.shape
        if (known.measured_rows, known.measured_length) in ((0, 0), (shape.batch, shape.length)):
            raise
        raise DoesNotFit(
            f"{error}. (The working set of {shape.batch} x {shape.length} tokens is extrapolated from "
            f"{known.measured_rows} x {known.measured_length}: more would have passed dram_budget already while it "
            "was measured)"
        ) from error


@contextmanager
def name_free_memory(config: Config, of_device: DeviceSettings | None) -> Iterator[None]:
    """A refusal says so where the GPU has less memory than `gpu_memory`."""
    try:
        yield
    except MemoryError as error:
        if not (words := device.describe_gpu_memory(config, of_device)):
            raise
        raise DoesNotFit(f"{error}. {words}", getattr(error, "plan", None)) from error


def tiles_notice(profiled: Profiled) -> list[str]:
    """Notices for a user who asked for tiles."""
    config, tiles = profiled.spec.config, profiled.verified.tiles
    return [f"token_tile: {config.token_tile}: {tiles.why}"] if tiles.why and isinstance(config.token_tile, int) else []


def images_notice(profiled: Profiled) -> list[str]:
    """The bytes of what makes features of images, where there are any."""
    images, own, largest = profiled.images, profiled.shape.largest_share, profiled.shape.largest_images
    if largest is None:
        return []
    tokens = count_image_tokens(profiled.spec.config, profiled.spec.model_config, largest)
    counted = f"images: a micro-batch has up to {tokens} of their tokens"
    if profiled.spec.meta_model.tower:
        return [streamed_tower_notice(profiled), counted]
    where = "on the GPU" if images.place.on_gpu else "in memory"
    return [
        f"images: the vision tower and its projector are frozen and stay {where} ({size(images.tower)}); a pass of "
        f"them takes {size(images.computing)}, the images of a step {size(own * (images.kept + images.pixels))}, and "
        f"their features {size(own * images.features)}",
        counted,
    ]


def reference_notice(shape: WorkShape) -> list[str]:
    """For a person, where each step computes its reference."""
    if not shape.refers:
        return []
    return [
        "precompute_ref_log_probs: false: each step computes its reference from the base of the adapters, while the "
        "weights are in memory; no first pass reads them"
    ]


def streamed_tower_notice(profiled: Profiled) -> str:
    """Names the trained parts among those that make features of images."""
    config, images, own = profiled.spec.config, profiled.images, profiled.shape.largest_share
    parts = {"the vision tower": config.freeze_vision_tower, "its projector": config.freeze_multi_modal_projector}
    trained, frozen = ([part for part, freezes in parts.items() if freezes == is_frozen] for is_frozen in (False, True))
    tower = profiled.spec.meta_model.tower
    count = sum(parameter.numel() for parameter in tower if parameter.requires_grad)
    words = " and ".join(trained) + (" are trained" if len(trained) > 1 else " is trained")
    more = f", {frozen[0]} is frozen" if frozen else ""
    return (
        f"images: {words} ({count:,} parameters){more}; their weights are in the first layer's block. A pass of them "
        f"takes {size(images.computing)}, and the images of a step {size(own * (images.kept + images.pixels))}"
    )


def fused_notice(profiled: Profiled) -> list[str]:
    """Names the parts of layers that the engine's kernels compute."""
    if not profiled.verified.fused:
        return []
    parts = list_fusions(profiled.spec.meta_model.layers)
    words = f"{', '.join(parts)} of layers run in Spillway's kernels" if parts else "no part of its layers has one"
    return [f"fused_kernels: {words}; --fused_kernels never keeps PyTorch's"]


def order_notice(profiled: Profiled) -> list[str]:
    """Notices that the same step does not surely have the same bits."""
    place = profiled.compute.place
    if not place.on_gpu:
        return threads_notice(profiled.spec.meta_model.config)
    if not place.full_determinism:
        return ["full_determinism: false: a resumed run and another placement have the same bits only within rounding"]
    if not (operation := place.any_order):
        return [] if place.checks_products() else [UNCHECKED]
    return [f"device: on this GPU {operation} adds in any order: the same step has the same bits only within rounding"]


def attention_notice(place: Place) -> list[str]:
    """Names the kernels of attention on a GPU, and why not faster ones."""
    if not place.on_gpu:
        return []
    if place.is_deterministic:
        words = "attention: PyTorch's kernels in one order; full_determinism: false allows cuDNN's and FA3"
    elif place.fa3_refusal:
        words = f"attention: the fastest of PyTorch's kernels, without FA3: {place.fa3_refusal}"
    else:
        words = "attention: FA3, and cuDNN's kernels where PyTorch prefers them"
    if (refusal := PackedRows.refusal) is None:
        return [words]
    way = f"one by one: {refusal}" if refusal else "in one call"
    return [words, f"attention: packed rows and windows run {way}"]


def threads_notice(config: Any) -> list[str]:
    """A notice that the bits depend on the number of threads. Where keys and values differ in size, PyTorch's attention
    on a CPU is plain products of as many rows as a sequence has tokens; `spillway.model.layers.few_rows` fills none."""
    keys = sum(getattr(config, name, None) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    values = getattr(config, "v_head_dim", None) or 0
    if not (keys and values) or keys == values:
        return []
    return [
        f"attention: with keys of {keys} elements and values of {values} a step has the same bits with the same number "
        "of compute threads; with another it agrees within rounding"
    ]


def description_of(
    verified: Verified,
    shape: WorkShape,
    ranks: Ranks = ALONE,
    machines: int | None = None,
    met: Mapping[str, list[float]] | None = None,
    features: int = 0,
) -> Description:
    """The engine's description of the model and of its largest step. `machines`: those of the ranks, unless given.
    `met`: as of `describe`. `features`: bytes of the features of a micro-batch's images."""
    config, meta_model = verified.spec.config, verified.spec.meta_model
    model = describe(meta_model, work_size(shape, verified.tiles), config.compute_dtype, met)
    model.optimizer, model.state_format, model.seed = config.optim, config.state_format, config.seed
    model.refits = refits(config)
    model.feature_bytes = shape.largest_share * features
    model.shard_frozen = config.shard_frozen
    if ranks.world > 1:
        several = machines or ranks.machines
        local = ranks.world // several if ranks.world % several == 0 else 1
        model.world = _engine.World(size=ranks.world, rank=ranks.rank, local=local)
        model.step_tokens = model.tokens // shape.largest_share * shape.micro_batches
    return model


def work_size(shape: WorkShape, tiles: TokenTiles = ALL_AT_ONCE) -> WorkSize:
    train = shape.batch * shape.length
    tokens = max(train, shape.eval_batch * shape.eval_length)
    parts = shape.micro_batches * tiles.count(train)
    return WorkSize(shape.micro_batches, shape.largest_share * tokens, shape.virtual_ranks, parts)


def first_pass(shape: WorkShape, step: float, seconds: PassSeconds) -> dict[str, Any]:
    """`reference` of plan.json. A forward pass takes at most what forward is of a step's passes, whose others move more
    bytes than it does. `step`: predicted seconds of a step; `seconds`: of passes, as profiled."""
    summary: dict[str, Any] = {"pairs": shape.pairs, "passes": shape.passes}
    passes = seconds.forward + seconds.backward
    return summary | ({"predicted_seconds": shape.passes * step * seconds.forward / passes} if step and passes else {})


def rounded_tables(meta_model: MetaModel) -> list[str]:
    """Notices about tables that `from_pretrained` would keep in fp32."""
    fp32 = find_fp32_names(meta_model.model, meta_model.kept)
    tables = {meta_model.names[id(table.weight)] for table in (meta_model.embedding, meta_model.head)}
    return [
        f"transformers computes with {name} in fp32; here this table is kept in "
        f"{str(meta_model.kept).removeprefix('torch.')}, as the layers are, and its master is fp32"
        for name in sorted(tables)
        if fp32.search(name)
    ]
