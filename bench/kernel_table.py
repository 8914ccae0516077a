"""A table of the kernels and copies that a GPU ran: seconds and launches by kind and by name, and the idle share.

PyTorch's profiler records them, those of the engine included. Without a GPU the table lists PyTorch's CPU operations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Parts of kernel names by kind. The first kind that matches counts.
KINDS = {
    "copies": ("memcpy", "memset"),
    "engine": ("spillway_",),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "products": ("gemm", "xmma", "cutlass", "nvjet", "splitk", "matmul", "aten::mm", "aten::addmm", "aten::bmm"),
    "reductions": ("reduce", "softmax", "norm", "sum"),
    "elementwise": ("elementwise", "vectorized", "copy", "mul", "add", "silu", "cat", "index", "gather", "triton"),
}
NAMES = 60  # longest-running kernels in the table
NAME_LENGTH = 160


def classify(name: str) -> str:
    lower = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), "others")


@contextmanager
def record(file: Path) -> Iterator[None]:
    """Profiles the block and writes its table as JSON."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]) as profiler:
        yield
        if on_gpu:
            torch.cuda.synchronize()
    file.write_text(json.dumps(summarise(read_spans(profiler, on_gpu)), indent=1) + "\n")


def read_spans(profiler: Any, on_gpu: bool) -> list[tuple[str, float, float]]:
    """Name, start and end in seconds of each kernel and copy, or of each outermost CPU operation."""
    import torch

    wanted = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    return [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events()
        if event.device_type == wanted and (on_gpu or event.cpu_parent is None)
    ]


def summarise(spans: list[tuple[str, float, float]]) -> dict[str, Any]:
    """`busy_seconds`: time with at least one span. `idle_share`: share of the time from the first start to the last end
    without any. Seconds of kinds and names overlap where streams do."""
    if not spans:
        return {"launches": 0}
    kinds: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for name, start, end in spans:
        kinds[classify(name)].append(end - start)
        names[name[:NAME_LENGTH]].append(end - start)
    busy, busy_until = 0.0, 0.0
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        busy += max(0.0, end - max(start, busy_until))
        busy_until = max(busy_until, end)
    seconds = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    longest = sorted(names, key=lambda name: -sum(names[name]))[:NAMES]
    return {
        "launches": len(spans), "seconds": seconds, "busy_seconds": busy,
        "idle_share": 1 - busy / seconds if seconds > 0 else 0.0,
        "kinds": {kind: {"seconds": sum(each), "launches": len(each)} for kind, each in sorted(kinds.items())},
        "names": {name: {"seconds": sum(names[name]), "launches": len(names[name])} for name in longest},
    }  # fmt: skip
