"""What this machine multiplies fastest in, for `compute_dtype: auto`.

Processors without instructions for bf16 multiply it by converting, in some shapes many times slower than fp32: so both
are measured, in the three products that a linear layer of a training step has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.sizes import pace

if TYPE_CHECKING:
    from torch import Tensor

    from spillway.config import Config

# Of one product. The slowest processors seen reach 0.3 GFLOP/s in one of the three, which takes them 30 ms.
TOKENS, HIDDEN, WIDE = 64, 256, 256
SECONDS = 0.01  # of each product, once it is warm
FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # as the kernel names them in /proc/cpuinfo
TYPES = {"bf16": "bfloat16", "fp16": "float16"}
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Products:
    """Floating point operations per second of a linear layer's three products, on one processor."""

    narrow: float  # of the type that weights are kept in
    fp32: float

    def words(self, kept: str) -> str:
        return f"a processor does {pace(self.narrow / 1e9)} GFLOP/s in {kept} and {pace(self.fp32 / 1e9)} in fp32"


def settled(config: Config) -> Config:
    """`config` with `compute_dtype: auto` as what is faster here."""
    if config.compute_dtype != "auto":
        return config
    kept = config.weight_dtype
    if kept == "fp32":
        return config.computing(kept, "as weights are kept")
    if config.device.startswith("cuda"):
        return config.computing(kept, "as weights are kept, on a GPU")
    if kept == "bf16" and (found := instructions()):
        return config.computing(kept, f"the processors have instructions for it ({found})")
    rates = measured(kept)
    return config.computing("fp32" if rates.fp32 > rates.narrow else kept, rates.words(kept))


def instructions() -> str:
    """Those for products of bf16 that the processors have; empty where they have none."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return ", ".join(sorted(FLAGS & set(flags.partition(":")[2].split())))


def measured(kept: str) -> Products:
    """In less than a fifth of a second. On one thread: several would wait for each other where the machine is busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Products(rate(getattr(torch, TYPES[kept])), rate(torch.float32))
    finally:
        torch.set_num_threads(threads)


def rate(dtype: object) -> float:
    import torch

    draw = torch.Generator().manual_seed(0)

    def made(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draw).to(dtype)  # type: ignore[call-overload, no-any-return]

    x, weight, gradient = made(TOKENS, HIDDEN), made(WIDE, HIDDEN), made(TOKENS, WIDE)
    products: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.nn.functional.linear(x, weight),
        lambda: gradient @ weight,
        lambda: gradient.t() @ x,
    )
    with torch.no_grad():
        return len(products) * operations(HIDDEN, WIDE, TOKENS) / sum(map(seconds, products))


def operations(hidden: int, wide: int, tokens: int) -> float:
    """Of one product."""
    return 2.0 * tokens * hidden * wide


def seconds(product: Callable[[], Tensor]) -> float:
    """Of the fastest call: others may take processors meanwhile."""
    product()
    best, began = float("inf"), time.perf_counter()
    while (now := time.perf_counter()) - began < SECONDS or best == float("inf"):
        product()
        best = min(best, time.perf_counter() - now)
    return best
