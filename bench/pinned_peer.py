"""The pinned host memory that DeepSpeed's ZeRO-Infinity asks for, with parameters and optimizer in files.

    pinned_peer.py [--as-is] --storage DIR --shape wide --layers 2 --sequence 64 --steps 2

Steps on DeepSpeed's accelerator for CPUs, which pins nothing. A stand-in counts each request to pin memory: its bytes,
and the power of two to which PyTorch's allocator of pinned memory rounds it up. What the stand-in has pinned counts as
pinned. `--as-is`: nothing counts as pinned, as without the stand-in. Python reads and writes the files, since bytes
alone are counted. The other options are those of peers.py. DeepSpeed (`pip install deepspeed`) is not a dependency.
Results: bench/results/deepspeed-pinned.json.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peers
from figures import RESULTS


class Pinned:
    """Requests to pin memory, and those that are in use."""

    def __init__(self) -> None:
        self.requests = self.peak_bytes = self.peak_rounded = 0
        self.largest: dict[str, int] = {}  # bytes of a request, by DeepSpeed's function
        self._in_use: dict[int, int] = {}  # bytes by address

    def add(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        size, place = storage.nbytes(), caller()
        self.requests += 1
        self.largest[place] = max(size, self.largest.get(place, 0))
        self._in_use[storage.data_ptr()] = size
        self.peak_bytes = max(self.peak_bytes, sum(self._in_use.values()))
        self.peak_rounded = max(self.peak_rounded, sum(map(power_of_two, self._in_use.values())))
        weakref.finalize(storage, self._in_use.pop, storage.data_ptr(), None)
        return tensor

    def has(self, tensor: Any) -> bool:
        return tensor.untyped_storage().data_ptr() in self._in_use

    def figures(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}


def power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def caller() -> str:
    """DeepSpeed's file and function that asked."""
    frame = next(it for it in reversed(traceback.extract_stack()[:-1]) if "deepspeed" in it.filename)
    return f"{Path(frame.filename).stem}.{frame.name}"


class Files:
    """DeepSpeed's handle of asynchronous I/O: whole files, read and written at once."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned, self._done = pinned, 0

    def async_pread(self, buffer: Any, path: str, *_: Any) -> int:
        whole = bytes_of(buffer)
        with open(path, "rb") as file:
            file.readinto(whole.numpy())  # a buffer may be larger than its file
        self._done += 1
        return 0

    def async_pwrite(self, buffer: Any, path: str, *_: Any) -> int:
        Path(path).write_bytes(bytes_of(buffer).numpy())
        self._done += 1
        return 0

    def wait(self) -> int:
        done, self._done = self._done, 0
        return done

    def new_cpu_locked_tensor(self, count: int, like: Any) -> Any:
        import torch

        return self._pinned.add(torch.empty(count, dtype=like.dtype))

    def free_cpu_locked_tensor(self, _: Any) -> bool:
        return True


def bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def count_pinned(pinned: Pinned, as_is: bool) -> None:
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder import AsyncIOBuilder

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # one process sends nothing, and this takes minutes
    get_accelerator().pin_memory = lambda tensor, align_bytes=1: pinned.add(tensor)
    if not as_is:
        get_accelerator().is_pinned = pinned.has
    AsyncIOBuilder.load = lambda _, verbose=True: SimpleNamespace(aio_handle=lambda *_, **__: Files(pinned))
    AsyncIOBuilder.is_compatible = lambda _, verbose=True: True


def describe(error: Exception) -> dict[str, str]:
    where = traceback.extract_tb(error.__traceback__)[-1]
    file = where.filename.rpartition("site-packages/")[2]
    return {"error": type(error).__name__, "line": str(where.line), "where": f"{file}: {where.name}"}


def main() -> None:
    as_is = "--as-is" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--as-is"]
    arguments = peers.parser().parse_args(["deepspeed", "--params-on-storage", *words])
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    pinned = Pinned()
    count_pinned(pinned, as_is)
    figures: dict[str, Any] = {"shape": arguments.shape, "layers": arguments.layers, "steps": 0}
    try:
        figures["steps"] = len(peers.deepspeed(arguments)["seconds"])
    except (AssertionError, RuntimeError) as error:
        traceback.print_exc()
        figures |= describe(error)
    file = RESULTS / "deepspeed-pinned.json"
    held = json.loads(file.read_text()) if file.is_file() else {}
    held.setdefault(deepspeed.__version__, {})["as it is" if as_is else "counted"] = figures | pinned.figures()
    file.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
