"""The verb `probe`: this machine measured into a profile that a person can read and edit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from spillway.base.calls import translated
from spillway.base.sizes import size
from spillway.errors import InputError
from spillway.machine import compute_rates, products

if TYPE_CHECKING:
    from spillway._engine import GpuProfile, LayerProfile, Profile

OUTPUT = "profile.json"
# Hidden and intermediate width of decoder layers of about 0.5, 1.5 and 7 billion parameters.
LAYERS = ((896, 4864), (1536, 8960), (3584, 18944))
TOKENS = 256
GPU_TOKENS = 8192
SECONDS = 0.5  # of each product
PATIENCE = 3.0  # seconds that one product may take
KINDS = (("read", 1e9, "GB/s"), ("write", 1e9, "GB/s"), ("copy", 1e9, "GB/s"), ("update", 1e6, "M/s"))

Show = Callable[[str], None]


def probe(output: Path, places: Sequence[str], show: Show) -> Profile:
    """Measures and writes. What is wrong with `output` is said before anything is measured."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"output: {output} cannot be written: it is a directory, or its directory is missing")
    from spillway import _engine

    with translated():
        show("measuring memory" + (f" and {', '.join(places)}" if places else ""))
        profile = _engine.probe([str(place) for place in places])
        profile.gpus = [gpu for gpu in map(rated_gpu, profile.gpus) if gpu.flops_per_second]
        show("measuring products")
        profile.layers = layer_rates()
        profile.compute = compute_rates.compute_rates()
        profile.compute_flops_per_second = max(layer.flops_per_second for layer in profile.layers)
        profile.comment = [f"spillway probe, {time.strftime('%Y-%m-%d %H:%M')}", *paths_comment(places)]
        profile = _engine.Profile.parse(profile.to_json(), str(output))  # refuses what no profile says
        profile.save(str(output))
    return profile


def paths_comment(places: Sequence[str]) -> list[str]:
    return [f"path {number}: {place}" for number, place in enumerate(places)]


def layer_rates() -> list[LayerProfile]:
    """Operations per second of the largest product of each layer, in bf16 and fp32 on the CPUs. Where bf16 is
    done without instructions for it, the largest layers take too long and are left out."""
    from spillway import _engine

    rates: list[LayerProfile] = []
    for hidden, inner in LAYERS:
        if rates and products.operations(hidden, inner, TOKENS) / rates[-1].flops_per_second > PATIENCE:
            break
        found = _engine.LayerProfile(hidden=hidden, intermediate=inner, tokens=TOKENS)
        found.flops_per_second = product_rate(hidden, inner)
        found.fp32_flops_per_second = product_rate(hidden, inner, dtype="float32")
        rates.append(found)
    return rates


def gpu_rate(number: str) -> float:
    """The largest rate of a GPU; 0 where PyTorch cannot use it, so that a plan cannot either."""
    import torch

    if not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
        return 0.0
    return max(product_rate(hidden, inner, f"cuda:{number}", GPU_TOKENS) for hidden, inner in LAYERS)


def rated_gpu(gpu: GpuProfile) -> GpuProfile:
    """The GPU with its rates of products, and of operations on each element."""
    gpu.flops_per_second = gpu_rate(gpu.name)
    if gpu.flops_per_second:
        gpu.elementwise_bytes_per_second = compute_rates.elementwise(compute_rates.TYPES["bf16"], f"cuda:{gpu.name}")
    return gpu


def product_rate(hidden: int, inner: int, device: str = "cpu", tokens: int = TOKENS, dtype: str = "bfloat16") -> float:
    import torch

    given = torch.randn(tokens, hidden, dtype=getattr(torch, dtype), device=device)
    weight = torch.randn(inner, hidden, dtype=getattr(torch, dtype), device=device)
    with torch.no_grad():
        settle(torch.nn.functional.linear(given, weight))
        calls, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS or not calls:
            settle(torch.nn.functional.linear(given, weight))
            calls += 1
    return products.operations(hidden, inner, tokens) * calls / passed


def settle(made: Any) -> None:
    """Waits for a GPU to have made it."""
    import torch

    if made.device.type == "cuda":
        torch.cuda.synchronize(made.device)


def show_profile(console: Console, profile: Profile) -> None:
    console.print(node_table(profile))
    console.print(access_table(profile))
    if profile.gpus:
        console.print(gpu_table(profile))
    if profile.paths:
        console.print(path_table(profile))
    console.print(layer_table(profile))
    rates = products.measured("bf16")
    words = f"In the products of a training step {rates.words('bf16')}: {products.AUTO[rates.faster('bf16')]}."
    console.print(words, soft_wrap=True)


def table(title: str, *columns: str) -> Table:
    found = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        found.add_column(name, justify="right" if number else "left")
    return found


def node_table(profile: Profile) -> Table:
    found = table("NUMA nodes", "node", "kind", "memory", "available", "CPUs", "tier", "firmware promises")
    for node in profile.nodes:
        found.add_row(
            str(node.id),
            node.kind,
            size(node.capacity),
            size(node.available),
            node.cpus,
            str(node.tier or ""),
            gigabytes(node.promised_read_bytes_per_second),
        )
    return found


def access_table(profile: Profile) -> Table:
    """Rates of one thread, and of as many as it takes."""
    found = table("CPUs by memory", "CPUs of", "memory of", "distance", "", "one thread", "all", "threads")
    for access in profile.access:
        where = [f"node {access.cpus}", f"node {access.memory}", str(access.distance or "")]
        for kind, unit, name in KINDS:
            rate = getattr(access, kind)
            rates = (f"{value / unit:.3g}" if rate.threads else "unknown" for value in (rate.thread, rate.most))
            found.add_row(*where, f"{kind} {name}", *rates, str(rate.threads or ""))
            where = ["", "", ""]
    return found


def gpu_table(profile: Profile) -> Table:
    """By NUMA node: a direction alone, and both at once."""
    found = table("GPUs", "GPU", "memory", "TFLOP/s", "node", "to", "from", "to, both at once", "from, both at once")
    for gpu in profile.gpus:
        of = [gpu.name, size(gpu.memory), f"{gpu.flops_per_second / 1e12:.3g}"]
        for link in gpu.links:
            alone = (link.to_gpu_bytes_per_second, link.from_gpu_bytes_per_second)
            together = (link.to_gpu_bytes_per_second_together, link.from_gpu_bytes_per_second_together)
            found.add_row(*of, str(link.node), *map(gigabytes, (*alone, *together)))
            of = ["", "", ""]
    return found


def path_table(profile: Profile) -> Table:
    found = table("Storage paths", "path", "read", "write", "both at once", "CPUs")
    for path in profile.paths:
        rates = (path.read_bytes_per_second, path.write_bytes_per_second, path.mixed_bytes_per_second)
        found.add_row(path.name, *map(gigabytes, rates), f"{path.cores_at_full_speed:.2f}")
    return found


def layer_table(profile: Profile) -> Table:
    found = table("Products of a layer", "hidden", "intermediate", "tokens", "bf16 GFLOP/s", "fp32 GFLOP/s")
    for layer in profile.layers:
        rates = (f"{rate / 1e9:.3g}" for rate in (layer.flops_per_second, layer.fp32_flops_per_second))
        found.add_row(str(layer.hidden), str(layer.intermediate), str(layer.tokens), *rates)
    return found


def gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate else ""
