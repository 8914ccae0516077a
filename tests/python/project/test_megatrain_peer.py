"""Tests of MegaTrain's side of bench/peers.py, with a package that has its names and its calls of CUDA."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from folders import REPOSITORY

sys.path.append(str(REPOSITORY / "bench"))
peers: Any = importlib.import_module("peers")
megatrain_peer: Any = importlib.import_module("megatrain_peer")

PACKAGE = """
from infinity.model.cpu_master import CPUMasterModel

class CPUMasterConfig:
    def __init__(self, **options):
        assert options["dataset_path"]
        self.__dict__ |= options
"""
MODULE = """
import torch

class Context:
    ce_loss = None

class CPUMasterModel:
    created = []

    def __init__(self, hf_model, config):
        assert all(parameter.device.type == "cpu" for parameter in hf_model.parameters())
        self.hf_model, self.config, self.calls = hf_model, config, []
        self.gpu_contexts = [Context()]
        self.device = torch.device(f"cuda:{config.device}")
        self.slab = torch.empty(4, dtype=config.dtype, device="cpu", pin_memory=True).pin_memory()
        self.created.append(self)

    def get_parameters(self):
        return list(self.hf_model.parameters())

    def forward_and_backward(self, input_ids, attention_mask, labels):
        assert torch.equal(input_ids, labels) and attention_mask.to(self.device) is None
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(torch.cuda.current_stream(device=self.device)):
            for parameter in self.get_parameters():
                parameter.grad = torch.ones_like(parameter) + (0 if parameter.grad is None else parameter.grad)
                parameter.grad.record_stream(torch.cuda.Stream(device=self.device))
        torch.cuda.synchronize()
        self.calls.append(tuple(input_ids.shape))
        return 2.5, input_ids.numel(), {"total": began.elapsed_time(ended) / 1000.0}

    def _sync_params_to_gpu(self):
        self.calls.append("sync")

    def zero_grad(self):
        self.calls.append("zero")

    def cleanup(self):
        self.calls.append("cleanup")
"""
WORDS = ["megatrain", "--shape", "tiny", "--layers", "1", "--sequence", "8", "--batch", "2", "--micro-batches", "3"]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in {"__init__": PACKAGE, "model/__init__": "", "model/cpu_master": MODULE}.items():
        file = tmp_path / "infinity" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "SOURCE.txt").write_text("commit 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(peers, "own_adam", lambda: False)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "infinity"]:
        del sys.modules[name]


def test_megatrain_runs_the_micro_batches_of_each_step(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda weights, limit: limits.append((len(weights), limit)))
    arguments = peers.parser().parse_args([*WORDS, "--steps", "2", "--sources", str(sources)])
    figures = peers.megatrain(arguments)
    assert len(figures["seconds"]) == 2 and figures["loss"] == 2.5 and figures["its_own_adam"] is False
    assert figures["source"] == "commit 1\n"
    (model,) = sys.modules["infinity.model.cpu_master"].CPUMasterModel.created
    step = [(2, 8)] * 3 + ["sync", "zero"]
    assert model.calls == [*step, *step, "cleanup"]
    assert limits == [(len(model.get_parameters()), 3.0)] * 2
    config = model.config
    assert (config.dtype, config.attn_implementation, config.device) == (torch.bfloat16, "sdpa", 0)
    assert (config.batch_size, config.max_seq_len, config.gradient_accumulation_steps) == (2, 8, 3)


def test_stand_in_for_cuda_ends_with_the_run(sources: Path) -> None:
    before = torch.Tensor.pin_memory
    peers.megatrain(peers.parser().parse_args([*WORDS, "--steps", "1", "--sources", str(sources)]))
    assert torch.Tensor.pin_memory is before
    assert sys.modules["infinity.model.cpu_master"].torch is torch


def test_folder_without_megatrain_is_refused_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no sources of MegaTrain\. Clone https://github\.com/DLYuanGod"):
        megatrain_peer.import_package(tmp_path)
