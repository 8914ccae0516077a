"""vLLM itself, where it is installed: it samples for GRPOTrainer with the weights, or the adapters, of each step."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import real_runs
from breadth import some
from needs import lacks, package
from spillway.hf import Server

CONTEXT = 128  # tokens of a prompt and its completion
NATS = 1e-3  # most that log-probabilities of both sides may differ, in fp32
DIFFERENCE = "sampling/sampling_logp_difference/max"
# docs/how-to/reinforcement.md, and memory for keys and values on CPUs
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SHAPE = {"hidden_size": 128, "intermediate_size": 256}  # heads of 64, since vLLM has no kernel for small ones
SAMPLED = [(method, steps) for steps in (2, 20) for method in ("full", "lora")]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    place = real_runs.inputs(tmp_path_factory.mktemp("vllm"))
    config = AutoConfig.from_pretrained(place / "model", head_dim=64, **SHAPE)
    AutoModelForCausalLM.from_config(config).save_pretrained(place / "model")
    return place


@contextmanager
def serving(model: Path, log: Path, *more: str) -> Iterator[Server]:
    """vLLM with a model, ready for requests."""
    program = shutil.which("vllm") or lacks("vllm", "vLLM's program `vllm` is not on PATH")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [program, "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
             "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "8", *more]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT}
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=log.parent, env=environment)
    server = Server(f"http://127.0.0.1:{port}")
    try:
        server.wait()
        yield server
    finally:
        process.terminate()
        process.wait()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method, steps", some(SAMPLED, SAMPLED[:1]))
def test_vllm_samples_with_the_weights_of_each_step(given: Path, tmp_path: Path, method: str, steps: int) -> None:
    package("trl", "TRL is not installed")
    import test_grpo_server
    from test_grpo_trainer import Watched

    reward, keys = Watched(), {"method": "lora", "lora_r": 4, "lora_dropout": 0.0} if method == "lora" else {}
    more = ["--enable-lora"] if method == "lora" else []
    with serving(given / "model", tmp_path / "vllm.log", *more) as server:
        settings = {"max_steps": steps, "max_completion_length": 12, "learning_rate": 1e-2}
        trainer = test_grpo_server.streamed(given, tmp_path / "out", server, settings, reward, **keys)
        trainer.train()
    rows = test_grpo_server.rows(trainer)
    assert len(rows) == steps and len(reward.tokens) == 8 * steps
    assert all(row[DIFFERENCE] < NATS for row in rows)
    assert len({tuple(ids) for ids in reward.tokens}) > 4 * steps
