"""MegaTrain (https://github.com/DLYuanGod/MegaTrain, Apache-2.0), which copies layer by layer to the GPU.

MegaTrain is not on PyPI. `--sources DIR` is a clone, or the folder that `make gpu-queue-bundle MEGATRAIN=CLONE` packs.
Weights and gradients are bf16 in host memory. The moments are fp32 with DeepSpeed's Adam for CPUs, bf16 with torch's.
The package runs on CUDA alone. On a CPU its module gets a stand-in for `torch.cuda`: a dry run of the same calls.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

HOME = "https://github.com/DLYuanGod/MegaTrain"


class CausalMask:
    """The attention mask of rows without padding: none, so that PyTorch's attention takes its causal kernels.

    The package hands its mask of two dimensions to each layer, which only FlashAttention 2 accepts.
    """

    def to(self, device: torch.device) -> None:
        return None


class HostTorch:
    """torch for one module, with the CPU as every device and no CUDA."""

    cuda = mock.MagicMock()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: str) -> torch.device:
        return torch.device("cpu")

    def empty(self, *shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*shape, **options)


def import_package(sources: Path) -> Any:
    """The package `infinity` of the sources. Ends the program if the folder does not hold it."""
    if not (sources / "infinity" / "__init__.py").is_file():
        raise SystemExit(f"{sources} holds no sources of MegaTrain. Clone {HOME} and name the clone with --sources.")
    sys.path.insert(0, str(sources.resolve()))
    return importlib.import_module("infinity")


def read_source(sources: Path) -> str:
    """The commit and the license of the sources; empty for a clone, which has no SOURCE.txt."""
    file = sources / "SOURCE.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@contextmanager
def open_model(package: Any, arguments: argparse.Namespace, hf_model: Any) -> Iterator[Any]:
    """MegaTrain's model on the device of the arguments, which takes over the weights of `hf_model`."""
    device = torch.device(arguments.device)
    config = package.CPUMasterConfig(
        device=device.index or 0, dtype=hf_model.dtype, attn_implementation="sdpa", dataset_path="none",
        max_seq_len=arguments.sequence, batch_size=arguments.batch, num_steps=arguments.steps,
        gradient_accumulation_steps=arguments.micro_batches,
    )  # fmt: skip
    with replace_cuda() if device.type == "cpu" else nullcontext():
        model = package.CPUMasterModel(hf_model, config)
        if arguments.liger:  # the fused loss, in the place of FlashAttention's
            from liger_kernel.transformers import LigerCrossEntropyLoss

            model.gpu_contexts[0].ce_loss = LigerCrossEntropyLoss(ignore_index=-100, reduction="none")
        try:
            yield model
        finally:
            model.cleanup()


@contextmanager
def replace_cuda() -> Iterator[None]:
    """Replaces what MegaTrain's single-GPU path calls of CUDA."""
    with (
        mock.patch("infinity.model.cpu_master.torch", HostTorch()),
        mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
        mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None),
    ):
        yield


def make_optimizer(parameters: list[Any], has_deepspeed_adam: bool) -> Any:
    """The optimizer of MegaTrain's training script."""
    if has_deepspeed_adam:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(parameters, lr=1e-5, weight_decay=0.01, adamw_mode=True)
    return torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01)
