"""What this machine multiplies fastest in, for `compute_dtype: auto`.

CPUs without instructions for bf16 multiply it by converting, in some shapes many times slower than fp32, and some
that have them are kept from using them: so both are measured, in the three products that a linear layer of a training
step has.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.base.sizes import pace

if TYPE_CHECKING:
    from torch import Tensor

    from spillway.config import Config

# Tokens, hidden and wide of one product. The slowest CPUs seen reach 0.3 GFLOP/s in one of the three, which takes
# them 30 ms in the smaller shape. In it calls cost as much as products do where these are fast, so where the types are
# not CLEAR times apart, the larger one decides.
SMALL, LARGE = (64, 256, 256), (256, 1024, 1024)
CLEAR = 4.0
SECONDS = 0.01  # of each product, once it is warm
WORTH = 1.1  # times as fast that fp32 has to be, since it takes a copy of weights and twice the bytes of activations
SLOW = 1.5  # times as fast that fp32 would have to be for a person to be told
FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # as the kernel names them in /proc/cpuinfo
TYPES = {"bf16": "bfloat16", "fp16": "float16"}
CPUINFO = Path("/proc/cpuinfo")
AUTO = {  # by what is faster for weights of bf16
    "bf16": "compute_dtype auto multiplies bf16 weights as they are",
    "fp32": "compute_dtype auto multiplies bf16 weights in fp32",
}


@dataclass(frozen=True)
class Products:
    """Floating point operations per second of a linear layer's three products, on one CPU."""

    narrow: float  # of the type that weights are kept in
    fp32: float
    instructions: str = ""  # those for products of bf16 that the CPUs have, where that is the type

    def faster(self, kept: str) -> str:
        return "fp32" if self.fp32 > WORTH * self.narrow else kept

    def words(self, kept: str) -> str:
        rates = f"a CPU does {pace(self.narrow / 1e9)} GFLOP/s in {kept} and {pace(self.fp32 / 1e9)} in fp32"
        if kept != "bf16":
            return rates
        return f"{rates}, {f'with {self.instructions}' if self.instructions else 'without instructions for bf16'}"


def settled(config: Config) -> Config:
    """`config` with `compute_dtype: auto` as what is faster here."""
    if config.compute_dtype != "auto":
        return config
    kept = config.weight_dtype
    if kept == "fp32":
        return config.computing(kept, "the type of the weights")
    if config.device.startswith("cuda"):
        return config.computing(kept, "the type of the weights, on a GPU")
    rates = measured(kept)
    return config.computing(rates.faster(kept), rates.words(kept))


def said(compute_dtype: str, why: str) -> str:
    """What layers multiply in and why; empty where the configuration said so."""
    return f"Layers multiply in {compute_dtype} (compute_dtype auto): {why}." if why else ""


def warnings(config: Config) -> list[str]:
    """What a person should know of the configuration, where what was given is slow here, too."""
    words = slow(config.compute_dtype) if is_open(config) else ""
    return [*config.notices, words] if words else config.notices


def is_open(config: Config) -> bool:
    """What was begun with a type can only go on."""
    return not (config.chosen or config.resume_from_checkpoint or config.device.startswith("cuda"))


def slow(given: str) -> str:
    if given not in TYPES or (rates := measured(given)).fp32 <= SLOW * rates.narrow:
        return ""
    return (
        f"compute_dtype: {given} was given, and {rates.words(given)}; with weight_dtype {given} and compute_dtype auto "
        "the same weights would be multiplied in fp32"
    )


def instructions() -> str:
    """Those for products of bf16 that the CPUs have; empty where they have none."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return ", ".join(sorted(FLAGS & set(flags.partition(":")[2].split())))


@functools.cache
def measured(kept: str) -> Products:
    """Once in a process, in less than half a second. On one thread: several would wait for each other where the machine
    is busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = both(kept, SMALL)
        if 1 / CLEAR < found.fp32 / found.narrow < CLEAR:
            found = both(kept, LARGE)
        return replace(found, instructions=instructions() if kept == "bf16" else "")
    finally:
        torch.set_num_threads(threads)


def both(kept: str, shape: tuple[int, int, int]) -> Products:
    import torch

    return Products(rate(getattr(torch, TYPES[kept]), shape), rate(torch.float32, shape))


def rate(dtype: object, shape: tuple[int, int, int]) -> float:
    import torch

    tokens, hidden, inner = shape
    draw = torch.Generator().manual_seed(0)

    def made(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draw).to(dtype)  # type: ignore[call-overload, no-any-return]

    x, weight, gradient = made(tokens, hidden), made(inner, hidden), made(tokens, inner)
    products: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.nn.functional.linear(x, weight),
        lambda: gradient @ weight,
        lambda: gradient.t() @ x,
    )
    with torch.no_grad():
        return len(products) * operations(hidden, inner, tokens) / sum(map(seconds, products))


def operations(hidden: int, inner: int, tokens: int) -> float:
    """The floating point operations of one product."""
    return 2.0 * tokens * hidden * inner


def seconds(product: Callable[[], Tensor]) -> float:
    """The fastest call's seconds, in this thread's own time, since others may take CPUs meanwhile."""
    product()
    best, began = float("inf"), time.thread_time()
    while (now := time.thread_time()) - began < SECONDS or best == float("inf"):
        product()
        best = min(best, time.thread_time() - now)
    return best
