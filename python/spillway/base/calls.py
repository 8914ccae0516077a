"""How the C++ engine is called: loaded late, since that is slow; its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from spillway.errors import DoesNotFit, InputError, SpillwayError

if TYPE_CHECKING:
    from spillway._engine import Description, DeviceSettings, Engine, EngineSettings, Network

OUT_OF_MEMORY = (
    "memory has run out: the system, or a limit of this process (ulimit -v, a container's), gives no more; free memory "
    "or lower dram_budget. What was durable is kept: --resume_from_checkpoint true goes on from there"
)


class EngineType(Protocol):
    """The C++ engine, or what stands for it."""

    def __call__(
        self, description: Description, settings: EngineSettings, network: Network | None = None
    ) -> Engine: ...


def native_engine() -> EngineType:
    from spillway._engine import Engine

    return Engine


@contextmanager
def loss_kernels(engine_type: EngineType, compute_dtype: str, device: DeviceSettings | None = None) -> Iterator[Engine]:
    """An engine of almost nothing, for a dry run that computes the loss as the run will."""
    from spillway._engine import BlockRole, BlockSpec, Description, TensorSpec

    table, layer = TensorSpec(name="table", shape=[1, 64]), TensorSpec(name="layer", shape=[64])
    blocks = [
        BlockSpec(name="embedding", role=BlockRole.embedding, tensors=[table]),
        BlockSpec(name="layer", role=BlockRole.layer, tensors=[layer]),
    ]
    description = Description(
        compute_dtype=compute_dtype,
        weight_dtype=compute_dtype,
        hidden_size=64,
        tokens=1,
        tied_head=True,
        blocks=blocks,
    )
    with translated():  # here a GPU is opened for the first time
        engine = engine_type(description, small_settings(device))
        engine.start()
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def translated(reading: bool = False) -> Iterator[None]:
    """The engine's exceptions as ours: too little memory, bad input, or a failed run.

    `reading`: files and directories that a person named; what is wrong with them is bad input.
    """
    try:
        yield
    except SpillwayError:
        raise
    except MemoryError as error:
        raise DoesNotFit(OUT_OF_MEMORY if str(error) in ("", "std::bad_alloc") else str(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of a GPU: torch.OutOfMemoryError
            raise
        raise DoesNotFit(
            f"gpu_memory: PyTorch needed more than the plan has left it on the GPU ({str(error).splitlines()[0]}); "
            "raise --gpu_memory, or use a smaller max_length, per_device_train_batch_size or pass_tokens"
        ) from error
    except OSError as error:
        raise (InputError if reading else SpillwayError)(str(error)) from error


def small_settings(device: DeviceSettings | None) -> EngineSettings:
    """For an engine that holds next to nothing."""
    import torch

    from spillway._engine import EngineSettings

    return EngineSettings(dram_budget=1 << 30, threads=torch.get_num_threads(), device=device)
