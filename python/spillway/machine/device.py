"""The compute device of a run: which it is, how much of it may be used, and how fast its link is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spillway import _engine
from spillway._engine import DeviceSettings, GpuProfile, PlanSummary, Profile
from spillway.base import ranks, sizes
from spillway.config.checks import not_on_a_gpu
from spillway.errors import DoesNotFit, InputError
from spillway.machine.flash_attention import refuse_fa3
from spillway.machine.place import HOST, Place
from spillway.machine.profile import NO_RULE

if TYPE_CHECKING:
    from spillway.config import Config

SHARE = 4  # of dram_budget that a simulated device has where nothing is said
PASSES = 1.5  # a simulated copy's time in plain copies: its target is poisoned first
GPU_MARGIN = 0.1  # of a GPU's free memory, left alone when no budget is given
CONTEXT = 256 * 2**20  # bytes by which the driver's context grows at most: it loads kernels when they first run
CONTEXT_SHARE = 32  # of a small GPU the context grows by one part in so many
MEASURED = 256 * 2**20  # bytes that are copied and updated: more than a GPU's caches
MEASURED_FOR = 0.2  # seconds of each rate
SMALL = 64 * 2**20  # bytes that an engine of almost nothing may take of a GPU
DRIVER = Path("/proc/driver/nvidia/gpus")  # has a folder for each GPU, and in it the name of its model


def place(config: Config) -> Place:
    """Where PyTorch computes. InputError when that GPU is not there."""
    if not config.device.startswith("cuda"):
        return HOST
    if not torch.cuda.is_available():
        raise InputError(f"device: {config.device}: {without_cuda()}; use --device cpu")
    index, count = number(config), torch.cuda.device_count()
    if index >= count:
        asked = "LOCAL_RANK asks for" if config.device == "cuda" else f"device: {config.device} asks for"
        raise InputError(f"{asked} GPU {index}, and this process sees {count}, cuda:0 to cuda:{count - 1}")
    device, stream = torch.device("cuda", index), torch.cuda.current_stream(index)
    if config.full_determinism:
        return Place(device, pass_stream=stream)
    refusal = "it computes in bf16 and fp16" if config.compute_dtype == "fp32" else refuse_fa3(device)
    return Place(device, full_determinism=False, fa3_refusal=refusal, pass_stream=stream)


def settled(config: Config) -> Config:
    """`config`, whose device is `auto`, with the GPU, where there is one and nothing speaks against it, or the CPUs."""
    if not torch.cuda.is_available():
        gpu = listed()
        return config.computing_on("cpu", f"the CPUs, and not {gpu}: {without_cuda()}" if gpu else "")
    index = number(config)
    gpu = torch.cuda.get_device_name(min(index, torch.cuda.device_count() - 1))
    if why := against_a_gpu(config, index):
        return config.computing_on("cpu", f"the CPUs, and not {gpu}: {why}")
    return config.computing_on("cuda", f"{gpu}; --device cpu computes on the CPUs")


def against_a_gpu(config: Config, index: int) -> str:
    """Why layers had better not compute on GPU `index`, nor those of other processes of this machine on theirs; empty
    where nothing is known against it."""
    processes = max(config.ranks.local_world, ranks.number(os.environ, "LOCAL_WORLD_SIZE", 1))
    if max(processes, index + 1) > (count := torch.cuda.device_count()):
        return (
            f"of {processes} processes on this machine this one sees {count}; where each sees one of its own, "
            "--device cuda:0 takes it"
        )
    if found := not_on_a_gpu(config):
        return ": ".join(found)
    loaded, words = _engine.load_gpu_kernels(index)
    return "" if loaded else words


def without_cuda() -> str:
    """Why PyTorch has no GPU."""
    build = "was built without CUDA" if torch.version.cuda is None else "finds no GPU that it can use"
    return f"PyTorch {torch.__version__} {build}"


def listed() -> str:
    """The model of the first GPU that the NVIDIA driver knows, whatever PyTorch does; empty where it knows none."""
    for place in sorted(DRIVER.glob("*/information")):
        for line in place.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "Model":
                return value.strip()
    return ""


def is_unasked(config: Config) -> bool:
    """Whether layers compute on a GPU that nobody has asked for."""
    return bool(config.device_why) and config.device != "cpu"


@contextmanager
def done_without(config: Config) -> Iterator[None]:
    """A refusal for want of memory says how to do without a GPU that nobody has asked for."""
    try:
        yield
    except (DoesNotFit, torch.cuda.OutOfMemoryError) as error:
        if not is_unasked(config):
            raise
        words = f"{str(error).rstrip('.')}. No device was given, and so the GPU was taken; --device cpu does without it"
        raise DoesNotFit(words, getattr(error, "plan", None)) from error


def number(config: Config) -> int:
    """The number of the GPU. Where several processes run on one machine, each has the one of its rank there."""
    own = config.ranks.local_rank if config.ranks.world > 1 else os.environ.get("LOCAL_RANK", "0")
    return int(config.device.partition(":")[2] or own)


def settings(
    config: Config,
    dram_budget: int,
    profile: Profile,
    place: Place = HOST,
    work: int = 0,
    rule: Mapping[str, str] = NO_RULE,
) -> DeviceSettings | None:
    """What the engine plans and opens it with; None: layers compute in host memory. `work`: bytes of its
    memory that PyTorch takes. `rule`: what an update is of."""
    if config.device == "cpu":
        return None
    memory = find_memory(config, dram_budget, place)
    if place.on_gpu:
        made = gpu_settings(place)
        made.memory, made.work = memory, work
        if not take_link(made, profile, number(config)):
            measure(made, rule)
        return made
    made = DeviceSettings(name=config.device, memory=memory, work=work, in_dram=True)
    # Without a GPU in the profile its link is memory, and its updates are the host's work: nothing is won by them.
    made.bounded = take_link(made, profile)
    if not made.bounded:
        made.to_device = made.from_device = profile.copy_bytes_per_second / PASSES
    return made


def find_memory(config: Config, dram_budget: int, place: Place) -> int:
    """Bytes of the compute device that a run may take; a simulated one has them of the host's memory."""
    return gpu_memory(config, place) if place.on_gpu else config.gpu_memory or dram_budget // SHARE


