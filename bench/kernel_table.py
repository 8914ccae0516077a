"""What ran on a GPU while a block of Python ran: seconds and launches by kind and by name, and the share in which
nothing ran. Of PyTorch's profiler, which sees the engine's own kernels and copies, too. Without a GPU the table is of
PyTorch's operations on the CPU."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What a kernel's name holds, in the order in which it is looked for.
KINDS = {
    "copies": ("memcpy", "memset"),
    "engine": ("spillway_",),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "products": ("gemm", "xmma", "cutlass", "nvjet", "splitk", "matmul", "aten::mm", "aten::addmm", "aten::bmm"),
    "reductions": ("reduce", "softmax", "norm", "sum"),
    "elementwise": ("elementwise", "vectorized", "copy", "mul", "add", "silu", "cat", "index", "gather", "triton"),
}
LONGEST = 60  # names in the table


def kind_of(name: str) -> str:
    lower = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), "others")


@contextmanager
def written(file: Path) -> Iterator[None]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]) as profiler:
        yield
        if on_gpu:
            torch.cuda.synchronize()
    file.write_text(json.dumps(table(spans(profiler, on_gpu)), indent=1) + "\n")


def spans(profiler: Any, on_gpu: bool) -> list[tuple[str, float, float]]:
    """Name, first and last second of all that ran there; of the CPU, of what was not called by another of them."""
    import torch

    wanted = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    return [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events()
        if event.device_type == wanted and (on_gpu or event.cpu_parent is None)
    ]


def table(found: list[tuple[str, float, float]]) -> dict[str, Any]:
    """`busy_seconds`: in which at least one of `found` ran; `idle_share`: the rest of what lies between the first and
    the last. Kinds and names have their own seconds, which overlap where streams do."""
    if not found:
        return {"launches": 0}
    kinds: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for name, first, last in found:
        kinds[kind_of(name)].append(last - first)
        names[name].append(last - first)
    busy, until = 0.0, 0.0
    for _, first, last in sorted(found, key=lambda span: span[1]):
        busy += max(0.0, last - max(first, until))
        until = max(until, last)
    whole = max(last for _, _, last in found) - min(first for _, first, _ in found)
    longest = sorted(names, key=lambda name: -sum(names[name]))[:LONGEST]
    return {
        "launches": len(found), "seconds": whole, "busy_seconds": busy,
        "idle_share": 1 - busy / whole if whole > 0 else 0.0,
        "kinds": {kind: {"seconds": sum(all_), "launches": len(all_)} for kind, all_ in sorted(kinds.items())},
        "names": {name[:160]: {"seconds": sum(names[name]), "launches": len(names[name])} for name in longest},
    }  # fmt: skip
