"""Runs the `spillway` command on a GPU that is faked: a process in which the engine's `cuda` device finds the driver
of tests/device/fake_cuda.cc, and PyTorch plays its own part on the host.

Of Spillway nothing is replaced but what takes time and moves no bit: loss.png is not drawn, a layer is measured a few
times only, and what was proved of a model is not proved again. Of PyTorch these are: what it says about GPUs
(torch.cuda), devices that tensors are asked for on, and DLPack's word for where a tensor lies. Memory of this GPU is
host memory, so PyTorch computes as it does on a CPU and gives the CPU's bits; where tensors of a pass lie
is shown on torch's `meta` device (test_place.py). The product that adds to the engine's sums, which PyTorch has for
GPUs alone, rounds each part, as the CPU's gradients are. As on a GPU, backward passes run on another thread, and what
the engine gives to its streams runs behind, with random delays.

As a program it takes commands from its standard input, one JSON object a line ("words", and "environment" for the
driver), and answers each with its exit code and what it has shown. With words of its own it is that command.
"""

from __future__ import annotations

import copy
import ctypes
import faulthandler
import fcntl
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from folders import PYTHONPATH, REPOSITORY
from spillway._engine import Description, DeviceSettings, EngineSettings

TREE = REPOSITORY / "build" / "wheel"
DRIVER = TREE / "tests" / "fake_driver" / "libcuda.so.1"
GPUS = 2  # that the driver has unless FAKE_CUDA_GPUS says otherwise
DRIVEN = {"LD_LIBRARY_PATH": str(DRIVER.parent), "FAKE_CUDA_MIB": "512"}  # of a process that finds it
CPU, CUDA = 1, 2  # DLPack's device types
HANGS = 600  # seconds after which a command is ended, with the stack of every thread
FUSED = ("rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "rotate")
STREAMED = ("gradient", "head_gradient", "loss_stats", "loss_gradient", "compress", "whole_gradient", "sample", *FUSED)


def build_driver() -> str:
    """Brings the driver up to date in the tree that the package was built in; why that cannot be done, or ""."""
    if not (TREE / "CMakeCache.txt").exists():
        return f"{TREE} is not there, where the driver of the fake GPU is built (make install)"
    cmake = str(Path(sys.executable).parent / "cmake")
    with open(TREE / "fake_driver.lock", "w") as lock:  # of several processes of pytest one builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in ([str(TREE), "-DSPILLWAY_TESTS=ON"], ["--build", str(TREE), "--target", "fake_cuda"]):
            done = subprocess.run([cmake, *words], capture_output=True, text=True)
            if done.returncode != 0:
                return f"the driver of the fake GPU does not build: {(done.stdout + done.stderr)[-1000:]}"
    return ""


@dataclass
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


class FakeGpu:
    """The process; commands run in it one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | DRIVEN | {"PYTHONPATH": PYTHONPATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: list[str], **environment: str) -> Said:
        """`environment`: variables of the driver, for this command alone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": words, "environment": environment}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended with {self._process.wait()}"
        return Said(**json.loads(answer))

    def close(self) -> None:
        self._process.communicate()


class Driver:
    """PyTorch's side of the driver: the context, the streams, and the memory that it lends."""

    def __init__(self) -> None:
        self._calls = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._threads = threading.local()
        self._check(self._calls.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0))

    @property
    def stream(self) -> int:
        """The native handle of this thread's current stream; 0: the default one."""
        return int(getattr(self._threads, "stream", 0))

    @contextmanager
    def in_stream(self, handle: int) -> Iterator[None]:
        before = self.stream
        self._threads.stream = handle
        try:
            yield
        finally:
            self._threads.stream = before

    def make_stream(self) -> int:
        handle = ctypes.c_void_p()
        with self._current():
            self._check(self._calls.cuStreamCreate(ctypes.byref(handle), 1))  # not blocking, as PyTorch's
        return int(handle.value or 0)

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._check(self._calls.cuCtxPushCurrent_v2(self._context))
        yield
        self._check(self._calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def settle(self, stream: int | None = None) -> None:
        """All that was given to a stream has ended; None: this thread's current one."""
        with self._current():
            handle = ctypes.c_void_p(self.stream if stream is None else stream)
            self._check(self._calls.cuStreamSynchronize(handle))

    def memory(self) -> tuple[int, int]:
        """Free and all bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._current():
            self._check(self._calls.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    @contextmanager
    def lent(self, tensors: list[Any]) -> Iterator[None]:
        """Their memory is the GPU's until what uses it has ended."""
        at = [ctypes.c_ulonglong(tensor.data_ptr()) for tensor in tensors]
        for address, tensor in zip(at, tensors, strict=True):
            self._calls.fakeCudaLend(address, ctypes.c_size_t(extent(tensor)))
        try:
            yield
            self.settle()
        finally:
            for address in at:
                self._calls.fakeCudaTakeBack(address)

    @staticmethod
    def _check(result: int) -> None:
        assert result == 0, f"the fake driver answers {result}"


def extent(tensor: Any) -> int:
    """Bytes from the first element to the last, with what lies between its rows."""
    if tensor.numel() == 0:
        return 0
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def relabelled(capsule: Any, device: int, number: int = 0) -> Any:
    """A DLPack capsule whose tensor lies on a device of this type and number."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    tensor = api.PyCapsule_GetPointer(capsule, name) + (32 if name == b"dltensor_versioned" else 0)
    ctypes.c_int32.from_address(tensor + 8).value = device
    ctypes.c_int32.from_address(tensor + 12).value = number
    return capsule


class OnGpu:
    """A tensor as the engine is given it."""

    def __init__(self, tensor: Any, number: int) -> None:
        self._tensor, self._number = tensor, number

    def __dlpack__(self, **options: Any) -> Any:
        return relabelled(self._tensor.__dlpack__(**options), CUDA, self._number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._number


class FakeStream:
    """torch.cuda.Stream."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver, self.cuda_stream = driver, handle

    def synchronize(self) -> None:
        self._driver.settle(self.cuda_stream)

    def wait_stream(self, other: FakeStream) -> None:
        """What PyTorch does in this stream it does at once, so that the host waits."""
        other.synchronize()


class Given:
    """An engine's method whose tensors a GPU has."""

    def __init__(self, engine: Any, name: str, driver: Driver, settings: DeviceSettings) -> None:
        self._engine, self._method, self._driver = engine, getattr(engine, name), driver
        self._number, self._stream = gpu_number(settings), settings.stream

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        import torch

        assert self._driver.stream == self._stream, "PyTorch's work is in another stream than the engine's"
        tensors = [each for each in (*arguments, *named.values()) if isinstance(each, torch.Tensor)]
        host = self._engine.memory()
        for tensor in tensors:
            inside = 0 <= tensor.data_ptr() - host.ctypes.data < host.nbytes
            assert not inside, "a tensor in the engine's host memory is handed over as a GPU's"

        def label(value: Any) -> Any:
            return OnGpu(value, self._number) if isinstance(value, torch.Tensor) else value

        with self._driver.lent(tensors):
            return self._method(*map(label, arguments), **{name: label(value) for name, value in named.items()})


def gpu_number(settings: DeviceSettings | None) -> int | None:
    """Of an engine's device; None: it is no GPU."""
    kind, _, number = ("" if settings is None else settings.name).partition(":")
    return int(number) if kind == "cuda" else None


def engine_class(real: type, driver: Driver) -> Callable[..., Any]:
    """The engine, around which PyTorch's tensors change their label, and PyTorch's work begins when the stream is
    ready: it is no work of the stream's."""

    class Engine:
        def __init__(self, description: Description, settings: EngineSettings, *network: Any) -> None:
            self._real = real(description, settings, *network)
            self._device = settings.device

        def __getattr__(self, name: str) -> Any:
            if self._device is not None and gpu_number(self._device) is not None and name in STREAMED:
                return Given(self._real, name, driver, self._device)
            return getattr(self._real, name)

        def lend_sum(self, tensor: int, micro_batch: int) -> Any:
            loan = self._real.lend_sum(tensor, micro_batch)
            driver.settle()
            return loan

        def next_pass(self) -> Any:
            block_pass = self._real.next_pass()
            driver.settle()
            return block_pass

    return Engine


def play_cuda(driver: Driver) -> None:
    """What PyTorch says of its GPUs."""
    import torch

    said = {
        "is_available": lambda: True,
        "device_count": lambda: GPUS,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "Fake GPU",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=driver.memory()[1]),
        "current_blas_handle": lambda: 0,
        "current_stream": lambda device=None: FakeStream(driver, driver.stream),
        "synchronize": lambda device=None: driver.settle(),
        "Stream": lambda device=None: FakeStream(driver, driver.make_stream()),
        "stream": lambda stream: driver.in_stream(stream.cuda_stream),
        "mem_get_info": lambda device=None: driver.memory(),
        "device": lambda device: nullcontext(),
        "set_device": lambda device: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed_all": lambda seed: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "set_per_process_memory_fraction": lambda share, device=None: None,
    }
    for name, answer in said.items():
        assert hasattr(torch.cuda, name), name
        setattr(torch.cuda, name, answer)
    torch.cuda.random.get_rng_state = said["get_rng_state"]  # as transformers' Trainer asks for it
    torch.cuda.default_generators = (torch.default_generator,) * GPUS