def gpu_memory(config: Config, place: Place) -> int:
    """Bytes of a GPU that a run may take: `gpu_memory`, or what is free less the growth of the driver's context if that
    is less. A limit is no reservation: a run that has room in less memory has the same bits."""
    free = place.free()
    if config.gpu_memory is None:
        return int(free * (1 - GPU_MARGIN))
    return min(config.gpu_memory, free - min(CONTEXT, free // CONTEXT_SHARE))


def describe_gpu_memory(config: Config, settings: DeviceSettings | None) -> str:
    """One sentence about a limit that the GPU has no memory for; empty otherwise. `settings`: of the device."""
    asked, taken = config.gpu_memory or 0, settings.memory if settings else 0
    if taken >= asked or not config.device.startswith("cuda"):
        return ""
    return (
        f"gpu_memory: {sizes.size(asked)} were asked, and the plan takes {sizes.size(taken)}: the GPU has no more free "
        "memory beside the driver's context."
    )


def small(place: Place) -> DeviceSettings | None:
    """For an engine that computes there and holds almost nothing."""
    if not place.on_gpu:
        return None
    made = gpu_settings(place)
    made.memory = SMALL
    return made


def gpu_settings(place: Place) -> DeviceSettings:
    """Which GPU, and the stream that passes run in."""
    return DeviceSettings(name=f"cuda:{place.device.index}", stream=place.stream())


def count_torch_bytes(plan: PlanSummary) -> int:
    """Bytes of a GPU that a plan leaves to PyTorch: what the engine's own memory does not take."""
    tier = next((tier for tier in plan.tiers if tier.name == "device"), None)
    if tier is None:
        return 0
    there = [part for part in plan.bytes if part.tier == "device"]
    work = sum(part.bytes for part in there if part.class_ in ("working set", "saved activations"))
    return tier.capacity - (tier.planned_peak - work)


def measure(made: DeviceSettings, rule: Mapping[str, str]) -> None:
    """Bytes per second of each direction of a GPU's link, elements per second of such an update in its memory."""
    made.to_device, made.from_device, made.update = _engine.measure_device(made.name, MEASURED, MEASURED_FOR, **rule)


def find_gpu(profile: Profile, index: int = 0) -> GpuProfile | None:
    """A profile's GPU number `index`: the one with that name, as a probe writes it, else the one at that place. None:
    there is none, or its link is not known."""
    gpus = profile.gpus
    gpu = next((gpu for gpu in gpus if gpu.name == str(index)), gpus[index] if index < len(gpus) else None)
    if gpu is None or not (gpu.to_gpu_bytes_per_second and gpu.from_gpu_bytes_per_second):
        return None
    return gpu


def take_link(made: DeviceSettings, profile: Profile, index: int = 0) -> bool:
    """Takes link and updates of a profile's GPU; False where that is not known."""
    gpu = find_gpu(profile, index)
    if gpu is None:
        return False
    made.to_device, made.from_device = gpu.to_gpu_bytes_per_second, gpu.from_gpu_bytes_per_second
    made.update, made.links = gpu.update_elements_per_second, gpu.links
    return True
