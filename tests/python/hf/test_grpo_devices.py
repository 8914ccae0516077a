"""TRL's GRPOTrainer over a streamed model whose layers compute on a device: completions are sampled from weights in its
memory, with the bits of the CPUs on a simulated device and on a faked GPU; or they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollouts
from fake_gpu import build_driver
from needs import lacks, package
from spillway import _engine
from spillway.errors import DoesNotFit, InputError
from spillway.hf import load
from test_cuda import in_own_process
from test_grpo_trainer import Watched, given, streamed

__all__ = ["given"]  # a fixture

package("datasets", "TRL needs datasets")
package("trl", "TRL is not installed")
SIMULATED = {"device": "simulated", "dtype": "bfloat16", "dram_budget": "4GiB"}
MORE = {"max_steps": 4}


def train(given: Path, out: Path, **keys: Any) -> tuple[list[list[int]], bytes]:
    """The completions of all steps, and the model in the end."""
    watched = Watched()
    trainer = streamed(given, out, MORE, watched, **keys)
    trainer.train()
    trainer.save_model()
    trainer.close()
    return watched.tokens, (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def on_cpu(given: Path) -> tuple[list[list[int]], bytes]:
    return train(given, given / "cpu", dtype="bfloat16")


@pytest.mark.parametrize("more", [{"gpu_memory": "512MiB"}, {"gpu_memory": "64MiB", "generation": "cpu"}])
def test_a_simulated_device_changes_no_bit(given: Path, tmp_path: Path, on_cpu: Any, more: dict[str, str]) -> None:
    assert train(given, tmp_path / "out", **SIMULATED, **more) == on_cpu


def test_a_device_without_room_for_the_model_is_refused_before_a_step(given: Path, tmp_path: Path) -> None:
    """The generation of this model takes 128 MiB and more."""
    watched = Watched()
    trainer = streamed(given, tmp_path / "out", MORE, watched, gpu_memory="64MiB", **SIMULATED)
    with pytest.raises(DoesNotFit, match="does not fit in simulated: GRPOTrainer generates with the whole") as refused:
        trainer.train()
    for words in ("gpu_memory is 64.0 MiB", 'load(..., generation="cpu")', "Server(", "`objective: grpo`"):
        assert words in str(refused.value)
    assert not watched.tokens


def test_the_plan_counts_generation_in_the_memory_of_the_device(given: Path, tmp_path: Path) -> None:
    trainer = streamed(given, tmp_path / "out", MORE, gpu_memory="512MiB", **SIMULATED)
    parts = trainer.session.plan["bytes"]
    (work,) = (part for part in parts if part["tier"] == "device" and part["class"] == "working set")
    assert 128 << 20 < work["bytes"] < 256 << 20
    trainer.close()


def test_generation_has_no_other_places(given: Path) -> None:
    with pytest.raises(InputError, match="generation='gpu' is not taken: expects spillway.hf.Server.*, or \"cpu\""):
        load(given / "model", generation="gpu")


ON_GPU = """
import json, sys
from pathlib import Path
import fake_gpu
fake_gpu.play()
from spillway.model import whole
import test_grpo_devices as tests
held = []
fill = whole.fill
def watched(model, meta_model, description, fetch, device):
    held.append(str(device))
    return fill(model, meta_model, description, fetch, device)
whole.fill = watched
given, out, more = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
tokens, _ = tests.train(given, out, device="cuda:0", dtype="bfloat16", fused_kernels="never", **more)
print(json.dumps([tokens, held]))
"""


def test_a_gpu_samples_the_completions_of_the_cpus(given: Path, tmp_path: Path, on_cpu: Any) -> None:
    """From weights in its memory, unless the script asks for the CPUs. The head of a GPU adds in another order than
    that of the CPUs, so the bits are compared with those of the same updates."""
    if not _engine.gpu_kernels():
        lacks("nvcc", f"there are no kernels to run: {_engine.load_gpu_kernels(0)[1]}")
    if refusal := build_driver():
        lacks("compiler", refusal)
    found = {}
    for place, more in (("cuda:0", {}), ("cpu", {"generation": "cpu"})):
        out = tmp_path / place
        done = in_own_process(ON_GPU, str(given), str(out), json.dumps(more))
        assert done.returncode == 0, done.stderr[-3000:]
        tokens, held = json.loads(done.stdout.splitlines()[-1])
        assert held == [place] * MORE["max_steps"]
        found[place] = tokens, (out / "model.safetensors").read_bytes()
    assert found["cuda:0"] == found["cpu"]
    assert found["cpu"][0][: rollouts.STEP] == on_cpu[0][: rollouts.STEP]
