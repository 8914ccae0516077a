"""Where PyTorch computes: host memory, or one GPU.

Whatever is made for a pass is made there; nothing here moves weights or gradients, which is the engine's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from spillway.errors import first_line
from spillway.machine.flash_attention import FA3, NEEDS_ANY_ORDER, flash_attention
from spillway.machine.one_order import agree_with_cublas, one_order

NO_ORDER = re.compile(r"(\S+) does not have a deterministic implementation")
OF_FA3 = re.compile(r"FA3|flash.?attention", re.IGNORECASE)  # in a refusal of its kernels


@dataclass(frozen=True)
class Place:
    device: torch.device
    any_order: str = ""  # the operation that PyTorch has for this GPU only so that it adds in any order; "": none
    full_determinism: bool = True  # operations add in one order
    fa3_refusal: str = NEEDS_ANY_ORDER  # why passes do not run FA3; "": they do
    # torch.cuda.Stream of the passes, which the engine has, too. None: a GPU's current one
    pass_stream: Any = field(default=None, compare=False, repr=False)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_deterministic(self) -> bool:
        """Whether the same work has the same bits each time."""
        return self.full_determinism and not self.any_order

    def stream(self) -> int:
        """The native handle of the stream of passes; 0 is the default one, and where there is none."""
        if not self.on_gpu:
            return 0
        return int((self.pass_stream or torch.cuda.current_stream(self.device)).cuda_stream)

    def settle(self) -> None:
        """Waits for what was given to the device; only measurements need that."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """PyTorch's own GPU of this thread, on which the same work has the same bits."""
        if not self.on_gpu:
            yield
            return
        with self.in_pass_stream(), self.kernels():
            yield

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """The kernels of passes: in one order, or the fastest. The process's own settings return afterwards."""
        if self.is_deterministic:
            with flash_attention(None), one_order(self.device):
                yield
        elif not self.fa3_refusal:
            with flash_attention(FA3):
                yield
        else:
            yield

    def checks_products(self) -> bool:
        """Whether PyTorch has agreed that products of this GPU are in one order. Between passes."""
        with self.in_pass_stream(), one_order(self.device):
            return agree_with_cublas(self.device)

    @contextmanager
    def in_pass_stream(self) -> Iterator[None]:
        """Work of this thread goes to the stream of passes, after the work of the caller's stream and before its next
        work. The engine's copies wait for events in the stream of passes alone, so passes in another stream would race
        with them."""
        if not self.on_gpu:
            yield
            return
        with torch.cuda.device(self.device):
            callers = torch.cuda.current_stream(self.device)
            passes = self.pass_stream or callers
            if callers.cuda_stream == passes.cuda_stream:
                yield
                return
            passes.wait_stream(callers)
            try:
                with torch.cuda.stream(passes):
                    yield
            finally:
                callers.wait_stream(passes)

    def without(self, refused: RuntimeError) -> Place:
        """The place without what was refused: an order that PyTorch has no operation for, or FA3. Any other refusal is
        raised."""
        if not self.fa3_refusal and OF_FA3.search(str(refused)):
            return replace(self, fa3_refusal=first_line(refused))
        found = NO_ORDER.match(str(refused))
        if found is None or self.any_order:
            raise refused
        return replace(self, any_order=found[1])

    def seed(self, number: int) -> None:
        """Seeds every random number that a pass draws."""
        torch.default_generator.manual_seed(number)
        if self.on_gpu:
            torch.cuda.default_generators[self.device.index].manual_seed(number)

    def forked(self) -> list[int]:
        """GPUs whose generators a step must leave as they were."""
        return [self.device.index] if self.on_gpu else []

    def take_buffers(self, model: nn.Module) -> None:
        """Rotary tables and other buffers of a model whose parameters are on meta."""
        if self.device.type == "cpu":
            return
        moved: dict[int, torch.Tensor] = {}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                if id(buffer) not in moved:
                    moved[id(buffer)] = buffer.to(self.device)
                module._buffers[name] = moved[id(buffer)]

    def free(self) -> int:
        """Bytes that nobody uses."""
        return int(torch.cuda.mem_get_info(self.device)[0]) if self.on_gpu else 0

    def peak(self) -> int:
        """Bytes that PyTorch's allocator held at most since `watch_peak`."""
        return int(torch.cuda.max_memory_reserved(self.device)) if self.on_gpu else 0

    def watch_peak(self) -> int:
        """From now on; returns the bytes that it holds. What cuBLAS works in, up to 64 MiB that the allocator does not
        get back by itself, is taken anew, and so counted."""
        if not self.on_gpu:
            return 0
        if (clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
            clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return int(torch.cuda.memory_reserved(self.device))

    def give_back(self) -> None:
        if self.on_gpu:
            torch.cuda.empty_cache()

    def bound(self, most: int | None) -> None:
        """Makes PyTorch's allocator refuse more than so many bytes; None: more than there are."""
        if self.on_gpu:
            total = torch.cuda.get_device_properties(self.device).total_memory
            share = 1.0 if most is None else max(0.0, min(1.0, most / total))
            torch.cuda.set_per_process_memory_fraction(share, self.device)


HOST = Place(torch.device("cpu"))