def play_devices(driver: Driver) -> None:
    """Tensors that are asked for on a GPU are the host's, on every thread."""
    import torch
    from torch.overrides import TorchFunctionMode

    def there(value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    class Devices(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            refuse_order(func)
            made = func(*map(there, args), **{name: there(value) for name, value in (kwargs or {}).items()})
            if func is torch.nn.functional.linear:
                refuse_product(made)
            return made

    Devices().__enter__()

    def elsewhere(real: Callable[..., Any]) -> Callable[..., Any]:
        """As autograd calls hooks on a thread of the GPU's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            found: list[Any] = []
            stream = driver.stream  # the backward pass is in the stream of the forward pass

            def work() -> None:
                try:
                    with Devices(), driver.in_stream(stream):
                        found.append((real(*args, **kwargs), None))
                except BaseException as error:
                    found.append((None, error))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            result, error = found[0]
            if error is not None:
                raise error
            return result

        return call

    torch.autograd._engine_run_backward = elsewhere(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]


def refuse_order(function: Any) -> None:
    """PyTorch's answer where FAKE_GPU_MULTIPLIED says that the process multiplied before. There attention has
    to be asked for one order."""
    import torch

    if os.environ.get("FAKE_GPU_MULTIPLIED") and torch.are_deterministic_algorithms_enabled():
        lenient = torch.is_deterministic_algorithms_warn_only_enabled()
        attends = function is torch._C._nn.scaled_dot_product_attention
        assert not (lenient and attends), "attention in any order"
        if function in (torch.mm, torch.matmul, torch.nn.functional.linear) and not lenient:
            raise RuntimeError("Deterministic behavior was enabled, but ... set CUBLAS_WORKSPACE_CONFIG=:4096:8")


def refuse_product(made: Any) -> None:
    """Refuses a layer's product of more tokens than FAKE_GPU_TOKENS, as a GPU without memory for it."""
    import torch

    most = int(os.environ.get("FAKE_GPU_TOKENS", "0"))
    if most and made.numel() // made.shape[-1] > most:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1.00 GiB free.")


def play_dlpack() -> None:
    """What the engine hands out as a GPU's memory is a tensor."""
    import torch.utils.dlpack

    real = torch.utils.dlpack.from_dlpack

    def from_dlpack(given: Any, **options: Any) -> Any:
        if hasattr(given, "__dlpack_device__") and given.__dlpack_device__()[0] == CUDA:
            return real(relabelled(given.__dlpack__(stream=1), CPU), **options)
        return real(given, **options)

    torch.utils.dlpack.from_dlpack = torch.from_dlpack = from_dlpack


def hurry() -> None:
    import spillway.model.spec
    import spillway.run.run
    from spillway.model.measure import dry_run

    spillway.run.run.plot_apart = lambda metrics, png, title: ""
    dry_run.MOST_RUNS = dry_run.LEAST_RUNS
    proofs: dict[tuple[str, bool], Any] = {}
    verify_equivalence = spillway.model.spec.verify_equivalence

    def proved(config: Any, packing: bool) -> Any:
        key = (str(config), packing)
        if key not in proofs:
            proofs[key] = verify_equivalence(config, packing)
        return copy.deepcopy(proofs[key])

    spillway.model.spec.verify_equivalence = proved


def play_products() -> None:
    """FAKE_GPU_PRODUCT names the function of sum_products that adds to sums; "none": there is no such product."""
    import sum_products
    from spillway.model.layers import weight_sums

    def name_product() -> str:
        return os.environ.get("FAKE_GPU_PRODUCT", "add_rounded")

    weight_sums.has_operation = lambda: name_product() != "none"
    weight_sums.add_product = lambda *given: getattr(sum_products, name_product())(*given)


def play_nccl() -> None:
    """Its groups are gloo's, which takes the memory of this GPU."""
    import torch.distributed as dist

    new_group = dist.new_group

    def of_gloo(*args: Any, backend: str | None = None, **kwargs: Any) -> Any:
        return new_group(*args, backend="gloo" if backend == "nccl" else backend, **kwargs)

    dist.is_nccl_available, dist.new_group = lambda: True, of_gloo


def play() -> None:
    from spillway import _engine

    hurry()
    play_nccl()
    play_products()
    driver = Driver()
    play_cuda(driver)
    play_devices(driver)
    play_dlpack()
    _engine.Engine = engine_class(_engine.Engine, driver)  # type: ignore[misc, assignment]


@contextmanager
def driver_is(environment: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in environment if name in os.environ}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]
        os.environ.update(before)


def serve() -> None:
    from spillway.cli import main

    answers = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        faulthandler.dump_traceback_later(HANGS, exit=True)
        with driver_is(asked["environment"]), redirect_stdout(out), redirect_stderr(err):
            code = main(asked["words"])
        print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}), file=answers, flush=True)


if __name__ == "__main__":
    play()
    if sys.argv[1:]:
        from spillway.cli import main

        sys.exit(main(sys.argv[1:]))
    serve()
